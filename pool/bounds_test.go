package pool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// after answers after d.
func after(d time.Duration, answer func(net.Conn, string)) func(net.Conn, string) {
	return func(conn net.Conn, request string) {
		time.Sleep(d)
		answer(conn, request)
	}
}

// A server that answers, though more slowly than it is asked, is no server that is
// down. Who cannot be served in time is told so, in time.
func TestMoreThanAServerCanCarryIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const callers, each = 2 * pool.MaxInFlight, 10 * time.Millisecond
		s := &station{answer: after(each, misses)}
		p := s.newPool(t, one)
		p.QueueTimeout = 300 * time.Millisecond
		var served, overloaded atomic.Int64
		times := atOnce(callers, func(i int) {
			_, err := p.Get(fmt.Sprint("key", i))
			switch {
			case err == memcache.ErrCacheMiss:
				served.Add(1)
			case assert.ErrorIs(t, err, throttler.ErrOverloaded):
				assert.NotErrorIs(t, err, throttler.ErrUnavailable)
				overloaded.Add(1)
			}
		})
		for _, d := range times {
			require.LessOrEqual(t, d, p.QueueTimeout+timeout+each)
		}
		require.GreaterOrEqual(t, served.Load(), int64((p.QueueTimeout)/each))
		require.Equal(t, int64(callers), served.Load()+overloaded.Load())
		stats := p.Stats()[0]
		require.False(t, stats.Down)
		require.Zero(t, stats.Failures)
		require.NoError(t, stats.LastError)
		require.Equal(t, uint64(overloaded.Load()), stats.Overloads)
		require.Len(t, s.dialled(), 1)

		s.now(misses)
		time.Sleep(time.Second) // for what was sent and left
		_, err := p.Get("key")
		require.Equal(t, memcache.ErrCacheMiss, err)
	})
}

// An exchange that is given up is done, and its answer, which comes later, is
// nobody's.
func TestAnExchangeThatIsGivenUpIsDoneOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 38 // in one packet
		s := &station{answer: after(200*time.Millisecond, misses)}
		p := s.newPool(t, one)
		p.QueueTimeout = time.Millisecond
		var done [n]atomic.Int64
		var overloaded atomic.Int64
		var xs []exchange.Exchange
		for i := range n {
			x := &scripted{key: fmt.Sprint("key", i)}
			x.then = func() {
				done[i].Add(1)
				if errors.Is(x.results[0].Err, throttler.ErrOverloaded) {
					overloaded.Add(1)
				}
			}
			xs = append(xs, x)
		}
		p.Start(xs...) // in one packet
		time.Sleep(2 * time.Second)
		for i := range done {
			require.Equal(t, int64(1), done[i].Load())
		}
		require.NotZero(t, overloaded.Load())
		require.Less(t, overloaded.Load(), int64(n))
		require.Zero(t, p.Stats()[0].InFlight)
		require.Len(t, keysRead(s.heard()), n, "all had been sent")
	})
}

// Each is given up at its own time, though the answers to those before it are still to
// come.
func TestEachExchangeIsGivenUpAtItsOwnTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: after(timeout*2/3, misses)}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		p.QueueTimeout = timeout / 10
		var calls sync.WaitGroup
		for i := range 4 {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * timeout / 20)
				x := &scripted{key: "key"}
				d := took(func() { p.Exchange(t.Context(), x) })
				if i == 0 {
					assert.NoError(t, x.results[0].Err)
					return
				}
				assert.ErrorIs(t, x.results[0].Err, throttler.ErrOverloaded)
				assert.Equal(t, p.QueueTimeout+timeout, d, "exchange %d", i)
			})
		}
		calls.Wait()
	})
}

// What a call was given up with is not used for the next one while its answer is to come.
func TestTheAnswerToACallThatWasGivenUpIsNotThatToTheNext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: after(timeout*2/3, misses)}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		p.QueueTimeout = timeout / 10
		begin := time.Now()
		p.Start(&scripted{key: "before"})
		synctest.Wait()
		late, next := reads("late", "later"), reads("next", "last")
		p.Exchange(t.Context(), late...)
		p.Exchange(t.Context(), next...)
		require.Equal(t, 3*(timeout*2/3), time.Since(begin), "with the third answer")
		for i := range 2 {
			require.ErrorIs(t, result(t, late[i]).Err, throttler.ErrOverloaded)
			require.NoError(t, result(t, next[i]).Err)
		}
	})
}

