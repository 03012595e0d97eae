package pool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In a burst a process has thousands of goroutines to run. It gets to its readers late,
// but to its timers at once.
func TestAServerThatAnswersABusyProcessIsNotDead(t *testing.T) {
	p, err := pool.New(memcachedtest.Process(t).Addr)
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
	var stop atomic.Bool
	var turns atomic.Int64
	var running sync.WaitGroup
	start := time.Now()
	for range n {
		running.Go(func() {
			for !stop.Load() {
				for begin := time.Now(); time.Since(begin) < work; {
				}
				turns.Add(1)
				runtime.Gosched()
			}
		})
	}
	t.Cleanup(func() {
		stop.Store(true)
		running.Wait()
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

// tardyPool returns a pool of s that has a connection and is late from now on.
func (s *station) tardyPool(t *testing.T, late time.Duration) *pool.Pool {
	p := s.newPool(t, one)
	var conn *tardy
	p.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := s.DialContext(ctx, network, addr)
		conn = &tardy{Conn: nc}
		return conn, err
	}
	beAlone(p, "key")
	conn.late = late
	return p
}

// What has come in time is not late, however late it is read: neither the answer to the
// oldest request, nor those to requests that had to wait for their turn.
func TestAnAnswerThatIsReadLateCameInTime(t *testing.T) {
	for name, callers := range map[string]int{"a lone caller": 1, "several": 20} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &station{answer: has}
				p := s.tardyPool(t, 10*time.Second)
				atOnce(callers, func(i int) {
					item, err := p.Get(fmt.Sprint("key", i))
					if assert.NoError(t, err) {
						assert.Equal(t, "value", string(item.Value))
					}
				})
				require.Zero(t, p.Stats()[0].Failures)
				require.Len(t, s.dialled(), 1)
			})
		})
	}
}

// But a server that has said nothing by then is silent, and one that trickles is slow.
func TestAServerThatIsSilentIsGivenUpByALateReaderToo(t *testing.T) {
	for name, answer := range map[string]func(net.Conn, string){
		"silent": hangs,
		"trickles": func(conn net.Conn, request string) {
			_, err := io.WriteString(conn, "VALUE key 0 1000 7\r\n")
			for err == nil {
				time.Sleep(time.Millisecond / 2)
				_, err = io.WriteString(conn, "x")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const late = 10 * time.Millisecond
				s := &station{answer: has}
				p := s.tardyPool(t, late)
				s.now(answer)
				require.LessOrEqual(t, took(func() {
					_, err := p.Get("key")
					require.ErrorContains(t, err, "timeout")
				}), timeout+20*late)
			})
		})
	}
}

// A server that does not even take what is written is silent, too.
func TestAServerThatTakesNothingIsGivenUpInTime(t *testing.T) {
	for callers, most := range map[int]time.Duration{1: timeout, 20: 2 * timeout} { // those in the queue have the next connection
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
		})
	}
}
