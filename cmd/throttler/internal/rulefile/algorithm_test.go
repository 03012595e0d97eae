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

func TestMistakesInAnAlgorithmAreTold(t *testing.T) {
	for condition, want := range map[string]string{
		"per: month":                                        "a month is for algorithm: calendar: want 30s, 5m, 12h, 7d",
		"per: 30d, algorithm: calendar":                     `"30d" is no period of a calendar: want day, month, week`,
		"algorithm: calendar":                               `"" is no period of a calendar: want day, month, week`,
		"per: month, algorithm: calendar, anchor: 32":       "32, want 0 to 31 in a month",
		"per: week, algorithm: calendar, anchor: 8":         "8, want 0 to 7 in a week",
		"per: day, algorithm: calendar, anchor: 2":          "2, want 0 to 1 in a day",
		"per: day, algorithm: calendar, zone: Mars/Olympus": `"Mars/Olympus" is no time zone: want a name as Europe/Berlin`,
		"per: day, algorithm: calendar, zone: Local":        `"Local" is no time zone: want a name as Europe/Berlin`,
		"per: 1m, lease: 30s":                               "only hits of algorithm: in-flight have a lease",
		"per: 1m, anchor: 2":                                "only periods of algorithm: calendar have an anchor",
		"per: 1m, zone: UTC":                                "only periods of algorithm: calendar have a zone",
		"algorithm: in-flight":                              "no lease: want for how long one counts unless it is renewed",
		"algorithm: in-flight, lease: 50ms":                 "50ms, want 100ms or more for hits in flight",
	} {
		source := "rules: [{name: a, for: {api: true}, either: [{name: x, value: x, max: 1, " + condition + "}]}]"
		_, err := rulefile.Parse("rules.yaml", []byte(source))
		require.Error(t, err, condition)
		_, message, _ := strings.Cut(err.Error(), ": ")
		assert.Equal(t, want, message, condition)
	}
	_, err := rulefile.Parse("rules.yaml", []byte("rules: [{name: a, for: {api: true}, either: [{name: x, value: x, max: 1, per: 1m, algorithm: in-flight}]}]"))
	assert.ErrorContains(t, err, "rules.yaml:1:79: max is how many are under way at once: want lease instead")
	_, err = rulefile.Parse("rules.yaml", []byte("rules: [{name: a, for: {path: [/a]}, either: [{name: x, value: x, max: 1, lease: 1m, algorithm: in-flight}]}]"))
	assert.EqualError(t, err, "rules.yaml:1:97: a proxy does not tell when a request has ended: add for: {api: true} to the rule, for programs that acquire and release")
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
