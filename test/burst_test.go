package throttler_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Bursts at a real server that is well: no limit is switched off by them. The clients
// have their default settings, but for the time that a call may wait on a busy
// machine.

// overBoth runs test over a pool and over a plain client of a server of its own.
// down reports whether the client takes the server to be down.
func overBoth(t *testing.T, test func(t *testing.T, th *throttler.Throttler, down func() bool)) {
	t.Helper()
	server := servertest.NewMemcached(t)
	t.Run("pool", func(t *testing.T) {
		p := patientPool(t, server.Addr)
		var everDown atomic.Bool
		p.StateChanged = func(string, bool, error) { everDown.Store(true) }
		th := throttler.New(p)
		th.QueueTimeout = 20 * time.Second
		test(t, th, everDown.Load)
	})
	t.Run("plain", func(t *testing.T) {
		client := clientOf(t, server.Addr)
		client.Timeout = 20 * time.Second
		th := throttler.New(client)
		th.QueueTimeout = 20 * time.Second
		test(t, th, func() bool { return false })
	})
}

// limited requires that the limit of a value that nobody else asks for holds.
func limited(t *testing.T, th *throttler.Throttler) {
	t.Helper()
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{limit("innocent", 3, time.Hour)}}
	admitted := 0
	for range 6 {
		d := authorize(t, th, rule)
		require.NoError(t, d.Err)
		admitted += int(d.Status)
	}
	require.Equal(t, 3, admitted)
}

func TestARuleOfThousandsOfConditionsSwitchesNoLimitOff(t *testing.T) {
	overBoth(t, func(t *testing.T, th *throttler.Throttler, down func() bool) {
		rule := throttler.Rule{Identifier: uniqueID(), Either: conditions(3000, 2, time.Hour)}
		for i, want := range []throttler.Status{throttler.Authorized, throttler.Authorized, throttler.Blocked} {
			d := authorize(t, th, rule)
			require.NoError(t, d.Err)
			require.Equal(t, want, d.Status, "call %d", i)
		}
		require.Len(t, authorize(t, th, rule).Messages, 3000)
		limited(t, th)
		require.False(t, down())
	})
}

// keepCalling has n goroutines make one call after the other until end, which waits for them.
func keepCalling(n int, call func()) (end func()) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for !stop.Load() {
				call()
			}
		})
	}
	return func() {
		stop.Store(true)
		wg.Wait()
	}
}

func TestAHotValueDoesNotStarveAnother(t *testing.T) {
	overBoth(t, func(t *testing.T, th *throttler.Throttler, down func() bool) {
		hot := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{limit("hot", 20, time.Hour)}}
		var admitted atomic.Int64
		end := keepCalling(1000, func() {
			d, err := th.Authorize(context.Background(), hot)
			assert.NoError(t, err)
			assert.NoError(t, d.Err)
			admitted.Add(int64(d.Status))
		})
		defer end()
		for range 5 {
			limited(t, th)
		}
		end()
		require.EqualValues(t, 20, admitted.Load())
		require.False(t, down())
	})
}

// All at once, each with a value of its own and one that all share.
func TestABurstOf3000CallersIsLimitedAndBoundedInMemory(t *testing.T) {
	const callers, kib = 3000, 64
	overBoth(t, func(t *testing.T, th *throttler.Throttler, down func() bool) {
		shared := limit("shared", 20, time.Hour)
		own := limit("own", 20, time.Hour)
		id := uniqueID()
		limited(t, th) // so that there is a connection
		before := memory()
		var most atomic.Uint64
		var admitted, done atomic.Int64
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				<-start
				one := own
				one.Value = fmt.Sprint(i)
				d, err := th.Authorize(context.Background(), throttler.Rule{Identifier: id, Either: []throttler.Condition{shared, one}})
				assert.NoError(t, err)
				assert.NoError(t, d.Err)
				admitted.Add(int64(d.Status))
				if done.Add(1)%500 == 1 {
					most.Store(max(most.Load(), memory()))
				}
			})
		}
		close(start)
		wg.Wait()
		require.EqualValues(t, 20, admitted.Load())
		require.False(t, down())
		perCaller := float64(most.Load()-min(before, most.Load())) / callers / 1024
		t.Logf("%.1f KiB of memory for each of %d callers", perCaller, callers)
		require.Less(t, perCaller, float64(kib))
		require.Eventually(t, func() bool { return th.Stats().Asking == 0 }, 20*time.Second, time.Millisecond)
	})
}

// memory returns how much of it is in use: heap and stacks.
func memory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
