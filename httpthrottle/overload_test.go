package httpthrottle_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

var errOverloaded = fmt.Errorf("waited 1 s: %w", throttler.ErrOverloaded)

func overloaded(fallback throttler.Client) *httpthrottle.Middleware {
	th := throttler.New(failingStore{errOverloaded})
	th.Fallback = fallback
	return httpthrottle.New(th, httpthrottle.Source{}.PerAddress("test", 1, time.Minute))
}

func TestOverloadIsHandedOnUnlessToldOtherwise(t *testing.T) {
	h := overloaded(nil).Handler(hello)
	for range 3 {
		require.Equal(t, http.StatusOK, get(h).Code)
	}
}

func TestOverloadIsRefusedOnRequest(t *testing.T) {
	m := overloaded(nil)
	m.RefuseOverloaded = true
	m.Status = http.StatusForbidden
	m.Answer = func(http.ResponseWriter, *http.Request, throttler.Decision) {
		t.Error("this is no refusal by the rule")
	}
	h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handed on") }))
	w := get(h)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var problem map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
	require.Equal(t, "Service Unavailable", problem["title"])
	require.EqualValues(t, 503, problem["status"])
	require.Contains(t, problem["detail"], "too many requests")
}

func TestFallbackDecidesInAnOverload(t *testing.T) {
	m := overloaded(memstore.New())
	m.RefuseOverloaded = true
	h := m.Handler(hello)
	require.Equal(t, http.StatusOK, get(h).Code)
	require.Equal(t, http.StatusTooManyRequests, get(h).Code)
}

func TestOutageIsHandedOnThoughOverloadIsNot(t *testing.T) {
	m := httpthrottle.New(throttler.New(failingStore{throttler.ErrUnavailable}), httpthrottle.Source{}.PerAddress("test", 1, time.Minute))
	m.RefuseOverloaded = true
	require.Equal(t, http.StatusOK, get(m.Handler(hello)).Code)
}
