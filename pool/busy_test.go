package pool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
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

// In a burst a process has thousands of goroutines to run. It gets to its readers late,
// but to its timers at once.
func TestAServerThatAnswersABusyProcessIsNotDead(t *testing.T) {
	p, err := pool.New(servertest.NewMemcached(t).Addr)
	require.NoError(t, err)
	defer p.Close()

	round := keepBusy(t, 50*time.Millisecond)
	time.Sleep(300 * time.Millisecond) // as long as it takes to know
	p.Timeout, p.DialTimeout, p.QueueTimeout = round()/3, round()/3, time.Minute
	for range 3 {
		start := time.Now()
		_, err := p.GetMulti([]string{"key"})
		require.NoError(t, err, "after %v", time.Since(start))
	}
	t.Logf("each goroutine has its turn every %v, and Timeout is %v", round(), p.Timeout)
	require.Greater(t, round(), p.Timeout)
}

// keepBusy runs goroutines without a pause, so many that each has its turn about once in
// the given time, and returns a function that says how often they had.
func keepBusy(t *testing.T, every time.Duration) (round func() time.Duration) {
	const work = 100 * time.Microsecond
	n := int(every/work) * runtime.GOMAXPROCS(0)
	var turns atomic.Int64
	start := time.Now()
	servertest.KeepBusy(t, n, func() {
		for begin := time.Now(); time.Since(begin) < work; {
		}
		turns.Add(1)
		runtime.Gosched()
	})
	return func() time.Duration {
		return time.Since(start) * time.Duration(n) / time.Duration(max(turns.Load(), 1))
	}
}

// A tardy connection is one of a process that is short of processor time: what has come
// is read, but its reader gets on with it only after so long.
type tardy struct {
	net.Conn
	late time.Duration
}

func (c *tardy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(c.late)
	return n, err
}

// tardyPool returns a pool of s, and its connection, which is late from now on.
func (s *station) tardyPool(t *testing.T, late time.Duration) (p *pool.Pool, conn *tardy) {
	p = s.newPool(t, one)
	p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := s.DialContext(ctx, network, addr)
		conn = &tardy{Conn: nc}
		return conn, err
	}
	beAlone(p, "key")
	conn.late = late
	return p, conn
}

// What has come in time is not late, however late it is read: neither the answer to the
// oldest request, nor those to requests that had to wait for their turn.
func TestAnAnswerThatIsReadLateCameInTime(t *testing.T) {
	bubbles(t, map[string]int{"a lone caller": 1, "several": 20}, func(t *testing.T, callers int) {
		s := &station{answer: has}
		p, _ := s.tardyPool(t, 10*time.Second)
		atOnce(callers, func(i int) {
			item, err := p.Get(fmt.Sprint("key", i))
			if assert.NoError(t, err) {
				assert.Equal(t, "value", string(item.Value))
			}
		})
		require.Zero(t, p.Stats()[0].Failures)
		require.Len(t, s.dialled(), 1)
	})
}

// An answer that is too large for one read.
const large = 200_000

func hasLarge(conn net.Conn, _ string) {
	fmt.Fprintf(conn, "VALUE key 0 %d 7\r\n%s\r\nEND\r\n", large, strings.Repeat("v", large))
}

// A read that has met its deadline before it looked has not found nothing. So the rest of
// an answer is not late because of it.
func TestALargeAnswerThatIsReadLateCameInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: has}
		p, _ := s.tardyPool(t, 10*time.Second)
		s.now(hasLarge)
		item, err := p.Get("key")
		require.NoError(t, err)
		require.Len(t, item.Value, large)
	})
}

// Nor has a read that was cut short, as its caller has left.
func TestALargeAnswerThatIsReadLateCameInTimeThoughItsCallerHasLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p, conn := s.tardyPool(t, 0)
		s.now(hangs)
		ctx, leave := context.WithCancel(t.Context())
		x := &scripted{key: "key"}
		var call sync.WaitGroup
		call.Go(func() { p.Exchange(ctx, x) })
		const grace = time.Millisecond
		time.Sleep(timeout - grace*3/2)
		leave() // while the reader looks
		call.Wait()
		synctest.Wait()
		conn.late = 5 * grace
		time.Sleep(grace / 2)
		hasLarge(s.conns[0], "")
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, result(t, x).Err)
	})
}

// A part of an answer that comes while the reader looks makes the wait no longer.
func TestAnAnswerThatEndsInTheMiddleIsGivenUpInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		beAlone(p, "key")
		s.now(after(timeout-time.Millisecond/2, says("VALUE key 0 5 7\r\nval")))
		require.Equal(t, timeout, took(func() {
			_, err := p.Get("key")
			require.ErrorContains(t, err, "timeout")
		}))
	})
}

// But a server that has said nothing by then is silent, and one that trickles is slow.
func TestAServerThatIsSilentIsGivenUpByALateReaderToo(t *testing.T) {
	bubbles(t, map[string]func(net.Conn, string){
		"silent": hangs,
		"trickles": func(conn net.Conn, request string) {
			_, err := io.WriteString(conn, "VALUE key 0 1000 7\r\n")
			for err == nil {
				time.Sleep(time.Millisecond / 2)
				_, err = io.WriteString(conn, "x")
			}
		},
	}, func(t *testing.T, answer func(net.Conn, string)) {
		const late = 10 * time.Millisecond
		s := &station{answer: has}
		p, _ := s.tardyPool(t, late)
		s.now(answer)
		require.LessOrEqual(t, took(func() {
			_, err := p.Get("key")
			require.ErrorContains(t, err, "timeout")
		}), timeout+20*late)
	})
}

