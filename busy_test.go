package throttler_test

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
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"
)

// slowRuns returns how often a slow test is to be run: THROTTLER_SLOW. It skips the test
// if that is not set.
func slowRuns(t *testing.T) int {
	t.Helper()
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("THROTTLER_SLOW"), "0"))
	require.NoError(t, err, "THROTTLER_SLOW is a number of runs")
	if runs <= 0 {
		skiptest.Slow(t)
	}
	return runs
}

// works are ways to use up a processor.
var works = map[string]func(){
	"computing": func() {
		for begin := time.Now(); time.Since(begin) < 10*time.Millisecond; {
		}
	},
	"hashing": func() { bcrypt.GenerateFromPassword([]byte("password"), bcrypt.DefaultCost) },
}

// keepBusy has n goroutines work until the test ends.
func keepBusy(t *testing.T, n int, work func()) {
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

// A flood of logins keeps all processors busy with hashes. A limit that opened for want
// of processor time would let in more of the flood.
func TestABusyProcessKeepsItsLimits(t *testing.T) {
	runs := slowRuns(t)
	clients := map[string]func(t *testing.T, addr string) throttler.Client{
		"plain": func(_ *testing.T, addr string) throttler.Client { return memcache.New(addr) },
		"pool": func(t *testing.T, addr string) throttler.Client {
			p, err := pool.New(addr)
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			return p
		},
	}
	for name, client := range clients {
		for kind, work := range works {
			for _, busy := range []int{40, 80, 160} {
				for run := range runs {
					t.Run(fmt.Sprintf("%s/%s/%d/%d", name, kind, busy, run), func(t *testing.T) {
						th := throttler.New(client(t, memcachedtest.Process(t).Addr))
						rules := fullRules(t, th)
						keepBusy(t, busy, work)
						requireKeepsItsLimit(t, th)
						requireKeepsBlocking(t, th, rules)
					})
				}
			}
		}
	}
}

// requireKeepsItsLimit makes 220 calls, 20 at a time, of a value that may have 20.
func requireKeepsItsLimit(t *testing.T, th *throttler.Throttler) {
	const callers, limit, calls = 20, 20, 220
	rule := either(condition("address", limit, time.Hour))
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
				d, err := th.Authorize(ctx, rule)
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
		c := condition("other address", 1, time.Hour)
		c.Value = strconv.Itoa(i)
		rules[i] = either(c)
		require.Equal(t, throttler.Authorized, authorize(t, th, rules[i]).Status)
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
