package throttler_test

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
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
	"computing": servertest.Compute,
	"hashing":   func() { bcrypt.GenerateFromPassword([]byte("password"), bcrypt.DefaultCost) },
}

// A flood of logins keeps all processors busy with hashes. A limit that opened for want
// of processor time would let in more of the flood.
func TestABusyProcessKeepsItsLimits(t *testing.T) {
	runs := slowRuns(t)
	clients := map[string]func(t *testing.T, addr string) throttler.Client{
		// gomemcache counts its timeout by the clock alone, so its default of 500 ms may end a
		// call of a process that is late. Package pool has its defaults.
		"plain": func(_ *testing.T, addr string) throttler.Client {
			c := memcache.New(addr)
			c.Timeout = 20 * time.Second
			return c
		},
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
						th := throttler.New(client(t, servertest.NewMemcached(t).Addr))
						rules := servertest.FullRules(t, th)
						servertest.KeepBusy(t, busy, work)
						servertest.RequireKeepsItsLimit(t, th)
						servertest.RequireKeepsBlocking(t, th, rules)
					})
				}
			}
		}
	}
}
