package httpthrottle_test

import (
	"bytes"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
)

// A line is a connection that requests come over, with no network.
type line func() *httptest.ResponseRecorder

// lines returns a function that opens connections to c.
func lines(t *testing.T, c *httpthrottle.Connections) (open func() line) {
	t.Helper()
	h := c.Handler(hello)
	return func() line {
		ctx := c.ConnContext(t.Context(), nil)
		return func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
			return w
		}
	}
}

func TestConnectionRateIsTakenOverTheLastRequests(t *testing.T) {
	const s = time.Second
	type step struct {
		at    time.Duration
		retry string // Retry-After of a refused request; empty: it is allowed
	}
	for name, test := range map[string]struct {
		max     int
		ttl     time.Duration
		minimum int
		steps   []step
	}{
		"the window": {3, 10 * s, 0, []step{
			{0, ""}, {1 * s, ""}, {2 * s, ""},
			{2 * s, "8"}, {9 * s, "1"},
			{10 * s, ""}, {10 * s, "1"}, {11 * s, ""}, {11 * s, "1"}, {12 * s, ""}, {12 * s, "8"},
		}},
		"the window of one": {1, 10 * s, 0, []step{
			{0, ""}, {9999 * time.Millisecond, "1"}, {10 * s, ""}, {10 * s, "10"},
		}},
		"a minimum below it: the mean rate of all": {10, 10 * s, 2, []step{
			{0, ""}, {0, ""}, {0, "2"}, {1 * s, "1"}, {2 * s, ""}, {2 * s, "1"}, {3 * s, ""}, {10 * s, ""}, {10 * s, ""}, {10 * s, ""},
		}},
		"a minimum above it: a burst is forgiven, then the window": {2, 10 * s, 5, []step{
			{0, ""}, {0, ""}, {0, ""}, {0, ""}, {1 * s, ""}, {1 * s, "9"}, {10 * s, ""}, {10 * s, "1"}, {11 * s, ""}, {11 * s, "9"},
		}},
		"a minimum of one": {4, 4 * s, 1, []step{
			{0, ""}, {0, "1"}, {500 * time.Millisecond, "1"}, {1 * s, ""}, {1 * s, "1"}, {2 * s, ""},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := httpthrottle.NewConnections(test.max, test.ttl)
				c.Minimum, c.Delay = test.minimum, -1
				request := lines(t, c)()
				start := time.Now()
				for i, step := range test.steps {
					time.Sleep(time.Until(start.Add(step.at)))
					w := request()
					require.Equal(t, step.retry, w.Header().Get("Retry-After"), "step %d", i)
					require.Equal(t, step.retry == "", w.Code == http.StatusOK, "step %d", i)
				}
			})
		})
	}
}

// Whatever comes when: no more than max in any time of ttl, all that may be is
// allowed, and Retry-After is when it may be.
func TestConnectionNeverAllowsMoreThanItsRate(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		limit, ttl := 1+random.IntN(8), time.Duration(1+random.IntN(20))*time.Second
		synctest.Test(t, func(t *testing.T) {
			c := httpthrottle.NewConnections(limit, ttl)
			c.Delay = -1
			var retry time.Duration
			c.Answer = func(_ http.ResponseWriter, _ *http.Request, d throttler.Decision) { retry = d.RetryAfter }
			request := lines(t, c)()
			var allowed []time.Time
			for range 300 {
				time.Sleep(time.Duration(random.ExpFloat64() * float64(ttl) / float64(2*limit)))
				retry = 0
				request()
				full := len(allowed) >= limit && time.Since(allowed[len(allowed)-limit]) < ttl
				require.Equal(t, full, retry > 0)
				if full {
					require.Equal(t, ttl-time.Since(allowed[len(allowed)-limit]), retry)
					continue
				}
				allowed = append(allowed, time.Now())
			}
		})
	}
}

func TestConnectionRefusalIs503AfterADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request := lines(t, httpthrottle.NewConnections(1, time.Minute))()
		start := time.Now()
		request()
		require.Zero(t, time.Since(start))
		w := request()
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Equal(t, "59", w.Header().Get("Retry-After"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		require.JSONEq(t, `{
			"title": "Service Unavailable",
			"status": 503,
			"detail": "Too many requests on this connection.",
			"messages": ["Too many requests on this connection."],
			"retry_after": 59
		}`, w.Body.String())
	})
}

