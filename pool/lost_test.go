package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answered reports whether a call had an answer, as far as its error tells.
func answered(err error) bool {
	return err == nil ||
		errors.Is(err, memcache.ErrCacheMiss) ||
		errors.Is(err, memcache.ErrNotStored) ||
		errors.Is(err, memcache.ErrCASConflict)
}

func TestAfterARestartNoCallIsLost(t *testing.T) {
	for name, restart := range map[string]func(*servertest.Memcached){
		"stopped": func(s *servertest.Memcached) { s.Stop(); s.Start() },
		"killed":  func(s *servertest.Memcached) { s.Kill(); s.Start() },
		"socket":  func(s *servertest.Memcached) { s.Kill(); s.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			start := servertest.NewMemcached
			if name == "socket" {
				start = servertest.NewMemcachedSocket
			}
			server := start(t)
			p := patient(t, server.Addr)
			for range 2 {
				for i := range 20 { // connections to go stale
					p.Add(item(fmt.Sprint("key", i)))
				}
				atOnce(20, func(i int) { p.Get(fmt.Sprint("key", i)) })
				swapped, err := p.Get("key0")
				require.NoError(t, err)

				restart(server)
				// It is empty, so that this is a miss and no conflict.
				require.ErrorIs(t, p.CompareAndSwap(swapped), memcache.ErrCacheMiss)
				atOnce(20, func(i int) {
					assert.NoError(t, p.Add(item(fmt.Sprint("key", i))))
				})
			}
			assert.Zero(t, p.Stats()[0].Failures)
		})
	}
}

// Not in a bubble, where nothing may be resolved first.
func TestNamesAreResolvedAtEachDial(t *testing.T) {
	s := &station{answer: misses}
	p := s.newPool(t, "localhost:11211")
	for range 3 {
		require.ErrorIs(t, p.Delete("key"), memcache.ErrCacheMiss)
		s.hangUp()
	}
	dialled := s.dialled()
	require.Len(t, dialled, 3)
	for _, addr := range dialled {
		require.Equal(t, "localhost:11211", addr, "the name, for the dialer to resolve")
	}
}

// has answers as a server that has an item at every key.
func has(conn net.Conn, request string) {
	var answer strings.Builder
	for _, key := range strings.Fields(request)[1:] {
		answer.WriteString("VALUE " + key + " 0 5 7\r\nvalue\r\n")
	}
	io.WriteString(conn, answer.String()+"END\r\n")
}

// parts returns a pool of several stations and three keys for each.
func parts(t *testing.T, stations map[string]*station) (*pool.Pool, map[string][]string) {
	var servers []string
	for server := range stations {
		servers = append(servers, server)
	}
	p, err := pool.New(servers...)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return stations[addr].DialContext(ctx, network, addr)
	}
	keys := make(map[string][]string)
	for i := range 200 {
		key := "key" + strings.Repeat("x", i)
		if server := p.Place(key); len(keys[server]) < 3 {
			keys[server] = append(keys[server], key)
		}
	}
	return p, keys
}

