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

func TestFieldsAreReadInAllDialects(t *testing.T) {
	const minute, hour = time.Minute, time.Hour
	for _, test := range []struct {
		name   string
		lines  []string
		empty  time.Duration
		limits map[time.Duration]int
	}{
		{"none", nil, 0, nil},
		{"draft 11", []string{`RateLimit-Policy: "burst";q=100;w=60, "day";q=1000;w=86400`, `RateLimit: "burst";r=0;t=30, "day";r=5;t=99`}, 30 * time.Second, map[time.Duration]int{minute: 100, 24 * hour: 1000}},
		{"draft 11, on several lines", []string{`RateLimit-Policy: "a";q=1;w=1`, `RateLimit-Policy: "b";q=2;w=2`}, 0, map[time.Duration]int{time.Second: 1, 2 * time.Second: 2}},
		{"draft 11, no policy", []string{`RateLimit: "default";r=0;t=5`}, 5 * time.Second, nil},
		{"draft 11, other parameters and blanks", []string{`RateLimit-Policy:  "a" ; pk=:cHNycw==: ; q=5 ;w=1`}, 0, map[time.Duration]int{time.Second: 5}},
		{"draft 11, a unit", []string{`RateLimit-Policy: "a";q=65535;w=10;qu="content-bytes"`, `RateLimit: "a";r=0;t=7`}, 7 * time.Second, nil},
		{"draft 11, the unit of all", []string{`RateLimit-Policy: "a";q=5;w=10;qu="requests"`}, 0, map[time.Duration]int{10 * time.Second: 5}},
		{"draft 11, odd names", []string{`RateLimit-Policy: "a\",;b";q=5;w=1`, `RateLimit: "a\",;b";r=0;t=1`}, time.Second, map[time.Duration]int{time.Second: 5}},
		{"draft 7", []string{`RateLimit: limit=100, remaining=0, reset=5`}, 5 * time.Second, nil},
		{"draft 3", []string{"RateLimit-Limit: 100", "RateLimit-Remaining: 0", "RateLimit-Reset: 50"}, 50 * time.Second, nil},
		{"draft 3, with policies", []string{"RateLimit-Limit: 10, 10;w=1, 50;w=60", "RateLimit-Remaining: 9", "RateLimit-Reset: 1"}, 0, map[time.Duration]int{time.Second: 10, minute: 50}},
		{"draft 6", []string{"RateLimit-Limit: 10", "RateLimit-Policy: 10;w=1;burst=1000", "RateLimit-Remaining: 9", "RateLimit-Reset: 1"}, 0, map[time.Duration]int{time.Second: 10}},
		{"Envoy's", []string{`X-RateLimit-Limit: 10, 10;w=1;name="a"`, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1"}, time.Second, map[time.Duration]int{time.Second: 10}},
		{"X-RateLimit, seconds", []string{"X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 12"}, 12 * time.Second, nil},
		{"X-RateLimit, Unix time", []string{"X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000012"}, 12 * time.Second, nil},
		{"X-RateLimit, milliseconds", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000012500"}, 12500 * time.Millisecond, nil},
		{"X-RateLimit, the least milliseconds", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 500000000000"}, 0, nil},
		{"X-RateLimit, past", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1699999999"}, 0, nil},
		{"X-Rate-Limit", []string{"x-rate-limit-limit: 15", "x-rate-limit-remaining: 0", "x-rate-limit-reset: 1700000900"}, 15 * minute, nil},
		{"GitHub", []string{"x-ratelimit-limit: 5000", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1700003600", "x-ratelimit-used: 5000", "x-ratelimit-resource: core"}, hour, nil},
		{"OpenAI, requests", []string{"x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 2m0s"}, 2 * time.Second, nil},
		{"OpenAI, tokens", []string{"x-ratelimit-limit-tokens: 60", "x-ratelimit-remaining-tokens: 0", "x-ratelimit-reset-tokens: 60ms"}, time.Millisecond, nil},
		{"the latest of several", []string{`RateLimit: "a";r=0;t=5`, "RateLimit-Remaining: 0", "RateLimit-Reset: 7", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 6"}, 7 * time.Second, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := readAnswer(response(http.StatusOK, test.lines...), now)
			require.Equal(t, test.empty, a.empty)
			told := map[time.Duration]int{}
			for _, l := range a.limits {
				require.Equal(t, now, l.Told)
				told[l.TTL] = l.Max
			}
			require.Len(t, told, len(test.limits))
			for window, most := range test.limits {
				require.Equal(t, most, told[window])
			}
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
	} {
		a := readAnswer(response(http.StatusTooManyRequests, line), now)
		require.Equal(t, answer{status: http.StatusTooManyRequests}, a, line)
		require.Zero(t, a.pause(), line)
	}
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
		{429, []string{"Retry-After: 3", "Retry-After: 5", "Retry-After: 4"}, 5 * time.Second},
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
		for _, l := range a.limits {
			require.True(t, l.valid(now))
		}
	})
}
