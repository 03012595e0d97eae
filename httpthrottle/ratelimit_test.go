package httpthrottle_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
)

const (
	policies = "Ratelimit-Policy"
	limits   = "Ratelimit"
)

func TestNothingIsToldOfConditionsThatAreNotPublic(t *testing.T) {
	m := withRule(twoConditions(""))
	h := m.Handler(hello)
	for range 2 {
		w := get(h)
		require.NotContains(t, w.Header(), policies)
		require.NotContains(t, w.Header(), limits)
		require.NotContains(t, w.Body.String(), "violated")
	}
	m.Public = []string{"second", "unheard of"}
	for range 2 {
		w := get(m.Handler(hello))
		require.Equal(t, []string{`"second";q=1;w=3600`}, w.Header()[policies])
		require.Equal(t, []string{`"second";r=0;t=3600`}, w.Header()[limits])
	}
}

// A limitStep is a request made after a sleep, and what is answered.
type limitStep struct {
	sleep  time.Duration
	status int
	limit  string
}

var limitFields = map[string]struct {
	rule   throttler.Rule
	policy string
	steps  []limitStep
}{
	"one condition": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 3, TTL: 10 * time.Second}}},
		`"a";q=3;w=10`,
		[]limitStep{
			{0, 200, `"a";r=2;t=10`},
			{4 * time.Second, 200, `"a";r=1;t=10`},
			{4 * time.Second, 200, `"a";r=0;t=2`},
			{0, 429, `"a";r=0;t=2`},
			{1500 * time.Millisecond, 429, `"a";r=0;t=1`},
			{500 * time.Millisecond, 200, `"a";r=0;t=4`},
		},
	},
	"either: what is not full tells no window beyond Retry-After": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "burst", Max: 1, TTL: 2 * time.Second},
			{Name: "hour", Max: 100, TTL: time.Hour},
		}},
		`"burst";q=1;w=2, "hour";q=100;w=3600`,
		[]limitStep{
			{0, 200, `"burst";r=0;t=2, "hour";r=99;t=3600`},
			{0, 429, `"burst";r=0;t=2, "hour";r=98`},
			{2 * time.Second, 200, `"burst";r=0;t=2, "hour";r=97;t=3600`},
		},
	},
	"all: Retry-After is that of the first to open": {
		throttler.Rule{All: []throttler.Condition{
			{Name: "short", Max: 1, TTL: 5 * time.Second},
			{Name: "long", Max: 1, TTL: 50 * time.Second},
		}},
		`"short";q=1;w=5, "long";q=1;w=50`,
		[]limitStep{
			{0, 200, `"short";r=0;t=5, "long";r=0;t=50`},
			{0, 429, `"short";r=0;t=5, "long";r=0;t=5`},
		},
	},
	"a ban": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 1, TTL: time.Second}}, Lockout: time.Minute},
		`"a";q=1;w=1`,
		[]limitStep{
			{0, 200, `"a";r=0;t=1`},
			{0, 429, `"a";r=0;t=60`},
			{time.Second, 429, `"a";r=0;t=59`},
		},
	},
	"a leaky bucket: what is left is not told as quicker than the rate": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 1000, TTL: 1000 * time.Second, Algorithm: throttler.LeakyBucket}}},
		`"a";q=1000;w=1000`,
		[]limitStep{{0, 200, `"a";r=999;t=999`}, {time.Hour, 200, `"a";r=999;t=999`}},
	},
	"only what is authorized counts": {
		throttler.Rule{CountAuthorizedOnly: true, Either: []throttler.Condition{
			{Name: "a", Max: 1, TTL: 10 * time.Second}, {Name: "b", Max: 3, TTL: time.Minute},
		}},
		`"a";q=1;w=10, "b";q=3;w=60`,
		[]limitStep{
			{0, 200, `"a";r=0;t=10, "b";r=2;t=60`},
			{0, 429, `"a";r=0;t=10, "b";r=2`},
			{10 * time.Second, 200, `"a";r=0;t=10, "b";r=1;t=60`},
		},
	},
	"a window is told in whole seconds, rounded up": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 5, TTL: 1200 * time.Millisecond}}},
		`"a";q=5;w=2`,
		[]limitStep{{0, 200, `"a";r=4;t=2`}},
	},
}

func TestRateLimitFieldsOverTime(t *testing.T) {
	for name, test := range limitFields {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.rule.Identifier = "test"
				m := withRule(test.rule)
				for _, c := range append(test.rule.Either, test.rule.All...) {
					m.Public = append(m.Public, c.Name)
				}
				h := m.Handler(hello)
				for i, step := range test.steps {
					time.Sleep(step.sleep)
					w := get(h)
					require.Equal(t, step.status, w.Code, "step %d", i)
					require.Equal(t, test.policy, w.Header().Get(policies), "step %d", i)
					require.Equal(t, step.limit, w.Header().Get(limits), "step %d", i)
				}
			})
		})
	}
}

func TestNamesOfPoliciesAreStringsOfStructuredFields(t *testing.T) {
	for name, want := range map[string]string{
		"ip address": `"ip address"`,
		`a"b\c`:      `"a\"b\\c"`,
		"naïve":      `"na%c3%afve"`,
		"a\r\nb: c":  `"a%0d%0ab: c"`,
		"\x00\x7f":   `"%00%7f"`,
		"\xff":       `"%ff"`,
		"100%":       `"100%25"`,
		"%c3":        `"%25c3"`,
	} {
		m := withRule(throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: name, Max: 1, TTL: time.Minute}}})
		m.Public = []string{name}
		w := get(m.Handler(hello))
		require.Equal(t, want+";q=1;w=60", w.Header().Get(policies))
		require.Equal(t, want+";r=0;t=60", w.Header().Get(limits))
	}
}

func TestShadowTellsNothing(t *testing.T) {
	rule := twoConditions("")
	rule.Shadow = true
	m := withRule(rule)
	m.Public = []string{"first", "second"}
	h := m.Handler(hello)
	for range 3 {
		w := get(h)
		require.Equal(t, http.StatusOK, w.Code)
		require.Empty(t, w.Header()[policies])
		require.Empty(t, w.Header()[limits])
	}
}

func TestMiddlewaresInsideEachOtherEachTellTheirPolicies(t *testing.T) {
	outer, inner := perMinute(9), perMinute(5)
	outer.Public, inner.Public = []string{"address"}, []string{"address"}
	w := get(outer.Handler(inner.Handler(hello)))
	require.Equal(t, []string{`"address";q=9;w=60`, `"address";q=5;w=60`}, w.Header()[policies])
	require.Equal(t, []string{`"address";r=8;t=60`, `"address";r=4;t=60`}, w.Header()[limits])
}
