package httpthrottle_test

import (
	"cmp"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

const (
	policies = "Ratelimit-Policy"
	limits   = "Ratelimit"
)

// What is told of a rule of two conditions, first and second: to allowed requests, refused ones
// (of both), and while the store fails.
func TestFieldsTellOfPublicConditionsOfRulesInForceOnly(t *testing.T) {
	for name, test := range map[string]struct {
		public  []string
		x       bool
		change  func(*throttler.Rule)
		store   throttler.Client
		policy  string
		limit   string
		xFields string
	}{
		"nothing is public":       {nil, true, nil, memstore.New(), "", "", ""},
		"one condition":           {[]string{"second"}, false, nil, memstore.New(), `"second";q=1;w=3600`, `"second";r=0;t=3600`, ""},
		"one condition, X":        {[]string{"first"}, true, nil, memstore.New(), `"first";q=1;w=60`, `"first";r=0;t=60`, "1 0 60"},
		"a rule in shadow":        {[]string{"first", "second"}, true, func(r *throttler.Rule) { r.Shadow = true }, memstore.New(), "", "", ""},
		"a store that fails":      {[]string{"first"}, true, nil, failingStore{errOverloaded}, `"first";q=1;w=60`, "", ""},
		"one that the rule lacks": {[]string{"third", "first"}, false, nil, memstore.New(), `"first";q=1;w=60`, `"first";r=0;t=60`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rule := twoConditions("")
				if test.change != nil {
					test.change(&rule)
				}
				m := httpthrottle.New(throttler.New(test.store), func(*http.Request) throttler.Rule { return rule })
				m.Public, m.XRateLimit = test.public, test.x
				h := m.Handler(hello)
				for range 2 {
					w := get(h)
					require.Equal(t, test.policy, strings.Join(w.Header()[policies], "|"))
					require.Equal(t, test.limit, strings.Join(w.Header()[limits], "|"))
					require.Equal(t, test.xFields, xFields(w))
					require.Equal(t, w.Code == http.StatusTooManyRequests && test.limit != "", strings.Contains(w.Body.String(), "violated"))
				}
			})
		})
	}
}

func TestAPolicyIsViolatedOnlyIfItsConditionIsFull(t *testing.T) {
	rule := twoConditions("")
	rule.Either[1].Max = 9
	m := withRule(rule)
	m.Public = []string{"first", "second"}
	require.Contains(t, get(full(t, m)).Body.String(), `"violated-policies":["first"]`)
}