// What finds as many in flight as may be is given up when it has waited for its turn, though
// the server takes whatever is sent.
func TestAnExchangeBehindAsManyAsMayBeInFlightIsGivenUpInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: after(timeout*2/3, misses)}
		p := s.newPool(t, one)
		p.DialContext = deepConns(s, nil)
		p.QueueTimeout = timeout / 10
		for i := range pool.MaxInFlight {
			p.Start(&scripted{key: fmt.Sprint("key", i)})
		}
		synctest.Wait()
		require.Equal(t, pool.MaxInFlight, p.Stats()[0].InFlight)
		x := &scripted{key: "key"}
		require.Equal(t, p.QueueTimeout, took(func() { p.Exchange(t.Context(), x) }))
		require.ErrorIs(t, x.results[0].Err, throttler.ErrOverloaded)
		require.False(t, x.results[0].Unknown, "it was not sent")
	})
}

// A caller that was alone has not waited for its turn, whatever others do.
func TestACallerThatWasAloneIsNotGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		p.QueueTimeout = time.Millisecond
		beAlone(p, "key")
		s.now(after(timeout/2, misses))
		for _, d := range atOnce(2, func(i int) {
			time.Sleep(time.Duration(i))
			_, err := p.Get("key")
			assert.Equal(t, memcache.ErrCacheMiss, err)
		}) {
			require.GreaterOrEqual(t, d, timeout/2)
		}
	})
}

// What an exchange comes to that is given up, behind two others: it may have been carried out if it
// wrote anything, now or before its first connection was lost. It is done once, whatever its answer
// is, and behind a proxy its second half has the time that the first has left.
func TestWhatAnExchangeThatIsGivenUpComesTo(t *testing.T) {
	type row struct {
		first   *memcache.Item         // that it proposes; no other
		lost    bool                   // the first connection
		last    func(net.Conn, string) // answers it at last; nil: as the others are
		proxy   bool
		unknown bool
	}
	bubbles(t, map[string]row{
		"reads":                    {},
		"writes":                   {first: valued("1", 0), unknown: true},
		"wrote, and reads":         {first: valued("1", 0), lost: true, unknown: true},
		"reads on each connection": {lost: true},
		"is answered by garbage":   {last: says("TUESDAY\r\n")},
		"is lost later":            {last: hangsUp},
		"behind a proxy":           {first: valued("1", 0), proxy: true, unknown: true},
	}, func(t *testing.T, c row) {
		var answers atomic.Int64
		slow := func(conn net.Conn, request string) {
			time.Sleep(timeout * 2 / 3)
			if answers.Add(1) == 3 && c.last != nil {
				c.last(conn, request)
				return
			}
			misses(conn, request)
		}
		s := &station{answer: slow}
		if c.lost {
			s.answer = func(conn net.Conn, _ string) {
				s.now(slow)
				conn.Close()
			}
		}
		p := s.newPool(t, one)
		p.QueueTimeout, p.Proxy = time.Millisecond, c.proxy
		x := &scripted{key: "key"}
		x.propose = func(exchange.Turn) *memcache.Item {
			if len(x.turns) == 1 {
				return c.first
			}
			return nil
		}
		if !c.proxy { // where x is slow enough by itself
			p.Start(&scripted{key: "key"}, &scripted{key: "key"})
		}
		begin, ended := time.Now(), time.Time{}
		x.then = func() { ended = time.Now() }
		p.Start(x)
		time.Sleep(5 * timeout) // for the answer too
		synctest.Wait()
		require.Equal(t, begin.Add(p.QueueTimeout+timeout), ended)
		require.ErrorIs(t, result(t, x).Err, throttler.ErrOverloaded)
		require.Equal(t, c.unknown, result(t, x).Unknown)
		require.Zero(t, p.Stats()[0].InFlight)
	})
}

// A deep connection takes whatever is written, as one with endless buffers.
type deep struct {
	net.Conn
	written chan []byte
}

func (c *deep) Write(b []byte) (int, error) {
	c.written <- bytes.Clone(b)
	return len(b), nil
}

func (c *deep) Close() error {
	close(c.written)
	return c.Conn.Close()
}

// deepConns makes deep connections to s. It calls packet, unless that is nil, with
// each packet.
func deepConns(s *station, packet func([]byte)) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := s.DialContext(ctx, network, addr)
		c := &deep{conn, make(chan []byte, 1000)}
		go func() {
			for b := range c.written {
				if packet != nil {
					packet(b)
				}
				conn.Write(b)
			}
		}()
		return c, err
	}
}

