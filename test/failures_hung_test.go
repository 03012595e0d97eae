package throttler_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What calls of a server that hangs cost, and what they leave behind.

const (
	hungTimeout  = 250 * time.Millisecond // of the client
	hungDeadline = 50 * time.Millisecond  // of each call
	hungCalls    = 1000
)

// thousandCalls makes hungCalls calls at once and returns how long each took.
func thousandCalls(call func(i int)) []time.Duration {
	times := make([]time.Duration, hungCalls)
	var calls sync.WaitGroup
	for i := range times {
		calls.Go(func() {
			begin := time.Now()
			call(i)
			times[i] = time.Since(begin)
		})
	}
	calls.Wait()
	return times
}

// The bubble sees to it that no goroutine is left in the end.
func TestAThousandCallsLeaveAHungServerAtTheirDeadline(t *testing.T) {
	for name, rule := range map[string]throttler.Rule{"one condition": either(condition("a", 5, time.Minute)), "two": both()} {
		for _, fallback := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client, active := hanging()
					th := throttler.New(client)
					if fallback {
						th.Fallback = memstore.New()
					}
					begin := time.Now()
					times := thousandCalls(func(int) {
						ctx, cancel := context.WithTimeout(t.Context(), hungDeadline)
						defer cancel()
						d, err := th.Authorize(ctx, rule)
						assert.NoError(t, err)
						assert.ErrorIs(t, d.Err, context.DeadlineExceeded)
					})
					require.Equal(t, hungDeadline, slices.Min(times))
					require.Equal(t, hungDeadline, slices.Max(times))
					require.LessOrEqual(t, active.Load(), int64(3), "one operation for all of them, or one for each key besides")

					time.Sleep(hungTimeout - 1 - time.Since(begin))
					synctest.Wait()
					require.Positive(t, active.Load())
					time.Sleep(hungDeadline + 1)
					synctest.Wait()
					require.Zero(t, active.Load(), "none outlives the client's timeout, and none follows")
				})
			})
		}
	}
}

// Cancel and Reset of many conditions leave one operation for each behind.
func TestCancelAndResetLeaveAHungServerAtTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, active := hanging()
		hang := client.before
		client.before = failing(nil, "")
		th := throttler.New(client)
		d := authorize(t, th, both())
		client.before = hang
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error { return th.Cancel(ctx, d) },
			func(ctx context.Context) error { return th.Reset(ctx, both()) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), hungDeadline)
			begin := time.Now()
			require.ErrorIs(t, call(ctx), context.DeadlineExceeded)
			require.Equal(t, hungDeadline, time.Since(begin))
			require.Positive(t, active.Load())
			require.LessOrEqual(t, active.Load(), int64(3))
			cancel()
			time.Sleep(hungTimeout + hungDeadline)
			synctest.Wait()
			require.Zero(t, active.Load())
		}
	})
}

// A plain client does not tell which server has a key. So operations of a server that
// hangs may take all 64 places, and hold up the calls of the others until they end.
func TestOperationsOfAHungServerHoldUpOthersOnlyIfTheyTakeAllPlaces(t *testing.T) {
	for _, tt := range []struct {
		sick int
		wait time.Duration // of the calls of the healthy server, which come when half of hungTimeout has passed
	}{{32, 0}, {63, 0}, {64, hungTimeout / 2}, {100, hungTimeout / 2}, {1000, hungTimeout / 2}} {
		t.Run(fmt.Sprint(tt.sick), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newFaulty()
				client.before = func(_ string, keys ...string) error {
					if !strings.Contains(keys[0], "#sick") {
						return nil
					}
					time.Sleep(hungTimeout)
					return os.ErrDeadlineExceeded
				}
				th := throttler.New(client)
				begin := time.Now()
				var calls sync.WaitGroup
				for i := range tt.sick {
					calls.Go(func() {
						d, err := th.Authorize(t.Context(), valued(fmt.Sprint("sick", i)))
						assert.NoError(t, err)
						assert.ErrorIs(t, d.Err, throttler.ErrUnavailable)
						assert.Equal(t, hungTimeout, time.Since(begin))
					})
				}
				time.Sleep(hungTimeout / 2)
				for i := range 10 {
					calls.Go(func() {
						came := time.Now()
						d, err := th.Authorize(t.Context(), valued(fmt.Sprint("healthy", i)))
						assert.NoError(t, err)
						assert.Equal(t, tt.wait, time.Since(came))
						if tt.wait == 0 {
							assert.NoError(t, d.Err)
						} else {
							assert.ErrorIs(t, d.Err, throttler.ErrUnavailable, "nothing was answered since it came")
						}
					})
				}
				calls.Wait()

				ended := time.Now()
				require.NoError(t, authorize(t, th, valued("healthy")).Err)
				require.Zero(t, time.Since(ended), "all places are free")
			})
		})
	}
}