func TestADeadServerHidesNoOthersRecords(t *testing.T) {
	half := func(conn net.Conn, request string) { // one of its items, and nothing more
		io.WriteString(conn, "VALUE "+strings.Fields(request)[1]+" 0 5 7\r\nvalue\r\n")
	}
	refused := func(context.Context) error { return &net.OpError{Op: "dial", Err: net.ErrClosed} }
	bubble(t, func(t *testing.T) {
		p, keys := parts(t, map[string]*station{
			one: {answer: has}, two: {answer: half}, three: {dial: refused}, "192.0.2.4:1": {answer: misses},
		})
		asked := []string{"not a key"}
		for _, of := range keys {
			asked = append(asked, of...)
		}
		for range 2 * pool.DefaultBreakerFailures {
			items, err := p.GetMulti(asked)
			var multi *failure.MultiError
			require.ErrorAs(t, err, &multi)
			require.Len(t, items, 3, "items of the server that answers alone")
			for i := range 3 {
				require.Contains(t, items, keys[one][i])
				require.NoError(t, multi.KeyError(keys[one][i]))
				require.NoError(t, multi.KeyError(keys["192.0.2.4:1"][i]), "a miss")
				require.ErrorContains(t, multi.KeyError(keys[two][i]), two)
				require.ErrorContains(t, multi.KeyError(keys[three][i]), three)
			}
			require.ErrorIs(t, multi.KeyError("not a key"), memcache.ErrMalformedKey)
			require.NoError(t, multi.KeyError("not asked for"))
			require.Len(t, multi.Unwrap(), 3)
			require.ErrorIs(t, err, memcache.ErrMalformedKey)
			require.ErrorContains(t, err, "7 of 13 keys")
			require.ErrorContains(t, err, two)
			require.ErrorContains(t, err, three)
		}
		_, err := p.GetMulti(asked)
		require.ErrorIs(t, err, upstream.ErrDown)
		for _, stats := range p.Stats() {
			require.Equal(t, stats.Server == two || stats.Server == three, stats.Down, stats.Server)
			require.EqualValues(t, 3*(2*pool.DefaultBreakerFailures+1), stats.Calls)
		}
	})
}

func TestStatsAreThereBeforeTheFirstCall(t *testing.T) {
	p, err := pool.New(two, "unix:/run/memcached.sock", one)
	require.NoError(t, err)
	defer p.Close()
	assert.Equal(t, []pool.ServerStats{{Server: two}, {Server: "/run/memcached.sock"}, {Server: one}}, p.Stats())
}

func TestConcurrentUseAndClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: slowly(misses)}
		p := s.newPool(t, one, two, three)
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				for {
					for _, operation := range operations {
						if err := operation(p, "key"); !answered(err) {
							assert.ErrorIs(t, err, pool.ErrClosed)
							return
						}
					}
					p.Stats()
				}
			})
		}
		for range 10 {
			time.Sleep(100 * time.Millisecond) // time for each second attempt
			s.hangUp()
		}
		p.Close()
		calls.Wait()
	})
}

// A breaking connection takes what comes before the first add, then a number of bytes, and
// breaks.
type breaking struct {
	net.Conn
	bytes int
}

func (c *breaking) Write(b []byte) (int, error) {
	if !strings.Contains(string(b), "add ") {
		return c.Conn.Write(b)
	}
	return min(len(b), c.bytes), io.ErrClosedPipe
}

// A packet may be sent in part. Only what was sent may have been carried out.
func TestOnlyWritesThatWereSentAreUnknown(t *testing.T) {
	const each = len("add key00 7 600 4\r\nmine\r\n")
	for _, calls := range []int{0, 10} { // before, on the same connection
		for sent, unknown := range map[int]int{0: 0, 1: 1, each: 1, each + 1: 2, 2 * each: 2, 4 * each: 3} {
			bubble(t, func(t *testing.T) {
				s := &station{answer: misses}
				p := s.newPool(t, one)
				left := sent // by the first connection; nothing is by the second
				p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := s.DialContext(ctx, network, addr)
					c := &breaking{conn, left}
					left = 0
					return c, err
				}
				for range calls {
					p.Get("key")
				}
				xs := append(writes(numbered(3)...), &scripted{key: "read"})
				p.Exchange(context.Background(), xs...)
				for i, x := range xs {
					require.ErrorIs(t, result(t, x).Err, throttler.ErrUnavailable)
					require.Equal(t, i < unknown, result(t, x).Unknown, "exchange %d, %d bytes sent", i, sent)
				}
			})
		}
	}
}

// An ending connection ends with the first answer after that to the version: one Read
// returns both.
type ending struct {
	net.Conn
	greeted, ended bool
}

func (c *ending) Read(b []byte) (int, error) {
	if c.ended {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b)
	if c.greeted && err == nil {
		c.ended, err = true, io.EOF
	}
	c.greeted = true
	return n, err
}