// A limitStep is a request made after a sleep, and what is answered.
type limitStep struct {
	sleep  time.Duration
	status int
	limit  string
	policy string // empty: that of the rule
	x      string // the X-RateLimit fields: of the condition that blocks first in Either, and last in All and First
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
			{0, 200, `"a";r=2;t=10`, "", "3 2 10"},
			{4 * time.Second, 200, `"a";r=1;t=10`, "", "3 1 10"},
			{4 * time.Second, 200, `"a";r=0;t=2`, "", "3 0 2"},
			{0, 429, `"a";r=0;t=2`, "", "3 0 2"},
			{1500 * time.Millisecond, 429, `"a";r=0;t=1`, "", "3 0 1"},
			{500 * time.Millisecond, 200, `"a";r=0;t=4`, "", "3 0 4"},
		},
	},
	"either: what is not full tells no window beyond Retry-After": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "burst", Max: 1, TTL: 2 * time.Second},
			{Name: "hour", Max: 100, TTL: time.Hour},
		}},
		`"burst";q=1;w=2, "hour";q=100;w=3600`,
		[]limitStep{
			{0, 200, `"burst";r=0;t=2, "hour";r=99;t=3600`, "", "1 0 2"},
			{0, 429, `"burst";r=0;t=2, "hour";r=98`, "", "1 0 2"},
			{2 * time.Second, 200, `"burst";r=0;t=2, "hour";r=97;t=3600`, "", "1 0 2"},
		},
	},
	"either: what is not full tells no window before Retry-After either": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "hour", Max: 1, TTL: time.Hour},
			{Name: "minute", Max: 100, TTL: time.Minute},
		}},
		`"hour";q=1;w=3600, "minute";q=100;w=60`,
		[]limitStep{
			{0, 200, `"hour";r=0;t=3600, "minute";r=99;t=60`, "", "1 0 3600"},
			{0, 429, `"hour";r=0;t=3600, "minute";r=98`, "", "1 0 3600"},
		},
	},
	"all: one that opens after Retry-After tells no window": {
		throttler.Rule{All: []throttler.Condition{
			{Name: "short", Max: 1, TTL: 5 * time.Second},
			{Name: "long", Max: 1, TTL: 50 * time.Second},
		}},
		`"short";q=1;w=5, "long";q=1;w=50`,
		[]limitStep{
			{0, 200, `"short";r=0;t=5, "long";r=0;t=50`, "", "1 0 5"},
			{0, 429, `"short";r=0;t=5, "long";r=0`, "", "1 0 5"},
			{5 * time.Second, 200, `"short";r=0;t=5, "long";r=0;t=45`, "", "1 0 5"},
			{44 * time.Second, 200, `"short";r=0;t=5, "long";r=0;t=1`, "", "1 0 5"},
			{0, 429, `"short";r=0, "long";r=0;t=1`, "", "1 0 1"},
			{time.Second, 200, `"short";r=0;t=4, "long";r=0;t=50`, "", "1 0 50"},
		},
	},
	"first: one that was not asked tells nothing": {
		throttler.Rule{First: []throttler.Condition{
			{Name: "own", Max: 1, TTL: 5 * time.Second},
			{Name: "pool", Max: 1, TTL: 50 * time.Second},
		}},
		`"own";q=1;w=5, "pool";q=1;w=50`,
		[]limitStep{
			{0, 200, `"own";r=0;t=5`, `"own";q=1;w=5`, "1 0 5"},
			{0, 200, `"own";r=0;t=5, "pool";r=0;t=50`, "", "1 0 50"},
			{0, 429, `"own";r=0;t=5, "pool";r=0`, "", "1 0 5"},
		},
	},
	"a ban": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 1, TTL: time.Second}}, Lockout: time.Minute},
		`"a";q=1;w=1`,
		[]limitStep{
			{0, 200, `"a";r=0;t=1`, "", "1 0 1"},
			{0, 429, `"a";r=0;t=60`, "", "1 0 60"},
			{time.Second, 429, `"a";r=0;t=59`, "", "1 0 59"},
		},
	},
	"a leaky bucket: what is left is not told as quicker than the rate": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 1000, TTL: 1000 * time.Second, Algorithm: throttler.LeakyBucket}}},
		`"a";q=1000;w=1000`,
		[]limitStep{{0, 200, `"a";r=999;t=999`, "", "1000 999 999"}, {time.Hour, 200, `"a";r=999;t=999`, "", "1000 999 999"}},
	},
	"only what is authorized counts": {
		throttler.Rule{CountAuthorizedOnly: true, Either: []throttler.Condition{
			{Name: "a", Max: 1, TTL: 10 * time.Second}, {Name: "b", Max: 3, TTL: time.Minute},
		}},
		`"a";q=1;w=10, "b";q=3;w=60`,
		[]limitStep{
			{0, 200, `"a";r=0;t=10, "b";r=2;t=60`, "", "1 0 10"},
			{0, 429, `"a";r=0;t=10, "b";r=2`, "", "1 0 10"},
			{10 * time.Second, 200, `"a";r=0;t=10, "b";r=1;t=60`, "", "1 0 10"},
		},
	},
	"a window is told in whole seconds, rounded up": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 5, TTL: 1200 * time.Millisecond}}},
		`"a";q=5;w=2`,
		[]limitStep{{0, 200, `"a";r=4;t=2`, "", "5 4 2"}},
	},
	"a reset is not too early": {
		throttler.Rule{Either: []throttler.Condition{{Name: "a", Max: 1, TTL: time.Minute}}},
		`"a";q=1;w=60`,
		[]limitStep{{300 * time.Millisecond, 200, `"a";r=0;t=60`, "", "1 0 61"}, {1200 * time.Millisecond, 429, `"a";r=0;t=59`, "", "1 0 60"}},
	},
	"either: the one that has least left, then the one that blocks longest": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "hour", Max: 3, TTL: time.Hour},
			{Name: "minute", Max: 2, TTL: time.Minute},
			{Name: "day", Max: 5, TTL: 24 * time.Hour},
		}},
		`"hour";q=3;w=3600, "minute";q=2;w=60, "day";q=5;w=86400`,
		[]limitStep{
			{0, 200, `"hour";r=2;t=3600, "minute";r=1;t=60, "day";r=4;t=86400`, "", "2 1 60"},
			{0, 200, `"hour";r=1;t=3600, "minute";r=0;t=60, "day";r=3;t=86400`, "", "2 0 60"},
			{0, 429, `"hour";r=0;t=3600, "minute";r=0;t=60, "day";r=2`, "", "2 0 60"},
			{time.Minute, 429, `"hour";r=0;t=3540, "minute";r=1, "day";r=1`, "", "3 0 3540"},
		},
	},
	"either: of two with as much left, the one that takes longer": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "minute", Max: 2, TTL: time.Minute},
			{Name: "hour", Max: 2, TTL: time.Hour},
		}},
		`"minute";q=2;w=60, "hour";q=2;w=3600`,
		[]limitStep{
			{0, 200, `"minute";r=1;t=60, "hour";r=1;t=3600`, "", "2 1 3600"},
			{0, 200, `"minute";r=0;t=60, "hour";r=0;t=3600`, "", "2 0 3600"},
			{0, 429, `"minute";r=0;t=60, "hour";r=0;t=3600`, "", "2 0 3600"},
		},
	},
	"either: of two that block, the one that takes longer, though more is left": {
		throttler.Rule{Either: []throttler.Condition{
			{Name: "minute", Max: 2, TTL: time.Minute, Cost: 2},
			{Name: "hour", Max: 3, TTL: time.Hour, Cost: 2},
		}},
		`"minute";q=2;w=60, "hour";q=3;w=3600`,
		[]limitStep{
			{0, 200, `"minute";r=0;t=60, "hour";r=1;t=3600`, "", "2 0 60"},
			{0, 429, `"minute";r=0;t=60, "hour";r=1;t=3600`, "", "3 1 3600"},
		},
	},
	"all: the one that blocks last": {
		throttler.Rule{All: []throttler.Condition{
			{Name: "hour", Max: 3, TTL: time.Hour},
			{Name: "minute", Max: 1, TTL: time.Minute},
		}},
		`"hour";q=3;w=3600, "minute";q=1;w=60`,
		[]limitStep{
			{0, 200, `"hour";r=2;t=3600, "minute";r=0;t=60`, "", "3 2 3600"},
			{0, 200, `"hour";r=1;t=3600, "minute";r=0;t=60`, "", "3 1 3600"},
			{0, 200, `"hour";r=0;t=3600, "minute";r=0;t=60`, "", "3 0 3600"},
			{0, 429, `"hour";r=0, "minute";r=0;t=60`, "", "1 0 60"},
		},
	},
}

