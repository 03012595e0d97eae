package httpthrottle_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func inFlightRule(*http.Request) throttler.Rule {
	return throttler.Rule{Identifier: "api", Either: []throttler.Condition{
		{Name: "busy", Max: 1, TTL: time.Second, Algorithm: throttler.InFlight},
	}}
}

// isBusy reports whether no other request may be under way.
func isBusy(t *testing.T, th *throttler.Throttler) bool {
	d, err := th.Peek(context.Background(), inFlightRule(nil))
	require.NoError(t, err)
	return d.Outcomes[0].Blocked
}

func TestARequestIsInFlightForAsLongAsItsHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		limit := httpthrottle.New(th, inFlightRule)
		limit.Public = []string{"busy"}
		ctx, leave := context.WithCancel(t.Context())
		handler := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Minute)
			assert.NoError(t, r.Context().Err())
			leave() // the client has gone, and the handler runs on
			assert.ErrorIs(t, r.Context().Err(), context.Canceled)
			time.Sleep(time.Minute)
			assert.True(t, isBusy(t, th))
			panic(http.ErrAbortHandler)
		}))
		w := httptest.NewRecorder()
		require.PanicsWithValue(t, http.ErrAbortHandler, func() {
			handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		})
		require.False(t, isBusy(t, th))
		require.Equal(t, `"busy";q=1;qu="concurrent-requests"`, w.Header().Get("RateLimit-Policy"))
	})
}

func TestAHandlerIsToldWhenItsLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		var cause error
		handler := httpthrottle.New(th, inFlightRule).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, th.Reset(r.Context(), inFlightRule(nil)))
			<-r.Context().Done()
			cause = context.Cause(r.Context())
		}))
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		require.ErrorIs(t, cause, throttler.ErrLeaseLost)
	})
}

func TestAHijackedConnectionIsInFlightUntilItsHandlerReturns(t *testing.T) {
	th := throttler.New(memstore.New())
	began, end := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(httpthrottle.New(th, inFlightRule).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer c.Close()
		close(began)
		<-end
		_, err = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		assert.NoError(t, err)
	})))
	defer server.Close()
	answered := make(chan error, 1)
	go func() {
		r, err := http.Get(server.URL)
		if err == nil {
			r.Body.Close()
		}
		answered <- err
	}()
	<-began
	require.True(t, isBusy(t, th))
	close(end)
	require.NoError(t, <-answered)
	require.Eventually(t, func() bool { return !isBusy(t, th) }, 10*time.Second, time.Millisecond)
}
