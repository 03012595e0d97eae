package servertest

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
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Compute uses up a processor for 10 ms.
func Compute() {
	for begin := time.Now(); time.Since(begin) < 10*time.Millisecond; {
	}
}

// KeepBusy has n goroutines work until the test ends.
func KeepBusy(t *testing.T, n int, work func()) {
	var stop atomic.Bool
	var busy sync.WaitGroup
	for range n {
		busy.Go(func() {
			for !stop.Load() {
				work()
			}
		})
	}
	t.Cleanup(func() {
		stop.Store(true)
		busy.Wait()
	})
}

// RunBusy requires that limits hold over each of clients while 40, 80 and 160 goroutines work. A
// process whose goroutines keep all processors busy gets to its answers late, but to its timers at
// once. THROTTLER_SLOW is how often each case is run; without it, none is: what other tests keep busy
// at the same time would be measured, too.
func RunBusy(t *testing.T, work func(), clients map[string]func(t *testing.T) throttler.Client) {
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("THROTTLER_SLOW"), "0"))
	require.NoError(t, err, "THROTTLER_SLOW is a number of runs")
	if runs <= 0 {
		skiptest.Slow(t)
	}
	for name, client := range clients {
		for _, busy := range []int{40, 80, 160} {
			for run := range runs {
				t.Run(fmt.Sprintf("%s/%d/%d", name, busy, run), func(t *testing.T) {
					th := throttler.New(client(t))
					rules := fullRules(t, th)
					KeepBusy(t, busy, work)
					requireKeepsItsLimit(t, th)
					requireKeepsBlocking(t, th, rules)
				})
			}
		}
	}
}

// rule returns that of one value.
func rule(value string, limit int) throttler.Rule {
	return throttler.Rule{Identifier: "busy", Either: []throttler.Condition{{Name: "address", Value: value, Max: limit, TTL: time.Hour}}}
}

// requireKeepsItsLimit makes 220 calls, 20 at a time, of a value that may have 20.
func requireKeepsItsLimit(t *testing.T, th *throttler.Throttler) {
	const callers, limit, calls = 20, 20, 220
	flood := rule("flood", limit)
	var authorized atomic.Int64
	var longest atomic.Int64
	var running sync.WaitGroup
	for caller := range callers {
		ctx := context.Background()
		if caller%2 == 0 {
			ctx = t.Context()
		}
		running.Go(func() {
			for range calls / callers {
				begin := time.Now()
				d, err := th.Authorize(ctx, flood)
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

// fullRules returns rules for 200 values that are full.
func fullRules(t *testing.T, th *throttler.Throttler) []throttler.Rule {
	rules := make([]throttler.Rule, 200)
	for i := range rules {
		rules[i] = rule(strconv.Itoa(i), 1)
		for failed := true; failed; { // as it may while another program keeps the machine busy
			d, err := th.Authorize(t.Context(), rules[i])
			require.NoError(t, err)
			failed = d.Err != nil
		}
	}
	return rules
}

// requireKeepsBlocking makes a call of each of rules at once.
func requireKeepsBlocking(t *testing.T, th *throttler.Throttler, rules []throttler.Rule) {
	var passed atomic.Int64
	var running sync.WaitGroup
	for _, rule := range rules {
		running.Go(func() {
			d, err := th.Authorize(context.Background(), rule)
			assert.NoError(t, err)
			assert.NoError(t, d.Err)
			if d.Status == throttler.Authorized {
				passed.Add(1)
			}
		})
	}
	running.Wait()
	require.Zero(t, passed.Load(), "of %d", len(rules))
}