// As many calls as the breaker needs wait for the pool's timeout, together. Those
// that come after wait for nothing, however long it lasts.
func TestAHungServerCostsACallThePoolsTimeoutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := pool.New("192.0.2.1:11211")
		require.NoError(t, err)
		defer p.Close()
		p.DialContext = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go swallow(there)
			return here, nil
		}
		th := throttler.New(p)
		ask := func(int) {
			d, err := th.Authorize(context.Background(), both())
			assert.NoError(t, err)
			assert.Equal(t, throttler.Authorized, d.Status)
			assert.Error(t, d.Err)
		}
		for range poolFailures {
			if !p.Stats()[0].Down {
				require.Equal(t, poolTimeout, slices.Max(thousandCalls(ask)))
			}
		}
		require.True(t, p.Stats()[0].Down)
		for range 3 {
			require.Zero(t, slices.Max(thousandCalls(ask)))
			time.Sleep(poolPause + poolTimeout/2) // while it is probed
		}
	})
}

// swallow reads and never answers.
func swallow(conn net.Conn) {
	b := make([]byte, 1024)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
	}
}

// The same with real sockets: a server that accepts, and never answers.
func TestAThousandCallsOfARealServerThatHangsLeaveNoGoroutine(t *testing.T) {
	clients := map[string]func(addr string) throttler.Client{
		"pool": func(addr string) throttler.Client {
			p, err := pool.New(addr)
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			p.Timeout = hungTimeout
			return p
		},
		"memcache.Client": func(addr string) throttler.Client {
			c := memcache.New(addr)
			t.Cleanup(func() { c.Close() })
			c.Timeout = hungTimeout
			return c
		},
	}
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			asked := client(silent(t))
			th := throttler.New(asked)
			before := runtime.NumGoroutine()
			begin := time.Now()
			times := thousandCalls(func(i int) {
				ctx, cancel := context.WithTimeout(context.Background(), hungDeadline)
				defer cancel()
				c := condition("c", 1, time.Minute)
				c.Value = strconv.Itoa(i)
				d, err := th.Authorize(ctx, either(c))
				assert.NoError(t, err)
				assert.Error(t, d.Err)
			})
			left := runtime.NumGoroutine() - before
			if p, ok := asked.(*pool.Pool); ok {
				p.Close() // which goes on to find out whether the server is back
			}
			for runtime.NumGoroutine() > before { // not Eventually, which has goroutines of its own
				require.Less(t, time.Since(begin), 20*time.Second, "%d goroutines are left behind", runtime.NumGoroutine()-before)
				time.Sleep(time.Millisecond)
			}
			t.Logf("slowest call %v; %d goroutines left behind then, none after %v", slices.Max(times), left, time.Since(begin))
		})
	}
}

// silent returns the address of a server whose connections are made, by the
// kernel, and never served.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// BenchmarkServerDown measures a call while its server is taken to be down.
func BenchmarkServerDown(b *testing.B) {
	for _, fallback := range []bool{false, true} {
		for n, rule := range []throttler.Rule{either(condition("a", 5, time.Minute)), either(both().Either...)} {
			b.Run(fmt.Sprintf("conditions=%d/fallback=%v", n+1, fallback), func(b *testing.B) {
				p, err := pool.New("127.0.0.1:1")
				require.NoError(b, err)
				defer p.Close()
				p.BreakerPause = time.Hour
				th := throttler.New(p)
				if fallback {
					th.Fallback = memstore.New()
				}
				ctx := context.Background()
				for !p.Stats()[0].Down {
					_, _ = th.Authorize(ctx, rule)
				}
				b.ReportAllocs()
				for b.Loop() {
					if d, _ := th.Authorize(ctx, rule); d.Err == nil {
						b.Fatal("something answers at port 1")
					}
				}
			})
		}
	}
}

// gomemcache's timeout begins anew with each item of an answer, and its methods take no
// ctx: what ends such a call is its own ctx.
func TestAServerThatNeverEndsAnAnswerIsLeftWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := memcache.New("127.0.0.1:1")
		client.Timeout = time.Second
		client.DialContext = func(context.Context, string, string) (net.Conn, error) {
			conn, server := net.Pipe()
			go io.Copy(io.Discard, server)
			go func() {
				defer server.Close()
				for range 200 { // each item comes within the client's timeout
					if _, err := server.Write([]byte("VALUE test#a#v 0 0 1\r\n\r\n")); err != nil {
						return
					}
					time.Sleep(50 * time.Millisecond)
				}
			}()
			return conn, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin := time.Now()
		d, err := throttler.New(client).Authorize(ctx, either(condition("a", 5, time.Minute)))
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, 2*time.Second, time.Since(begin))
		time.Sleep(time.Minute) // until the answer has ended
	})
}
