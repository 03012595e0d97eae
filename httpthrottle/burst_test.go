package httpthrottle_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
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

				b := burst{connections: dialAll(t, server.Listener.Addr().String(), connections)}
				require.NoError(t, b.run(time.Now().Add(200*time.Millisecond)))
				t.Logf("%d requests, %d passed", b.requests.Load(), passed.Load())
				require.GreaterOrEqual(t, b.requests.Load(), int64(connections))
				require.EqualValues(t, limit, passed.Load())
			})
		}
	}
}

// dialAll opens n connections to addr that last for a minute at most.
func dialAll(t *testing.T, addr string, n int) []net.Conn {
	t.Helper()
	connections := make([]net.Conn, 0, n)
	for range n {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		connections = append(connections, conn)
	}
	return connections
}

// A burst sends requests over all of its connections at once, over each one after
// the other.
type burst struct {
	connections []net.Conn
	requests    atomic.Int64 // that were answered
}

// run goes on until a time, and over each connection until one request at least
// has been answered. It returns the first error.
func (b *burst) run(until time.Time) error {
	errs := make(chan error, len(b.connections))
	var wg sync.WaitGroup
	for _, conn := range b.connections {
		wg.Go(func() { errs <- b.hammer(conn, until) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *burst) hammer(conn net.Conn, until time.Time) error {
	answers := bufio.NewReader(conn)
	for {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
			return fmt.Errorf("answered %s", response.Status)
		}
		b.requests.Add(1)
		if time.Now().After(until) {
			return nil
		}
	}
}
