package httpthrottle_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
)

// backends are the clients over which a limit must hold, as they are by default. But their
// timeouts may pass because the machine is busy.
var backends = map[string]func(t *testing.T, addr string) throttler.Client{
	"plain": func(t *testing.T, addr string) throttler.Client {
		client := memcache.New(addr)
		client.Timeout = patience
		t.Cleanup(func() { client.Close() })
		return client
	},
	"pool": func(t *testing.T, addr string) throttler.Client {
		client, err := pool.New(addr)
		require.NoError(t, err)
		client.Timeout, client.DialTimeout = patience, patience
		t.Cleanup(func() { client.Close() })
		return client
	},
}

const patience = 20 * time.Second

// A burst is an overload and not an outage: the server answers, and many
// requests at once do not get past the limit.
func TestBurstFromOneAddressLetsExactlyItsLimitThrough(t *testing.T) {
	const limit = 20
	for name, backend := range backends {
		for _, connections := range []int{1500, 3000} {
			t.Run(fmt.Sprintf("client=%s/connections=%d", name, connections), func(t *testing.T) {
				client := backend(t, servertest.NewMemcached(t).Addr)
				var passed atomic.Int64
				th := throttler.New(client)
				th.QueueTimeout = patience // of the plain one, for the same reason
				m := httpthrottle.New(th, httpthrottle.Source{}.PerAddress("burst", limit, time.Hour))
				server := httptest.NewServer(m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					passed.Add(1)
					d, _ := httpthrottle.DecisionFrom(r.Context())
					assert.NoError(t, d.Err, "it failed open")
				})))
				defer server.Close()

				requests := burst(t, server.URL, connections, 200*time.Millisecond)
				t.Logf("%d requests, %d passed", requests, passed.Load())
				require.EqualValues(t, limit, passed.Load())
			})
		}
	}
}

// burst sends requests over n connections at once, over each one after the other, for that long
// and at least one. It returns how many were answered.
func burst(t *testing.T, url string, n int, length time.Duration) int64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: n, MaxIdleConnsPerHost: n}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var answered atomic.Int64
	var all sync.WaitGroup
	for end := time.Now().Add(length); n > 0; n-- {
		all.Go(func() {
			for first := true; first || time.Now().Before(end); first = false {
				response, err := client.Get(url)
				if !assert.NoError(t, err) {
					return
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				assert.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, response.StatusCode)
				answered.Add(1)
			}
		})
	}
	all.Wait()
	return answered.Load()
}