// A server that does not even take what is written is silent, too.
func TestAServerThatTakesNothingIsGivenUpInTime(t *testing.T) {
	for callers, most := range map[int]time.Duration{1: timeout, 2: timeout, 20: 2 * timeout} { // those in the queue have the next connection
		bubble(t, func(t *testing.T) {
			s := &station{answer: has}
			p := s.newPool(t, one)
			beAlone(p, "key")
			ended := make(chan struct{})
			defer close(ended)
			s.now(func(net.Conn, string) { <-ended })
			for _, d := range atOnce(callers, func(i int) {
				time.Sleep(time.Duration(i) * time.Millisecond)
				_, err := p.Get(fmt.Sprint("key", i))
				assert.ErrorIs(t, err, throttler.ErrUnavailable)
			}) {
				require.LessOrEqual(t, d, most)
			}
			require.Zero(t, p.Stats()[0].Retries, "what fills the socket is not lost with the connection")
		})
	}
}

// What this process is late to send has not waited for the server: neither in the queue,
// behind an exchange that takes long to propose, nor after it was sent. A server that has yet
// to take a packet may take it soon.
func TestWhatWaitsForThisProcessIsNotGivenUp(t *testing.T) {
	bubbles(t, map[string]time.Duration{
		"is being sent": timeout * 45 / 100,
		"is to be sent": timeout * 60 / 100,
		"is sent late":  timeout * 2,
	}, func(t *testing.T, proposing time.Duration) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		p.QueueTimeout = timeout / 2
		p.Get("connect")
		first := true
		s.now(func(conn net.Conn, request string) { // it reads nothing meanwhile
			if first {
				time.Sleep(timeout * 54 / 100)
			} else {
				time.Sleep(timeout * 30 / 100)
			}
			first = false
			misses(conn, request)
		})
		late := &scripted{key: "late", propose: func(exchange.Turn) *memcache.Item {
			time.Sleep(proposing)
			return nil
		}}
		xs := []exchange.Exchange{&scripted{key: "before"}, late, &scripted{key: "queued"}}
		for _, x := range xs {
			p.Start(x)
			synctest.Wait()
		}
		time.Sleep(5 * timeout)
		synctest.Wait()
		for i, x := range xs {
			require.NoError(t, result(t, x).Err, "exchange %d", i)
		}
		require.Zero(t, p.Stats()[0].Overloads)
	})
}

// An answer that has come in time counts though its request is still being written, and
// though it is read late.
func TestAnAnswerToWhatIsBeingWrittenCameInTime(t *testing.T) {
	bubbles(t, map[string]bool{"a lone caller's": true, "one of several callers": false}, func(t *testing.T, alone bool) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		release := make(chan struct{})
		var conn *tardy
		p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := s.DialContext(ctx, network, addr)
			conn = &tardy{Conn: &held{nc, release}}
			return conn, err
		}
		p.Get("connect")
		if alone {
			beAlone(p, "key")
		}
		s.now(hangs)
		conn.late = 2 * timeout
		x := &scripted{key: "key", propose: always(&memcache.Item{Value: []byte(strings.Repeat("v", 20_000))})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.Exchange(context.Background(), x)
		}()
		synctest.Wait()
		io.WriteString(s.conns[0], "NOT_STORED\r\nEND\r\n")
		<-done
		require.NoError(t, result(t, x).Err)
		conn.late = 0
		close(release)
		synctest.Wait()
		s.now(misses)
		_, err := p.Get("key")
		require.Equal(t, memcache.ErrCacheMiss, err)
		require.Zero(t, p.Stats()[0].Failures)
		require.Len(t, s.dialled(), 1, "the connection is as good as before")
	})
}

// A walled connection takes nothing once the wall is up, until it is failed. As over TLS, it
// takes its time to close.
type walled struct {
	net.Conn
	up     bool
	failed chan struct{}
	closed atomic.Bool
}

func (c *walled) Write(b []byte) (int, error) {
	if c.up {
		<-c.failed
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Write(b)
}

func (c *walled) SetDeadline(at time.Time) error {
	if c.up {
		close(c.failed)
	}
	return c.Conn.SetDeadline(at)
}

func (c *walled) Close() error {
	time.Sleep(5*time.Second - 1)
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *walled) NetConn() net.Conn { return c.Conn }

// A lone caller reads after it has written, so nobody reads for it meanwhile.
func TestALoneCallerWhoseServerTakesNothingGivesUpInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		var conn *walled
		p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := s.DialContext(ctx, network, addr)
			conn = &walled{Conn: nc, failed: make(chan struct{})}
			return conn, err
		}
		beAlone(p, "key")
		conn.up = true
		require.Equal(t, timeout, took(func() {
			_, err := p.Get("key")
			require.ErrorContains(t, err, "timeout")
		}))
		time.Sleep(5 * time.Second)
		require.True(t, conn.closed.Load())
	})
}
