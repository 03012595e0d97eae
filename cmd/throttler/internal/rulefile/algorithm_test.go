package rulefile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAFileHasLimitsOfWhatIsInFlightAndOfTheCalendar(t *testing.T) {
	file, err := rulefile.Load("testdata/algorithms.yaml")
	require.NoError(t, err)
	jobs, err := file.Rule("jobs").WithValues(map[string]string{"customer": "big", "rate": "big"})
	require.NoError(t, err)
	assert.Equal(t, []throttler.Condition{
		{Name: "customer", Value: "big", Max: 100, TTL: 30 * time.Second, Algorithm: throttler.InFlight},
		{Name: "rate", Value: "big", Max: 100, TTL: time.Minute},
	}, jobs.Either)
	assert.Equal(t, 30*time.Second, file.Rule("jobs").Lease())

	rules := file.For(login("203.0.113.7", "alice"))
	require.Len(t, rules, 1, "no proxy asks about what is in flight")
	plan := rules[0]
	assert.Zero(t, file.Rule(plan.Identifier).Lease())
	require.NoError(t, plan.Validate())
	c := plan.Either
	assert.Equal(t, "Europe/Berlin", c[0].Period.Location.String())
	start, end := c[0].Period.Bounds(time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC))
	assert.Equal(t, "2026-03-15T00:00:00+01:00", start.Format(time.RFC3339))
	assert.Equal(t, "2026-04-15T00:00:00+02:00", end.Format(time.RFC3339))
	assert.Equal(t, throttler.Period{Unit: throttler.Week, Anchor: 7}, c[1].Period)
	assert.Equal(t, throttler.Period{Unit: throttler.Day}, c[2].Period)
	assert.Zero(t, c[0].TTL)
}

func TestABanThatEndsBeforeTheHitsIsWarnedOf(t *testing.T) {
	for source, want := range map[string]string{
		"{max: 5, per: 1m}], lockout: 1m":                                        "",
		"{max: 5, per: 1m}], lockout: 10m, growth: 2":                            "",
		"{max: 5, per: 1m}]":                                                     "",
		"{max: 5, per: 1d, lockout: none}], lockout: 1h":                         "",
		"{max: 5, per: month, algorithm: calendar}], lockout: 31d":               "",
		"{max: 5, per: 1d}], lockout: 1h30m":                                     "a ban of 1h30m ends before",
		"{max: 5, per: 1d, algorithm: bucket, lockout: 10m}], lockout: 2d":       "a ban of 10m ends before",
		"{max: 5, per: day, algorithm: calendar}], lockout: 1h":                  "a ban of 1h ends before",
		"{max: 5, per: week, algorithm: calendar}], lockout: 6d":                 "a ban of 144h ends before",
		"{max: 10000, per: month, algorithm: calendar, anchor: 3}], lockout: 1s": "more than 10000 pass",
	} {
		source = "rules: [{name: a, either: [" + strings.Replace(source, "{", `{name: x, value: "{user}", `, 1) + "}]"
		file := parse(t, source)
		if want == "" {
			assert.Empty(t, file.Warnings, source)
			continue
		}
		require.Len(t, file.Warnings, 1, source)
		assert.Contains(t, file.Warnings[0].Message, want)
		assert.Equal(t, 1, file.Warnings[0].Line)
	}
	flying := parse(t, `rules: [{name: a, for: {api: true}, either: [{name: x, value: "{user}", max: 5, algorithm: in-flight, lease: 1m}], lockout: 1s}]`)
	assert.Empty(t, flying.Warnings, "it is never banned")
}
