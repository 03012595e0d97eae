package throttler_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"
)

// A flood of logins keeps all processors busy with hashes. A limit that opened for want
// of processor time would let in more of the flood.
func TestABusyProcessKeepsItsLimits(t *testing.T) {
	for kind, work := range map[string]func(){
		"computing": servertest.Compute,
		"hashing":   func() { bcrypt.GenerateFromPassword([]byte("password"), bcrypt.DefaultCost) },
	} {
		t.Run(kind, func(t *testing.T) {
			servertest.RunBusy(t, work, map[string]func(t *testing.T) throttler.Client{
				// gomemcache counts its timeout by the clock alone, so its default of 500 ms may end a
				// call of a process that is late. Package pool has its defaults.
				"plain": func(t *testing.T) throttler.Client {
					c := memcache.New(servertest.NewMemcached(t).Addr)
					c.Timeout = 20 * time.Second
					return c
				},
				"pool": func(t *testing.T) throttler.Client {
					p, err := pool.New(servertest.NewMemcached(t).Addr)
					require.NoError(t, err)
					t.Cleanup(func() { p.Close() })
					return p
				},
			})
		})
	}
}
