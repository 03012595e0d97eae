package httpthrottle_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
)

// xFields returns the X-RateLimit fields of an answer, "limit remaining reset",
// reset in seconds from this one.
func xFields(w *httptest.ResponseRecorder) string {
	var fields []string
	for _, name := range []string{"Limit", "Remaining", "Reset"} {
		value := strings.Join(w.Header().Values("X-RateLimit-"+name), "|")
		if reset, err := strconv.ParseInt(value, 10, 64); name == "Reset" && err == nil {
			value = strconv.FormatInt(reset-time.Now().Unix(), 10)
		}
		fields = append(fields, value)
	}
	return strings.TrimSpace(strings.Join(fields, " "))
}

// An xStep is a request made after a sleep, and what is answered.
type xStep struct {
	sleep  time.Duration
	status int
	fields string
}

var xRateLimits = map[string]struct {
	rule  throttler.Rule
	steps []xStep
}{
	"a window": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 2, TTL: 10 * time.Second}}},
		[]xStep{
			{0, 200, "2 1 10"},
			{4 * time.Second, 200, "2 0 6"},
			{5500 * time.Millisecond, 429, "2 0 1"},
			{500 * time.Millisecond, 200, "2 0 4"},
			{time.Hour, 200, "2 1 10"},
		},
	},
	"either: the one that has least left, then the one that blocks longest": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "hour", Max: 3, TTL: time.Hour},
			{Name: "minute", Max: 2, TTL: time.Minute},
			{Name: "day", Max: 5, TTL: 24 * time.Hour},
		}},
		[]xStep{
			{0, 200, "2 1 60"},
			{0, 200, "2 0 60"},
			{0, 429, "2 0 60"},
			{time.Minute, 429, "3 0 3540"},
		},
	},
	"either: of two with as much left, the one that takes longer": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "minute", Max: 2, TTL: time.Minute},
			{Name: "hour", Max: 2, TTL: time.Hour},
		}},
		[]xStep{{0, 200, "2 1 3600"}, {0, 200, "2 0 3600"}, {0, 429, "2 0 3600"}},
	},
	"either: of two that block, the one that takes longer, though more is left": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "minute", Max: 2, TTL: time.Minute, Cost: 2},
			{Name: "hour", Max: 3, TTL: time.Hour, Cost: 2},
		}},
		[]xStep{{0, 200, "2 0 60"}, {0, 429, "3 1 3600"}},
	},
	"all: the one that blocks last": {
		throttler.Rule{All: []throttler.Condition{
			{Name: "hour", Max: 3, TTL: time.Hour},
			{Name: "minute", Max: 1, TTL: time.Minute},
		}},
		[]xStep{
			{0, 200, "3 2 3600"},
			{0, 200, "3 1 3600"},
			{0, 200, "3 0 3600"},
			{0, 429, "1 0 60"},
		},
	},
	"first: the one that counts": {
		throttler.Rule{First: []throttler.Condition{
			{Name: "own", Max: 1, TTL: time.Minute},
			{Name: "pool", Max: 2, TTL: time.Hour},
		}},
		[]xStep{{0, 200, "1 0 60"}, {0, 200, "2 1 3600"}, {0, 200, "2 0 3600"}, {0, 429, "1 0 60"}},
	},
	"a ban": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 1, TTL: time.Second}}, Lockout: time.Minute},
		[]xStep{{0, 200, "1 0 1"}, {0, 429, "1 0 60"}, {time.Second, 429, "1 0 59"}},
	},
}

func TestXRateLimitFieldsOverTime(t *testing.T) {
	for name, test := range xRateLimits {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.rule.Identifier = "test"
				m := withRule(test.rule)
				m.XRateLimit = true
				for _, c := range test.rule.Conditions() {
					m.Public = append(m.Public, c.Name)
				}
				h := m.Handler(hello)
				for i, step := range test.steps {
					time.Sleep(step.sleep)
					w := get(h)
					require.Equal(t, step.status, w.Code, "step %d", i)
					require.Equal(t, step.fields, xFields(w), "step %d", i)
				}
			})
		})
	}
}

func TestXRateLimitResetIsNotTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at a full second
		m := perMinute(1)
		m.Public, m.XRateLimit = []string{"address"}, true
		h := m.Handler(hello)
		time.Sleep(300 * time.Millisecond)
		for _, want := range []string{"1 0 61", "1 0 60"} { // the hit expires at 60.3 s
			require.Equal(t, want, xFields(get(h)))
			time.Sleep(1200 * time.Millisecond)
		}
	})
}

func TestXRateLimitTellsOfPublicConditionsOnly(t *testing.T) {
	synctest.Test(t, xRateLimitTellsOfPublicConditionsOnly)
}

func xRateLimitTellsOfPublicConditionsOnly(t *testing.T) {
	m := withRule(twoConditions(""))
	m.XRateLimit = true
	require.Empty(t, xFields(get(m.Handler(hello))))
	m = withRule(twoConditions(""))
	m.XRateLimit = true
	m.Public = []string{"first"}
	require.Equal(t, "1 0 60", xFields(get(m.Handler(hello))))

	rule := twoConditions("")
	rule.Shadow = true
	m = withRule(rule)
	m.Public, m.XRateLimit = []string{"first"}, true
	require.Empty(t, xFields(get(m.Handler(hello))), "the rule is not in force")
}

func TestXRateLimitIsNotSetUnlessAskedFor(t *testing.T) {
	m := perMinute(1)
	m.Public = []string{"address"}
	require.Empty(t, xFields(get(m.Handler(hello))))
}

func TestXRateLimitTellsNothingWhileTheBackendFails(t *testing.T) {
	m := overloaded(nil)
	m.Public, m.XRateLimit = []string{"address"}, true
	require.Empty(t, xFields(get(m.Handler(hello))))
}

func TestXRateLimitOfMiddlewaresInsideEachOtherIsThatOfTheTighter(t *testing.T) {
	synctest.Test(t, xRateLimitOfMiddlewaresInsideEachOther)
}

func xRateLimitOfMiddlewaresInsideEachOther(t *testing.T) {
	limit := func(n int) *httpthrottle.Middleware {
		m := perMinute(n)
		m.Public, m.XRateLimit = []string{"address"}, true
		return m
	}
	require.Equal(t, "3 2 60", xFields(get(limit(9).Handler(limit(3).Handler(hello)))))
	require.Equal(t, "3 2 60", xFields(get(limit(3).Handler(limit(9).Handler(hello)))))

	inner := limit(1)
	h := limit(1).Handler(inner.Handler(hello))
	get(inner.Handler(hello))
	w := get(h)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "1 0 60", xFields(w), "the one that refuses")
}

func TestXRateLimitOfARefusalIsThatOfTheRuleThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := perMinute(1)
		inner, _ := byItems()
		outer.Public, outer.XRateLimit = []string{"address"}, true
		inner.XRateLimit = true
		order(inner.Handler(hello), "8")
		w := order(outer.Handler(inner.Handler(hello)), "3")
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "10 2 60", xFields(w), "though the other has less left")
	})
}
