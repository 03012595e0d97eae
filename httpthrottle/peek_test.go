package httpthrottle_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
)

func TestARequestThatLooksIsToldWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := perMinute(2)
		m.Public, m.XRateLimit = []string{"address"}, true
		m.Peek = func(r *http.Request) bool { return r.Header.Get("Look") != "" }
		var d throttler.Decision
		h := m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { d, _ = httpthrottle.DecisionFrom(r.Context()) }))
		for i, step := range []struct {
			look   bool
			status int
			limit  string
			x      string
		}{
			{true, 200, `"address";r=2;t=60`, "2 2 60"},
			{true, 200, `"address";r=2;t=60`, "2 2 60"},
			{false, 200, `"address";r=1;t=60`, "2 1 60"},
			{true, 200, `"address";r=1;t=60`, "2 1 60"},
			{false, 200, `"address";r=0;t=60`, "2 0 60"},
			{true, 200, `"address";r=0;t=60`, "2 0 60"},
			{false, 429, `"address";r=0;t=60`, "2 0 60"},
			{true, 200, `"address";r=0;t=60`, "2 0 60"},
		} {
			var fields []string
			if step.look {
				fields = []string{"Look", "1"}
			}
			w := get(h, fields...)
			require.Equal(t, step.status, w.Code, "step %d", i)
			require.Equal(t, step.limit, w.Header().Get(limits), "step %d", i)
			require.Equal(t, step.x, xFields(w), "step %d", i)
			require.Equal(t, step.status == 429, w.Header().Get("Retry-After") != "")
		}
		require.Equal(t, throttler.Blocked, d.Status, "what Peek answers")
	})
}

func TestALookHoldsNothingInFlight(t *testing.T) {
	m := withRule(throttler.Rule{Identifier: "test", Either: []throttler.Condition{
		{Name: "running", Max: 1, TTL: time.Hour, Algorithm: throttler.InFlight},
	}})
	m.Peek = func(r *http.Request) bool { return r.Header.Get("Look") != "" }
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Look") != "" {
			require.Equal(t, http.StatusOK, get(m.Handler(hello)).Code)
			require.Equal(t, http.StatusOK, get(m.Handler(hello), "Look", "1").Code)
		}
	}))
	require.Equal(t, http.StatusOK, get(h, "Look", "1").Code)
}

func TestPreflightsPassOnRequest(t *testing.T) {
	preflight := []string{"Origin", "https://example.org", "Access-Control-Request-Method", "PUT"}
	for _, test := range []struct {
		pass   bool
		method string
		fields []string
		status int
	}{
		{true, http.MethodOptions, preflight, 200},
		{false, http.MethodOptions, preflight, 429},
		{true, http.MethodOptions, preflight[:2], 429},
		{true, http.MethodOptions, preflight[2:], 429},
		{true, http.MethodGet, preflight, 429},
	} {
		m := perMinute(1)
		m.PassPreflights = test.pass
		h := full(t, m)
		r := httptest.NewRequest(test.method, "/", nil)
		for i := 0; i < len(test.fields); i += 2 {
			r.Header.Set(test.fields[i], test.fields[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, test.status, w.Code, "%+v", test)
	}
}

// The race detector finds what writes to a request that others read.
func TestARequestThatIsSharedIsNotWrittenTo(t *testing.T) {
	h := perMinute(1).Handler(hello)
	r := request("203.0.113.9:1")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { h.ServeHTTP(httptest.NewRecorder(), r) })
	}
	all.Wait()
}
