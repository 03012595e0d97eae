package pool_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// guarded returns a memcached that wants a login, and the file of its users.
func guarded(t *testing.T, users string) (file string, start func() (*pool.Pool, *servertest.Memcached)) {
	file = filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte(users), 0o600))
	return file, func() (*pool.Pool, *servertest.Memcached) {
		server := servertest.NewMemcached(t, "-Y", file)
		return patient(t, server.Addr), server
	}
}

func TestLogin(t *testing.T) {
	file, start := guarded(t, "throttler:secret\n")
	p, server := start()
	p.User, p.Password = "throttler", "secret"
	require.NoError(t, p.Add(&memcache.Item{Key: "key", Expiration: 600}))
	require.True(t, run(t, p, &scripted{key: "other", propose: always(valued("1", 0))}).Stored)

	for _, wrong := range [][2]string{{"throttler", "guess"}, {"", ""}, {"throttler", ""}} {
		p := patient(t, server.Addr)
		p.User, p.Password = wrong[0], wrong[1]
		_, err := p.Get("key")
		require.ErrorContains(t, err, "CLIENT_ERROR", "%q", wrong)
		require.ErrorIs(t, err, throttler.ErrUnavailable)
		require.NotContains(t, err.Error(), "guess", "a password in an error")
		require.NotErrorIs(t, err, upstream.ErrDown)
	}

	// A password that is changed concerns connections that are made from then on.
	require.NoError(t, os.WriteFile(file, []byte("throttler:changed\n"), 0o600))
	server.Kill()
	server.Start()
	_, err := p.Get("key")
	require.ErrorContains(t, err, "CLIENT_ERROR")
	changed := patient(t, server.Addr)
	changed.User, changed.Password = "throttler", "changed"
	_, err = changed.Get("key")
	require.Equal(t, memcache.ErrCacheMiss, err)
}

// A server that wants no login keeps no password.
func TestLoginOnAServerThatWantsNone(t *testing.T) {
	server := servertest.NewMemcached(t)
	p := patient(t, server.Addr)
	p.User, p.Password = "throttler", "secret"
	require.NoError(t, p.Add(&memcache.Item{Key: "key", Expiration: 600}))
	require.Empty(t, server.Command(t, "get login"))
}

// What is behind a proxy may restart while the connection to the proxy stays, so
// that no token may be remembered: the record is read first.
func TestBehindAProxyARecordIsReadFirst(t *testing.T) {
	server := servertest.NewMemcached(t)
	for name, setting := range map[string]struct {
		proxy   bool
		version string
	}{
		"by the option":         {proxy: true},
		"mcrouter by its name":  {version: "VERSION mcrouter 0.41.0-master"},
		"another one by a name": {version: "VERSION envoy"},
		"an error":              {version: "ERROR"},
		"twemproxy before 0.5":  {version: hangsUpOnVersion},
	} {
		t.Run(name, func(t *testing.T) {
			p := patient(t, greeter(t, server.Addr, setting.version))
			p.Proxy = setting.proxy
			for i, token := range []bool{false, true, true, true, true, true, true} {
				x := &scripted{key: "key" + name}
				x.key = fmt.Sprintf("key%x", name)
				x.propose = func(turn exchange.Turn) *memcache.Item {
					item := valued(fmt.Sprint(i), 0)
					if turn.Found != nil {
						item.CasID = turn.Found.CasID
					}
					return item
				}
				result := run(t, p, x)
				require.NoError(t, result.Err)
				require.True(t, result.Stored)
				require.Equal(t, fmt.Sprint(i), string(result.Found.Value))
				require.Zero(t, result.Conn)
				require.Len(t, x.turns, 1)
				require.True(t, x.turns[0].Known)
				require.Zero(t, x.turns[0].Conn)
				require.Equal(t, token, x.turns[0].Found != nil)

				x.propose = nil
				result = run(t, p, x)
				require.NoError(t, result.Err)
				require.True(t, result.Read)
				require.Equal(t, fmt.Sprint(i), string(result.Found.Value))
			}
			atOnce(50, func(i int) {
				x := &scripted{key: fmt.Sprintf("key%x-%d", name, i), propose: always(valued("1", 0))}
				p.Exchange(t.Context(), x)
				assert.True(t, x.results[0].Stored)
			})
		})
	}
}

const hangsUpOnVersion = "hangs up"

// It may be a load balancer that hangs up while the server restarts.
func TestAMemcachedThatHangsUpOnceIsNoProxy(t *testing.T) {
	server := servertest.NewMemcached(t)
	var conns atomic.Int64
	cut := make(chan struct{})
	p := patient(t, servertest.Serve(t, func(conn net.Conn) {
		switch conns.Add(1) {
		case 1:
			go splice(conn, server.Addr)
			<-cut
		case 2: // hangs up when it is asked
			conn.Read(make([]byte, 100))
		default:
			splice(conn, server.Addr)
		}
	}))
	require.NotZero(t, run(t, p, &scripted{key: "key"}).Conn)
	close(cut)
	require.Eventually(t, func() bool {
		r := run(t, p, &scripted{key: "key"})
		require.True(t, r.Err != nil || r.Conn != 0, "taken for a proxy")
		return conns.Load() >= 3 && r.Err == nil
	}, 20*time.Second, time.Millisecond)
}

func TestTheAddressOfAMemcachedMayBecomeThatOfAProxy(t *testing.T) {
	server := servertest.NewMemcached(t)
	var moved atomic.Bool
	cut := make(chan struct{})
	p := patient(t, servertest.Serve(t, func(conn net.Conn) {
		if moved.Load() {
			greet(conn, server.Addr, hangsUpOnVersion)
			return
		}
		go splice(conn, server.Addr)
		<-cut
	}))
	require.NotZero(t, run(t, p, &scripted{key: "key"}).Conn)
	moved.Store(true)
	close(cut)
	require.Eventually(t, func() bool {
		r := run(t, p, &scripted{key: "key"})
		return r.Err == nil && r.Conn == 0
	}, 20*time.Second, time.Millisecond)
}

// greeter forwards to the server at addr, but answers for its version by itself, if
// version is not empty.
func greeter(t *testing.T, addr, version string) string {
	return servertest.Serve(t, func(conn net.Conn) { greet(conn, addr, version) })
}

func greet(conn net.Conn, addr, version string) {
	if version == "" {
		splice(conn, addr)
		return
	}
	first := make([]byte, len("version\r\n"))
	n, _ := conn.Read(first)
	switch {
	case string(first) != "version\r\n":
		there, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		there.Write(first[:n])
		join(conn, there)
	case version == hangsUpOnVersion:
	default:
		fmt.Fprintf(conn, "%s\r\n", version)
		splice(conn, addr)
	}
}

// A network may give out IPv6 addresses that lead nowhere.
func TestIPv4IsTriedBeforeTheTimeIsOver(t *testing.T) {
	p, err := pool.New(one)
	require.NoError(t, err)
	defer p.Close()
	p.DialTimeout = 100 * time.Millisecond
	require.Equal(t, 25*time.Millisecond, p.Dialer("key").FallbackDelay)
}

func TestADialHasADeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var left time.Duration
		s := &station{answer: misses, dial: func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			<-ctx.Done()
			return ctx.Err()
		}}
		p := s.newPool(t, one)
		p.DialTimeout = 5 * time.Second
		require.Equal(t, p.DialTimeout, took(func() {
			_, err := p.Get("key")
			require.Error(t, err)
		}))
		require.InDelta(t, p.DialTimeout, left, float64(time.Second))
	})
}