// A packet has the requests that the server answers in four turns, 20 commands each:
// it carries out the others while the answers to the first are read.
func TestAPacketIsFourTurnsOfTheServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: holds()}
		p := s.newPool(t, one)
		var gets []int
		p.DialContext = deepConns(s, func(b []byte) {
			gets = append(gets, bytes.Count(b, []byte("gets ")))
			assert.LessOrEqual(t, bytes.Count(b, []byte("add ")), 76)
		})
		p.Exchange(context.Background(), writes(numbered(160)...)...)
		require.Equal(t, []int{0, 4, 4, 1}, gets, "after the version")
	})
}

// Bytes are bounded too: large records are not all put into the socket at once.
func TestBytesInFlightAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: after(time.Millisecond, misses)}
		p := s.newPool(t, one)
		p.QueueTimeout = time.Hour
		p.DialContext = deepConns(s, nil)
		value := []byte(strings.Repeat("v", 100_000))
		var calls sync.WaitGroup
		for range 50 {
			calls.Go(func() {
				assert.Equal(t, memcache.ErrNotStored, p.Add(&memcache.Item{Key: "key", Value: value}))
			})
		}
		synctest.Wait()
		require.Equal(t, 3, p.Stats()[0].InFlight)
		calls.Wait()
	})
}

// Full socket buffers on both sides must not lock each other: the pool reads while
// it writes.
func TestLargeRequestsMeetLargeAnswers(t *testing.T) {
	p := patient(t, servertest.NewMemcached(t).Addr)
	p.QueueTimeout = 30 * time.Second
	value := []byte(strings.Repeat("v", 900_000))
	for i := range 8 {
		require.NoError(t, p.Add(&memcache.Item{Key: fmt.Sprint("key", i), Value: value, Expiration: 600}))
	}
	atOnce(64, func(i int) {
		x := &scripted{key: fmt.Sprint("key", i%8), propose: always(&memcache.Item{Value: value, Expiration: 600})}
		p.Exchange(context.Background(), x)
		if assert.NoError(t, x.results[0].Err) {
			assert.Len(t, x.results[0].Found.Value, len(value))
		}
	})
	require.Equal(t, 1, p.Stats()[0].Conns)
}

// No memory is taken for what a server announces, but for what it sends.
func TestAnAnnouncementIsNotBelieved(t *testing.T) {
	for _, tc := range []struct {
		announced string
		want      string
	}{
		{"4294967295", "4294967295 bytes"},
		{"18446744073709551615", "18446744073709551615 bytes"},
		{"1048577", "1048577 bytes"},
		{"1048576", "timeout"},
		{"18446744073709551616", "not an answer"},
	} {
		bubble(t, func(t *testing.T) {
			p := (&station{answer: says("VALUE key 0 " + tc.announced + " 7\r\n")}).newPool(t, one)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := p.Get("key")
			runtime.ReadMemStats(&after)
			require.ErrorContains(t, err, tc.want)
			require.ErrorIs(t, err, throttler.ErrUnavailable)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(500_000))
		})
	}
}

func TestAValueOfEachSizeIsWhole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{}
		p := s.newPool(t, one)
		for size := range 200 {
			value := strings.Repeat("v", max(size-1, 0)) + strings.Repeat("!", min(size, 1))
			s.now(says(fmt.Sprintf("VALUE key 0 %d 7\r\n%s\r\nEND\r\n", size, value)))
			item, err := p.Get("key")
			require.NoError(t, err)
			require.Equal(t, value, string(item.Value))
		}
	})
}

// A server with all the connections that it may have is there. It is asked again
// until one is free.
func TestTooManyConnectionsAreWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses, version: full}
		p := s.newPool(t, one)
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				_, err := p.Get("key")
				assert.Equal(t, memcache.ErrCacheMiss, err)
			})
		}
		time.Sleep(pool.DefaultQueueTimeout / 2)
		s.greets("VERSION 1.6.18")
		calls.Wait()
		require.Zero(t, p.Stats()[0].Failures)

		// But a process that gets none has no server.
		s.greets(full)
		s.hangUp()
		var err error
		require.LessOrEqual(t, took(func() { _, err = p.Get("key") }), pool.DefaultQueueTimeout+timeout)
		require.ErrorIs(t, err, throttler.ErrUnavailable)
		require.ErrorContains(t, err, "too many open connections")
	})
}

// The time for the answer begins when there is a connection.
func TestTheTimeOfADialIsNotThatOfTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: after(timeout-1, has), dial: func(context.Context) error {
			time.Sleep(pool.DefaultDialTimeout - 1)
			return nil
		}}
		p := s.newPool(t, one)
		p.QueueTimeout = time.Millisecond
		item, err := p.Get("key")
		require.NoError(t, err)
		require.Equal(t, "value", string(item.Value))
	})
}

