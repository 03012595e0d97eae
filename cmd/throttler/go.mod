module github.com/adaptivethrottler/throttler/cmd/throttler

go 1.25.0

replace (
	github.com/adaptivethrottler/throttler => ../../
	github.com/adaptivethrottler/throttler/otelthrottle => ../../otelthrottle
)

require (
	github.com/adaptivethrottler/throttler v0.0.0-00010101000000-000000000000
	github.com/goccy/go-yaml v1.19.2
	github.com/google/jsonschema-go v0.4.3
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/bradfitz/gomemcache v0.0.0-20260422231931-4d751bb6e37c // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
