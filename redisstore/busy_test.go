package redisstore_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/redistest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// keepBusy has n goroutines compute until the test ends.
func keepBusy(t *testing.T, n int) {
	var stop atomic.Bool
	var busy sync.WaitGroup
	for range n {
		busy.Go(func() {
			for !stop.Load() {
				for begin := time.Now(); time.Since(begin) < 10*time.Millisecond; {
				}
			}
		})
	}
	t.Cleanup(func() {
		stop.Store(true)
		busy.Wait()
	})
}

// A process whose goroutines keep all processors busy gets to its answers late, but to
// its timers at once. A limit that opened for want of processor time would let in more of
// a flood of logins. THROTTLER_SLOW is how often all cases are run; without it, one is.
func TestABusyProcessKeepsItsLimitsOverRedis(t *testing.T) {
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("THROTTLER_SLOW"), "0"))
	require.NoError(t, err, "THROTTLER_SLOW is a number of runs")
	stores := map[string]func(t *testing.T, addr string) *redisstore.Store{
		"opened": func(t *testing.T, addr string) *redisstore.Store {
			s, err := redisstore.Open("redis://" + addr)
			require.NoError(t, err)
			return s
		},
		"of a client": func(t *testing.T, addr string) *redisstore.Store {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			return redisstore.New(client)
		},
	}
	for name, store := range stores {
		for _, busy := range []int{40, 80, 160} {
			for run := range max(runs, 1) {
				if runs == 0 && (busy != 40 || name != "opened") {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%d", name, busy, run), func(t *testing.T) {
					s := store(t, redistest.Process(t).Addr)
					t.Cleanup(func() { s.Close() })
					th := throttler.New(s)
					for i := range 200 {
						d, err := th.Authorize(context.Background(), rule(strconv.Itoa(i), 1))
						require.NoError(t, err)
						require.NoError(t, d.Err)
					}
					keepBusy(t, busy)
					requireKeepsItsLimit(t, th)
					requireKeepsBlocking(t, th)
				})
			}
		}
	}
}

// requireKeepsItsLimit makes 220 calls, 20 at a time, of a value that may have 20.
func requireKeepsItsLimit(t *testing.T, th *throttler.Throttler) {
	const callers, limit, calls = 20, 20, 220
	var authorized, longest atomic.Int64
	var running sync.WaitGroup
	for caller := range callers {
		ctx := context.Background()
		if caller%2 == 0 {
			ctx = t.Context()
		}
		running.Go(func() {
			for range calls / callers {
				begin := time.Now()
				d, err := th.Authorize(ctx, rule("flood", limit))
				took := int64(time.Since(begin))
				for most := longest.Load(); took > most && !longest.CompareAndSwap(most, took); most = longest.Load() {
				}
				assert.NoError(t, err)
				assert.NoError(t, d.Err)
				if d.Status == throttler.Authorized {
					authorized.Add(1)
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d of %d calls passed, the longest took %v", authorized.Load(), calls, time.Duration(longest.Load()))
	require.EqualValues(t, limit, authorized.Load())
}

// requireKeepsBlocking makes a call of each of the values that are full, at once.
func requireKeepsBlocking(t *testing.T, th *throttler.Throttler) {
	var passed atomic.Int64
	var running sync.WaitGroup
	for i := range 200 {
		running.Go(func() {
			d, err := th.Authorize(context.Background(), rule(strconv.Itoa(i), 1))
			assert.NoError(t, err)
			assert.NoError(t, d.Err)
			if d.Status == throttler.Authorized {
				passed.Add(1)
			}
		})
	}
	running.Wait()
	require.Zero(t, passed.Load())
}
