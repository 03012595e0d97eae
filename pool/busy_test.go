package pool_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
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
