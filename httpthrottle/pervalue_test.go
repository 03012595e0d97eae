package httpthrottle_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// limited returns the Middlewares by rule, whose Value is the client's address: of New, and of
// PerValue with and without a Decision. Each has a Throttler of its own.
func limited(t *testing.T, rule throttler.Rule, open func() *throttler.Throttler) map[string]*httpthrottle.Middleware {
	var source httpthrottle.Source
	all := map[string]*httpthrottle.Middleware{}
	all["New"] = httpthrottle.New(open(), func(r *http.Request) throttler.Rule {
		rule := rule
		rule.Either = []throttler.Condition{rule.Either[0]}
		rule.Either[0].Value = source.Key(r)
		return rule
	})
	for _, name := range []string{"PerValue", "PerValue, NoDecision"} {
		limit, err := open().Limit(rule)
		require.NoError(t, err)
		all[name] = httpthrottle.PerValue(limit, source.Key)
		all[name].NoDecision = name != "PerValue"
	}
	return all
}

func inMemory() *throttler.Throttler { return throttler.New(memstore.New()) }

func TestPerValueAnswersAsNewDoes(t *testing.T) {
	rule := func(c throttler.Condition, change func(*throttler.Rule)) throttler.Rule {
		c.Name, c.Max, c.TTL = "address", max(c.Max, 2), time.Minute
		r := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
		if change != nil {
			change(&r)
		}
		return r
	}
	for name, test := range map[string]struct {
		rule   throttler.Rule
		change func(*httpthrottle.Middleware)
	}{
		"a window":  {rule(throttler.Condition{Message: "Slow down."}, nil), nil},
		"a bucket":  {rule(throttler.Condition{Algorithm: throttler.LeakyBucket}, nil), nil},
		"a cost":    {rule(throttler.Condition{Max: 10, Cost: 4}, nil), nil},
		"a ban":     {rule(throttler.Condition{}, func(r *throttler.Rule) { r.Lockout = time.Hour }), nil},
		"in shadow": {rule(throttler.Condition{}, func(r *throttler.Rule) { r.Shadow = true }), nil},
		"public":    {rule(throttler.Condition{}, nil), func(m *httpthrottle.Middleware) { m.Public, m.XRateLimit = []string{"address"}, true }},
		"another status": {rule(throttler.Condition{}, nil), func(m *httpthrottle.Middleware) {
			m.Status = http.StatusForbidden
		}},
		"an answer": {rule(throttler.Condition{}, nil), func(m *httpthrottle.Middleware) {
			m.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
				of, _ := httpthrottle.DecisionFrom(r.Context())
				fmt.Fprint(w, d.Status, d.Messages, d.RetryAfter, d.Outcomes[0], of.RetryAfter)
			}
		}},
		"looks": {rule(throttler.Condition{}, nil), func(m *httpthrottle.Middleware) {
			m.Public, m.Peek = []string{"address"}, func(r *http.Request) bool { return r.RemoteAddr == "203.0.113.9:1" }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var handlers []http.Handler
				for _, m := range limited(t, test.rule, inMemory) {
					if test.change != nil {
						test.change(m)
					}
					handlers = append(handlers, m.Handler(hello))
				}
				for i := range 12 {
					var first *httptest.ResponseRecorder
					for _, h := range handlers {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, request(fmt.Sprintf("203.0.113.%d:1", 8+i%2)))
						if first == nil {
							first = w
						}
						require.Equal(t, first.Code, w.Code, "request %d", i)
						require.Equal(t, first.Body.String(), w.Body.String(), "request %d", i)
						require.Equal(t, first.Header(), w.Header(), "request %d", i)
					}
					time.Sleep(7*time.Second + 100*time.Millisecond)
				}
			})
		})
	}
}

func TestNoDecisionHandsOnTheRequestItself(t *testing.T) {
	rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "address", Max: 9, TTL: time.Minute}}}
	for name, m := range limited(t, rule, inMemory) {
		for _, none := range []bool{false, true} {
			m.NoDecision = none
			r := request("203.0.113.9:1")
			m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
				_, ok := httpthrottle.DecisionFrom(q.Context())
				require.Equal(t, !none, ok, name)
				require.Equal(t, none, q == r, name)
			})).ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	rule.Either[0].Algorithm = throttler.InFlight
	m := withRule(rule)
	m.NoDecision = true
	m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_, ok := httpthrottle.DecisionFrom(q.Context())
		require.False(t, ok)
	})).ServeHTTP(httptest.NewRecorder(), request("203.0.113.9:1"))
}

func TestWhatIsUndecidedIsRefusedOnRequestOnly(t *testing.T) {
	rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "address", Max: 1, TTL: time.Minute}}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		client, fallback throttler.Client
		ctx              context.Context
		refuse           bool
		statuses         []int
		text             string
	}{
		"an overload":                 {failingStore{errOverloaded}, nil, t.Context(), false, []int{200, 200, 200}, ""},
		"an overload, refused":        {failingStore{errOverloaded}, nil, t.Context(), true, []int{503, 503, 503}, "The server has too many requests to decide this one."},
		"an overload with a fallback": {failingStore{errOverloaded}, memstore.New(), t.Context(), true, []int{200, 429, 429}, ""},
		"an outage":                   {failingStore{throttler.ErrUnavailable}, nil, t.Context(), true, []int{200, 200, 200}, ""},
		"a request that has ended":    {memstore.New(), nil, ended, false, []int{503, 503, 503}, "The request ended before it was decided."},
	} {
		for middleware, m := range limited(t, rule, func() *throttler.Throttler {
			th := throttler.New(test.client)
			th.Fallback = test.fallback
			return th
		}) {
			m.RefuseOverloaded, m.Status = test.refuse, http.StatusTooManyRequests
			m.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
				require.NotNil(t, test.fallback, "503 is no refusal by the rule")
				m.WriteAnswer(w, r, d)
			}
			h := m.Handler(hello)
			for i, status := range test.statuses {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, request(fmt.Sprintf("203.0.113.%d:1", len(middleware))).WithContext(test.ctx)) // they share a fallback
				require.Equal(t, status, w.Code, "%s: %s: request %d", name, middleware, i)
				if status == http.StatusServiceUnavailable {
					require.Equal(t, "1", w.Header().Get("Retry-After"))
					require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
					require.Contains(t, w.Body.String(), test.text)
				}
			}
		}
	}
}

func TestPerValueWithoutADecisionAllocatesNothing(t *testing.T) {
	rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "address", Max: throttler.MaxHits, TTL: time.Hour}}}
	m := limited(t, rule, inMemory)["PerValue, NoDecision"]
	h, r, w := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), clients(1)[0], &discard{header: make(http.Header)}
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }), 1.0) // of -race
}

func TestPerValueWantsALimitAndAValue(t *testing.T) {
	limit, err := throttler.New(memstore.New()).Limit(throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "a", Max: 1, TTL: time.Second}}})
	require.NoError(t, err)
	require.PanicsWithValue(t, "httpthrottle: PerValue with a nil Limit", func() { httpthrottle.PerValue(nil, httpthrottle.Source{}.Key) })
	require.PanicsWithValue(t, "httpthrottle: PerValue with a nil value", func() { httpthrottle.PerValue(limit, nil) })
}
