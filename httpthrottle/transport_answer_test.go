package httpthrottle

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// now is the time of the servers in this file: 1,700,000,000 as a Unix time.
var now = time.Date(2023, 11, 14, 22, 13, 20, 0, time.UTC)

// response returns a response with these lines as its header.
func response(status int, lines ...string) *http.Response {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return &http.Response{StatusCode: status, Header: h}
}

func TestQuotasAreReadInAllDialects(t *testing.T) {
	const minute = time.Minute
	for _, test := range []struct {
		name  string
		lines []string
		want  []quota
	}{
		{"none", nil, nil},
		{"draft 11", []string{`RateLimit-Policy: "burst";q=100;w=60, "day";q=1000;w=86400`, `RateLimit: "burst";r=42;t=30`},
			[]quota{{100, minute, 42, 30 * time.Second, true}, {1000, 24 * time.Hour, -1, 0, true}}},
		{"draft 11, on several lines", []string{`RateLimit-Policy: "a";q=1;w=1`, `RateLimit-Policy: "b";q=2;w=2`},
			[]quota{{1, time.Second, -1, 0, true}, {2, 2 * time.Second, -1, 0, true}}},
		{"draft 11, no policy", []string{`RateLimit: "default";r=0;t=5`}, []quota{{0, 0, 0, 5 * time.Second, true}}},
		{"draft 11, other parameters and blanks", []string{`RateLimit-Policy:  "a" ; pk=:cHNycw==: ; q=5 ;w=1`}, []quota{{5, time.Second, -1, 0, true}}},
		{"draft 11, a unit", []string{`RateLimit-Policy: "a";q=65535;w=10;qu="content-bytes"`}, []quota{{65535, 10 * time.Second, -1, 0, false}}},
		{"draft 11, odd names", []string{`RateLimit-Policy: "a\",;b";q=5;w=1`, `RateLimit: "a\",;b";r=4;t=1`}, []quota{{5, time.Second, 4, time.Second, true}}},
		{"draft 7", []string{`RateLimit: limit=100, remaining=50, reset=5`}, []quota{{100, 0, 50, 5 * time.Second, true}}},
		{"draft 3", []string{"RateLimit-Limit: 100", "RateLimit-Remaining: 0", "RateLimit-Reset: 50"}, []quota{{100, 0, 0, 50 * time.Second, true}}},
		{"draft 3, with policies", []string{"RateLimit-Limit: 10, 10;w=1, 50;w=60", "RateLimit-Remaining: 9", "RateLimit-Reset: 1"},
			[]quota{{10, time.Second, 9, time.Second, true}, {50, minute, -1, 0, true}}},
		{"draft 6", []string{"RateLimit-Limit: 10", "RateLimit-Policy: 10;w=1;burst=1000", "RateLimit-Remaining: 9", "RateLimit-Reset: 1"},
			[]quota{{10, time.Second, 9, time.Second, true}}},
		{"X-RateLimit, seconds", []string{"X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 59", "X-RateLimit-Reset: 12"}, []quota{{60, 0, 59, 12 * time.Second, true}}},
		{"X-RateLimit, Unix time", []string{"X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000012"}, []quota{{60, 0, 0, 12 * time.Second, true}}},
		{"X-RateLimit, milliseconds", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000012500"}, []quota{{0, 0, 0, 12500 * time.Millisecond, true}}},
		{"X-RateLimit, past", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1699999999"}, []quota{{0, 0, 0, 0, true}}},
		{"X-Rate-Limit", []string{"x-rate-limit-limit: 15", "x-rate-limit-remaining: 14", "x-rate-limit-reset: 1700000900"}, []quota{{15, 0, 14, 15 * minute, true}}},
		{"GitHub", []string{"x-ratelimit-limit: 5000", "x-ratelimit-remaining: 4999", "x-ratelimit-reset: 1700003600", "x-ratelimit-used: 1", "x-ratelimit-resource: core"},
			[]quota{{5000, 0, 4999, time.Hour, true}}},
		{"OpenAI", []string{"x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 58", "x-ratelimit-reset-requests: 2s",
			"x-ratelimit-limit-tokens: 150000", "x-ratelimit-remaining-tokens: 149984", "x-ratelimit-reset-tokens: 6ms"},
			[]quota{{60, 0, 58, time.Second, true}, {150000, 0, 149984, 375 * time.Microsecond, false}}},
		{"the first dialect wins", []string{`RateLimit-Policy: "a";q=5;w=1`, "RateLimit-Limit: 6", "X-RateLimit-Limit: 7"}, []quota{{5, time.Second, -1, 0, true}}},
		{"unless it tells nothing", []string{`RateLimit-Policy: "a`, "RateLimit-Limit: many", "X-RateLimit-Limit: 7"}, []quota{{7, 0, -1, 0, true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, readAnswer(response(http.StatusOK, test.lines...), now).quotas)
		})
	}
}

func TestAbsurdFieldsTellNothing(t *testing.T) {
	for _, line := range []string{
		"X-RateLimit-Limit: -5", "X-RateLimit-Limit: 0", "X-RateLimit-Limit: 1e9", "X-RateLimit-Limit: NaN", "X-RateLimit-Limit: 99999999999999999999",
		"X-RateLimit-Remaining: -1", "X-RateLimit-Reset: -1", "X-RateLimit-Reset: soon", "X-RateLimit-Reset: -6m0s", "X-RateLimit-Reset: 1..2",
		`RateLimit: "a"`, `RateLimit: "a";r=-1`, `RateLimit: ;;,,=`, `RateLimit: "a;r=1`, `RateLimit-Policy: "a";q=0;w=1`, `RateLimit-Policy: q=5;w=1`,
		"RateLimit-Limit: ", "Retry-After: -5", "Retry-After: Infinity", "Retry-After: 0x10", "Retry-After: soon", "Retry-After: ",
		`RateLimit-Policy: "a";q=5;w=1` + strings.Repeat(" ", maxFieldLength),
		`RateLimit-Policy: "0";q=5;w=1` + manyPolicies(),
	} {
		a := readAnswer(response(http.StatusTooManyRequests, line), now)
		require.Equal(t, answer{status: http.StatusTooManyRequests}, a, line)
		require.Zero(t, a.pause(), line)
	}
}

// manyPolicies returns the rest of a List of too many.
func manyPolicies() (list string) {
	for i := range maxQuotas {
		list += fmt.Sprintf(`, "%d";q=5;w=1`, i+1)
	}
	return list
}

func TestTimeToWaitIsTheServersWord(t *testing.T) {
	for _, test := range []struct {
		status int
		lines  []string
		want   time.Duration
	}{
		{429, []string{"Retry-After: 120"}, 2 * time.Minute},
		{429, []string{"Retry-After: 1.5"}, 1500 * time.Millisecond},
		{429, []string{"Retry-After: 99999999999999999999"}, 1<<63 - 1024},
		{429, []string{"Retry-After: Tue, 14 Nov 2023 22:13:30 GMT"}, 10 * time.Second},
		{429, []string{"Retry-After: Tue, 14 Nov 2023 22:13:10 GMT"}, 0}, // past
		{429, []string{"Retry-After: Tue, 14 Nov 2023 22:13:30 GMT", "Date: Tue, 14 Nov 2023 22:13:25 GMT"}, 5 * time.Second},
		{429, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000012", "Date: Tue, 14 Nov 2023 22:13:30 GMT"}, 2 * time.Second},
		{429, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000012", "Date: Tue, 14 Nov 2023 22:13:19 GMT"}, 12 * time.Second}, // the same clock
		{429, []string{"Retry-After: 3", "Retry-After: 5"}, 5 * time.Second},
		{429, []string{"Retry-After-Ms: 250"}, 250 * time.Millisecond},
		{429, []string{"Retry-After: 3", `RateLimit: "a";r=0;t=60`}, 3 * time.Second}, // Retry-After wins
		{429, []string{`RateLimit: "a";r=0;t=60, "b";r=0;t=90, "c";r=5;t=99`}, 90 * time.Second},
		{429, []string{`RateLimit: "a";r=7;t=60`}, 0}, // it contradicts itself
		{429, []string{"X-RateLimit-Reset: 60"}, time.Minute},
		{200, []string{"X-RateLimit-Reset: 60"}, 0},
		{200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60"}, time.Minute},
	} {
		a := readAnswer(response(test.status, test.lines...), now)
		require.Equal(t, test.want, a.pause(), "%d %v", test.status, test.lines)
	}
}

// A cache answers with what was told to somebody else, long ago.
func TestACachedAnswerIsNotBelieved(t *testing.T) {
	const empty = "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 3600\nRetry-After: 3600"
	for _, test := range []struct {
		status int
		fields string
		want   time.Duration
	}{
		{200, empty, time.Hour},
		{200, empty + "\nAge: 0", time.Hour},
		{200, empty + "\nAge: 1", 0},
		{429, empty + "\nAge: 3599", 0},
		{200, empty + "\nDate: Tue, 14 Nov 2023 22:13:18 GMT", time.Hour},
		{200, empty + "\nDate: Tue, 14 Nov 2023 22:12:20 GMT", time.Hour},
		{200, empty + "\nDate: Tue, 14 Nov 2023 22:12:19 GMT", 0},
		{200, empty + "\nDate: Tue, 14 Nov 2023 21:13:20 GMT", 0},
		{200, empty + "\nDate: Tue, 14 Nov 2023 23:13:20 GMT", time.Hour}, // a clock that is ahead
		{429, empty + "\nDate: Tue, 14 Nov 2023 21:13:20 GMT", time.Hour}, // one that is behind
		{403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60\nDate: Tue, 14 Nov 2023 21:13:20 GMT", time.Minute},
	} {
		a := readAnswer(response(test.status, strings.Split(test.fields, "\n")...), now)
		require.Equal(t, test.want, a.pause(), "%d %s", test.status, test.fields)
		require.Equal(t, test.status != 200 && test.want > 0, a.refused(), "%d %s", test.status, test.fields)
	}
}

func TestRefusalsForALimitAreToldFromOtherAnswers(t *testing.T) {
	const empty, left = "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 10"
	for _, test := range []struct {
		status int
		lines  []string
		want   bool
	}{
		{429, nil, true},
		{503, nil, false}, // an outage
		{503, []string{"Retry-After: 1"}, true},
		{403, nil, false},
		{403, []string{"X-RateLimit-Reset: 60", left}, false}, // forbidden, and no limit
		{403, []string{"X-RateLimit-Reset: 60", empty}, true}, // GitHub's primary limit
		{403, []string{"Retry-After: 60", left}, true},        // GitHub's secondary limit
		{200, []string{"X-RateLimit-Reset: 60", empty}, false},
		{500, []string{"Retry-After: 60"}, false},
	} {
		a := readAnswer(response(test.status, test.lines...), now)
		require.Equal(t, test.want, a.refused(), fmt.Sprint(test.status, test.lines))
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("Retry-After: 1\nRateLimit: \"a\\\"\";r=0;t=60\nRateLimit-Policy: \"a\\\"\";q=5;w=1")
	f.Add("X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1700000000000")
	f.Add("RateLimit-Limit: 5, 5;w=1\nRateLimit-Reset: 6m0s")
	f.Add("x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 59\nx-ratelimit-reset-requests: 1s")
	f.Fuzz(func(t *testing.T, lines string) {
		a := readAnswer(response(http.StatusTooManyRequests, strings.Split(lines, "\n")...), now)
		require.GreaterOrEqual(t, a.pause(), time.Duration(0))
		for _, q := range a.quotas {
			require.GreaterOrEqual(t, q.limit, 0)
			require.GreaterOrEqual(t, q.window, time.Duration(0))
			require.GreaterOrEqual(t, q.remaining, -1)
			require.GreaterOrEqual(t, q.reset, time.Duration(0))
		}
	})
}