func TestConnectionRefusalIsSettable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := httpthrottle.NewConnections(1, time.Minute)
		c.Status, c.Delay = http.StatusTooManyRequests, 3*time.Second
		c.Answer = func(w http.ResponseWriter, r *http.Request, d throttler.Decision) {
			assert.Equal(t, throttler.Blocked, d.Status)
			assert.Equal(t, 57*time.Second, d.RetryAfter)
			assert.Equal(t, 57*time.Second, d.Outcomes[0].RetryAfter)
			assert.Equal(t, 57*time.Second, d.Outcomes[0].ResetAfter)
			w.Header().Set("Server", "test")
			c.WriteAnswer(w, r, d)
		}
		request := lines(t, c)()
		request()
		w := request()
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "test", w.Header().Get("Server"))
	})
}

func TestManyRequestsAtOnceOfAConnectionAreCountedExactly(t *testing.T) {
	c := httpthrottle.NewConnections(100, time.Hour)
	c.Delay = -1
	request := lines(t, c)()
	var allowed atomic.Int64
	var requests sync.WaitGroup
	for range 20 {
		requests.Go(func() {
			for range 50 {
				if request().Code == http.StatusOK {
					allowed.Add(1)
				}
			}
		})
	}
	requests.Wait()
	require.EqualValues(t, 100, allowed.Load())
}

func TestServerWithoutConnContextIs500(t *testing.T) {
	var logged bytes.Buffer
	c := httpthrottle.NewConnections(1, time.Second)
	server := httptest.NewUnstartedServer(c.Handler(hello))
	server.Config.ErrorLog = log.New(&logged, "", 0)
	server.Start()
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	response.Body.Close()
	server.Close() // waits for the handler
	require.Equal(t, http.StatusInternalServerError, response.StatusCode)
	require.Contains(t, logged.String(), "ConnContext")
}

func TestConnectionsMisusePanics(t *testing.T) {
	require.PanicsWithValue(t, "httpthrottle: NewConnections(0, 1s), want a max of 1 or more, and a positive ttl", func() { httpthrottle.NewConnections(0, time.Second) })
	require.Panics(t, func() { httpthrottle.NewConnections(1, 0) })
	require.Panics(t, func() { httpthrottle.NewConnections(1, 1).Handler(nil) })
}

// Over real connections: the requests of one are limited together, and a new
// connection starts again.
func TestRealConnections(t *testing.T) {
	eachProtocol(t, func(t *testing.T, http2 bool) {
		c := httpthrottle.NewConnections(5, time.Hour)
		c.Delay = 20 * time.Millisecond
		server := httptest.NewUnstartedServer(c.Handler(hello))
		server.Config.ConnContext = c.ConnContext
		var opened atomic.Int64
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		server.EnableHTTP2 = http2
		if http2 {
			server.StartTLS()
		} else {
			server.Start()
		}
		defer server.Close()
		client := server.Client()
		for connection := range 2 {
			for i := range 8 {
				start := time.Now()
				response, err := client.Get(server.URL)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, response.Body)
				require.NoError(t, err)
				response.Body.Close()
				require.Equal(t, http2, response.ProtoMajor == 2)
				if i < 5 {
					require.Equal(t, http.StatusOK, response.StatusCode)
					continue
				}
				require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
				require.Regexp(t, `^(3600|35\d\d)$`, response.Header.Get("Retry-After"))
				require.GreaterOrEqual(t, time.Since(start), c.Delay)
			}
			require.EqualValues(t, connection+1, opened.Load(), "a refusal does not close the connection")
			client.CloseIdleConnections()
		}
	})
}

// The records of a connection go with it: after many connections there is no
// more in memory than before.
func TestRecordsDieWithTheirConnection(t *testing.T) {
	c := httpthrottle.NewConnections(1000, time.Hour)
	server := httptest.NewUnstartedServer(c.Handler(hello))
	server.Config.ConnContext = c.ConnContext
	server.Start()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	visit := func(n int) {
		for range n {
			response, err := client.Get(server.URL)
			require.NoError(t, err)
			response.Body.Close()
		}
	}
	visit(20)
	before, goroutines := heap(), runtime.NumGoroutine()
	visit(200)
	require.Less(t, heap(), before+1<<20)
	require.Less(t, runtime.NumGoroutine(), goroutines+20)
}