// A pausing connection returns nothing, and no error, before each answer.
type pausing struct {
	net.Conn
	paused bool
}

func (c *pausing) Read(b []byte) (int, error) {
	c.paused = !c.paused
	if c.paused {
		return 0, nil
	}
	return c.Conn.Read(b)
}

// Read may return an answer together with an error, or nothing at all.
func TestAnswersAreTakenHoweverTheyAreRead(t *testing.T) {
	bubbles(t, map[string]func(net.Conn) net.Conn{
		"with the end":  func(conn net.Conn) net.Conn { return &ending{Conn: conn} },
		"after nothing": func(conn net.Conn) net.Conn { return &pausing{Conn: conn} },
	}, func(t *testing.T, wrap func(net.Conn) net.Conn) {
		s := &station{answer: has}
		p := s.newPool(t, one)
		p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := s.DialContext(ctx, network, addr)
			return wrap(conn), err
		}
		item, err := p.Get("key")
		require.NoError(t, err)
		require.Equal(t, "value", string(item.Value))
		require.Len(t, s.heard(), 1)
	})
}

// A stubborn connection ends a Write only when it is told to.
type stubborn struct {
	net.Conn
	release chan struct{}
}

func (c *stubborn) Write(b []byte) (int, error) {
	if !strings.HasPrefix(string(b), "version") {
		<-c.release
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// stubbornPool returns a pool over stubborn connections.
func (s *station) stubbornPool(t *testing.T) (p *pool.Pool, release chan struct{}) {
	release = make(chan struct{})
	p = s.newPool(t, one)
	p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := s.DialContext(ctx, network, addr)
		return &stubborn{conn, release}, err
	}
	return p, release
}

// A connection that is lost while the pool is being closed is no loss to be told of. Nor is
// an answer that makes no sense, but its caller is told of that.
func TestAConnectionThatEndsDuringCloseIsClosed(t *testing.T) {
	bubbles(t, map[string]func(s *station) (told string){
		"lost":    func(s *station) string { s.hangUp(); return pool.ErrClosed.Error() },
		"garbage": func(s *station) string { io.WriteString(s.conns[0], "TUESDAY\r\n"); return "TUESDAY" },
	}, func(t *testing.T, end func(*station) string) {
		s := &station{answer: misses}
		p, release := s.stubbornPool(t)
		done := make(chan error, 1)
		go func() { done <- p.Delete("key") }()
		synctest.Wait()
		told := end(s)
		synctest.Wait() // the reader has noticed, and waits for the writer to leave
		p.Close()
		require.Empty(t, done)
		close(release)
		require.ErrorContains(t, <-done, told)
	})
}

// A connection that was cut as the breaker opened may be buried when the server is back. It is
// no failure of that.
func TestAConnectionThatWasCutIsNoFailureLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		p.BreakerFailures = 1
		release := [...]chan struct{}{make(chan struct{}), make(chan struct{})}
		var dials atomic.Int64
		p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := s.DialContext(ctx, network, addr)
			if n := dials.Add(1); int(n) <= len(release) {
				conn = &stubborn{conn, release[n-1]}
			}
			return conn, err
		}
		silent := make(chan error, 1)
		go func() {
			_, err := p.Get("silent") // is written until it is released, and then lost
			silent <- err
		}()
		time.Sleep(2 * timeout)
		cut := make(chan error, 1)
		go func() {
			_, err := p.Get("cut")
			cut <- err
		}()
		time.Sleep(timeout / 2)
		close(release[0])
		require.Error(t, <-silent)
		synctest.Wait()
		require.True(t, p.Stats()[0].Down)
		time.Sleep(10 * pool.DefaultBreakerPause)
		require.False(t, p.Stats()[0].Down)
		close(release[1])
		require.ErrorIs(t, <-cut, upstream.ErrDown)
		require.False(t, p.Stats()[0].Down)
	})
}