func TestRateLimitFieldsOverTime(t *testing.T) {
	for name, test := range limitFields {
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
					require.Equal(t, step.status == http.StatusOK, w.Body.String() == "hello", "step %d", i)
					for _, field := range []string{"Retry-After", "Cache-Control"} {
						require.Equal(t, step.status != http.StatusOK, w.Header().Get(field) != "", "step %d", i)
					}
					policy := cmp.Or(step.policy, test.policy)
					require.Equal(t, policy, w.Header().Get(policies), "step %d", i)
					require.Equal(t, step.limit, w.Header().Get(limits), "step %d", i)
					require.Equal(t, step.x, xFields(w), "step %d", i)
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

// nested returns the handler of a Middleware inside another, of rules that have
// these identifiers and a condition of the same name, of 2 and of 1 a minute.
func nested(outer, inner string) http.Handler {
	h := http.Handler(hello)
	th := throttler.New(memstore.New())
	for i, identifier := range []string{inner, outer} {
		m := httpthrottle.New(th, httpthrottle.Source{}.PerAddress(identifier, i+1, time.Minute))
		m.Public = []string{"address"}
		h = m.Handler(h)
	}
	return h
}

func TestMiddlewaresInsideEachOtherTellPoliciesOfDifferentNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := nested("site", "search")
		w := get(h)
		require.Equal(t, []string{`"address";q=2;w=60`, `"search/address";q=1;w=60`}, w.Header()[policies])
		require.Equal(t, []string{`"address";r=1;t=60`, `"search/address";r=0;t=60`}, w.Header()[limits])

		w = get(h)
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, []string{`"address";r=0;t=60`, `"search/address";r=0;t=60`}, w.Header()[limits])
		require.Contains(t, w.Body.String(), `"violated-policies":["search/address"]`)

		w = get(h)
		require.Equal(t, []string{`"address";r=0;t=60`}, w.Header()[limits])
		require.Contains(t, w.Body.String(), `"violated-policies":["address"]`)
	})
}

func TestNamesThatOtherMiddlewaresHaveTakenAreNotToldTwice(t *testing.T) {
	with := func(identifier string, names ...string) *httpthrottle.Middleware {
		rule := throttler.Rule{Identifier: identifier}
		for _, name := range names {
			rule.Either = append(rule.Either, throttler.Condition{Name: name, Max: 1, TTL: time.Minute})
		}
		m := withRule(rule)
		m.Public = names
		return m
	}
	for _, test := range []struct {
		outer, middle, inner *httpthrottle.Middleware
		want                 []string
	}{
		{with("x", "a"), with("x", "a"), with("x", "a"), []string{`"a";q=1;w=60`, `"x/a";q=1;w=60`}},
		{with("x", "a", "b"), with("y", "b"), with("z", "c"), []string{`"a";q=1;w=60, "b";q=1;w=60`, `"y/b";q=1;w=60`, `"c";q=1;w=60`}},
		{with("x", `a", "b`), with("x", "b"), with("x", "a"), []string{`"a\", \"b";q=1;w=60`, `"b";q=1;w=60`, `"a";q=1;w=60`}},
	} {
		require.Equal(t, test.want, get(test.outer.Handler(test.middle.Handler(test.inner.Handler(hello)))).Header()[policies])
	}
}
