package httpthrottle_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
)

// byItems returns a Middleware that allows 10 items a minute, of which a request
// takes as many as its query says, and the tally that observes it.
func byItems() (*httpthrottle.Middleware, *tally.Tally) {
	counts := tally.New()
	th := throttler.New(memstore.New())
	th.Observe = counts.Observe
	m := httpthrottle.New(th, func(r *http.Request) throttler.Rule {
		cost, err := strconv.Atoi(r.URL.Query().Get("items"))
		if err != nil {
			cost = -1
		}
		return throttler.Rule{Identifier: "test", Either: []throttler.Condition{
			{Name: "items", Value: "v", Max: 10, TTL: time.Minute, Cost: cost, Message: "Ten items a minute."},
		}}
	})
	m.Public = []string{"items"}
	return m, counts
}

// order returns the answer of h to a request for items.
func order(h http.Handler, items string, accept ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/?items="+items, nil)
	r.Header["Accept"] = accept
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestFieldsAndTallyAgreeWithCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, counts := byItems()
		m.XRateLimit = true
		h := m.Handler(hello)
		for i, step := range []struct {
			sleep      time.Duration
			items      string
			status     int
			limit      string
			x          string
			retryAfter string
		}{
			{0, "11", 429, `"items";r=10;t=60`, "10 10 60", ""}, // it never fits
			{0, "4", 200, `"items";r=6;t=60`, "10 6 60", ""},
			{0, "11", 429, `"items";r=6;t=60`, "10 6 60", ""},
			{20 * time.Second, "4", 200, `"items";r=2;t=60`, "10 2 60", ""},
			{0, "3", 429, `"items";r=2;t=40`, "10 2 40", "40"}, // some are left, and do not do
			{0, "7", 429, `"items";r=2;t=60`, "10 2 60", "60"},
			{0, "2", 200, `"items";r=0;t=40`, "10 0 40", ""},
			{0, "1", 429, `"items";r=0;t=40`, "10 0 40", "40"},
			{0, "11", 429, `"items";r=0;t=40`, "10 0 40", ""},
			{40 * time.Second, "4", 200, `"items";r=0;t=20`, "10 0 20", ""},
			{time.Hour, "10", 200, `"items";r=0;t=60`, "10 0 60", ""},
		} {
			time.Sleep(step.sleep)
			w := order(h, step.items)
			require.Equal(t, step.status, w.Code, "step %d", i)
			require.Equal(t, `"items";q=10;w=60`, w.Header().Get(policies), "step %d", i)
			require.Equal(t, step.limit, w.Header().Get(limits), "step %d", i)
			require.Equal(t, step.x, xFields(w), "step %d", i)
			require.Equal(t, step.retryAfter, w.Header().Get("Retry-After"), "step %d", i)
		}
		rules := talliedRules(t, counts)
		require.Len(t, rules, 1)
		require.EqualValues(t, 5, rules[0].Authorized)
		require.EqualValues(t, 6, rules[0].Blocked)
		require.EqualValues(t, 6, rules[0].Conditions[0].Blocked)
	})
}

func TestCostThatNeverFitsIsRefusedForGood(t *testing.T) {
	for _, items := range []string{"11", "-1", "nonsense", "1000000000"} {
		t.Run(items, func(t *testing.T) {
			m, counts := byItems()
			m.Failed = func(http.ResponseWriter, *http.Request, error) { t.Error("the rule is no mistake") }
			h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handed on") }))
			w := order(h, items)
			require.Equal(t, http.StatusTooManyRequests, w.Code)
			require.NotContains(t, w.Header(), "Retry-After")
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			require.JSONEq(t, `{
				"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
				"title": "Quota Exceeded",
				"status": 429,
				"detail": "Ten items a minute.",
				"violated-policies": ["items"],
				"messages": ["Ten items a minute."]
			}`, w.Body.String())
			require.Equal(t, `"items";q=10;w=60`, w.Header().Get("RateLimit-Policy"))
			require.Equal(t, `"items";r=10;t=60`, w.Header().Get("RateLimit"))
			require.Contains(t, order(h, items, "text/plain").Body.String(),
				"Ten items a minute.\nThis request is larger than the limit ever allows.\n")

			rules := talliedRules(t, counts)
			require.Len(t, rules, 1)
			require.EqualValues(t, 2, rules[0].Blocked, "the tally says what was answered")
			require.Zero(t, rules[0].Failed)
		})
	}
}

func TestRefusalForGoodStaysOneAfterADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := byItems()
		m.Delay = time.Second
		w := order(m.Handler(hello), "11")
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.NotContains(t, w.Header(), "Retry-After")
	})
}

func TestDelayThatOutlastsTheRefusalStillTellsWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := perMinute(1)
		m.Delay = time.Hour
		w := get(full(t, m), "Accept", "text/plain")
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Contains(t, w.Body.String(), "Try again in 1 second.\n")
	})
}

func TestRetryAfterOfAHandlersOwnAnswer(t *testing.T) {
	for _, test := range []struct {
		retryAfter time.Duration
		want       []string
	}{
		{0, nil},
		{1, []string{"1"}},
		{time.Second, []string{"1"}},
		{time.Second + time.Millisecond, []string{"2"}},
		{time.Minute + 99*time.Microsecond, []string{"60"}}, // no second more for a record's resolution
		{time.Minute + 100*time.Microsecond, []string{"61"}},
		{100 * 365 * 24 * time.Hour, []string{"3153600000"}},
	} {
		t.Run(fmt.Sprint(test.retryAfter), func(t *testing.T) {
			w := httptest.NewRecorder()
			httpthrottle.SetRetryAfter(w, throttler.Decision{RetryAfter: test.retryAfter})
			require.Equal(t, test.want, w.Header()["Retry-After"])
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		})
	}
}

// A talliedRule is what a Tally says of a rule.
type talliedRule struct {
	Authorized, Blocked, Failed int
	Conditions                  []struct{ Blocked int }
}

func talliedRules(t *testing.T, counts *tally.Tally) []talliedRule {
	t.Helper()
	var s struct{ Rules []talliedRule }
	b, err := json.Marshal(counts)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &s))
	return s.Rules
}
