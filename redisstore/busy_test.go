package redisstore_test

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// A process whose goroutines keep all processors busy gets to its answers late, but to
// its timers at once. A limit that opened for want of processor time would let in more of
// a flood of logins. THROTTLER_SLOW is how often each case is run; without it, none is: what
// other tests keep busy at the same time would be measured, too.
func TestABusyProcessKeepsItsLimitsOverRedis(t *testing.T) {
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("THROTTLER_SLOW"), "0"))
	require.NoError(t, err, "THROTTLER_SLOW is a number of runs")
	if runs <= 0 {
		skiptest.Slow(t)
	}
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
			for run := range runs {
				t.Run(fmt.Sprintf("%s/%d/%d", name, busy, run), func(t *testing.T) {
					s := store(t, servertest.NewRedis(t).Addr)
					t.Cleanup(func() { s.Close() })
					th := throttler.New(s)
					rules := servertest.FullRules(t, th)
					servertest.KeepBusy(t, busy, servertest.Compute)
					servertest.RequireKeepsItsLimit(t, th)
					servertest.RequireKeepsBlocking(t, th, rules)
				})
			}
		}
	}
}