// Nor is it after the server once had too many connections.
func TestARefusalIsForgottenWhenThereIsAConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var slow atomic.Bool
		s := &station{answer: has, version: full, dial: func(context.Context) error {
			if slow.Load() {
				time.Sleep(pool.DefaultDialTimeout - 1)
			}
			return nil
		}}
		p := s.newPool(t, one)
		p.QueueTimeout = 100 * time.Millisecond
		time.AfterFunc(p.QueueTimeout/2, func() { s.greets("VERSION 1.6.18") })
		for range 2 {
			_, err := p.Get("key")
			require.NoError(t, err)
			s.hangUp()
			synctest.Wait()
			slow.Store(true)
		}
	})
}

func TestAServerWithTooManyConnectionsIsAskedAtLeastEvery100Milliseconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const long = 30 * time.Second
		s := &station{answer: misses, version: full}
		p := s.newPool(t, one)
		p.QueueTimeout = time.Hour
		time.AfterFunc(long, func() { s.greets("VERSION 1.6.18") })
		require.LessOrEqual(t, took(func() { p.Get("key") }), long+100*time.Millisecond)
		require.Less(t, len(s.dialled()), int(long/(100*time.Millisecond))+10, "and not much more often")
	})
}

// What could not be sent is given up at once then. Only what was sent has the time
// for its answer too.
func TestARequestThatIsNotSentWaitsForTheQueueTimeoutAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: after(2*timeout, misses)} // it does not read meanwhile
		p := s.newPool(t, one)
		p.QueueTimeout = timeout / 2
		atOnce(3, func(i int) {
			time.Sleep(time.Duration(i) * timeout / 5) // the first is sent, and the second fills the socket
			d := took(func() {
				_, err := p.Get("key")
				assert.Equal(t, i == 2, errors.Is(err, throttler.ErrOverloaded), "%v", err)
			})
			if i == 2 {
				assert.Equal(t, p.QueueTimeout, d)
			}
		})
	})
}

func TestTooManyConnectionsToARealServer(t *testing.T) {
	server := servertest.NewMemcached(t, "-c", "64")
	var taken []net.Conn
	for isFull := false; !isFull; {
		conn, err := net.Dial("tcp", server.Addr)
		require.NoError(t, err)
		defer conn.Close()
		taken = append(taken, conn)
		require.LessOrEqual(t, len(taken), 100)
		io.WriteString(conn, "version\r\n")
		line, _ := newLines(conn).next()
		isFull = line == full
	}
	p := patient(t, server.Addr)
	p.QueueTimeout = 30 * time.Second
	done := make(chan error, 1)
	go func() {
		_, err := p.Get("key")
		done <- err
	}()
	require.Eventually(t, func() bool { return p.Stats()[0].Queued == 1 }, 10*time.Second, time.Millisecond)
	for _, conn := range taken {
		conn.Close()
	}
	require.Equal(t, memcache.ErrCacheMiss, <-done)
	require.Zero(t, p.Stats()[0].Failures)
}

// Nothing is left behind by calls, whatever they met.
func TestNothingLeaks(t *testing.T) {
	server := servertest.NewMemcached(t)
	p, w := patient(t, server.Addr), &servertest.Wire{}
	p.BreakerFailures = 1_000_000
	var n atomic.Int64
	w.Next = func() servertest.Fault {
		if n.Add(1)%7 != 0 {
			return servertest.NoFault
		}
		return 1 + servertest.Fault(n.Load()/7)%(servertest.Faults-1)
	}
	p.DialContext = w.DialContext
	load := func() uint64 {
		for range 20 {
			atOnce(50, func(i int) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*100*time.Microsecond)
				defer cancel()
				p.Exchange(ctx, &scripted{key: fmt.Sprint("key", i), propose: always(valued("1", 0))})
			})
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := runtime.NumGoroutine()
	first := load()
	for range 4 {
		load()
	}
	require.Less(t, load(), first+1<<20)
	require.NoError(t, p.Close())
	requireGoroutines(t, before)
}

// requireGoroutines requires that no more than n goroutines are left, soon. It is no
// Eventually, which has goroutines of its own.
func requireGoroutines(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > n; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d goroutines are left behind", runtime.NumGoroutine()-n)
	}
}

// Calls that wait together for a server with too many connections are one failure.
func TestCallsThatGetNoConnectionInTimeAreOneFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := (&station{version: full}).newPool(t, one)
		for i := range pool.DefaultBreakerFailures {
			require.False(t, p.Stats()[0].Down, "after %d", i)
			atOnce(10, func(int) { p.Get("key") })
			time.Sleep(time.Second) // until nobody dials
		}
		require.True(t, p.Stats()[0].Down)
	})
}
