package throttler_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slow is a Client whose operations take a while, some longer than others, so that
// calls at once meet in every order.
type slow struct{ throttler.Client }

func (slow) wait() { time.Sleep(rand.N(time.Millisecond)) }

func (s slow) Get(key string) (*memcache.Item, error) {
	s.wait()
	return s.Client.Get(key)
}

func (s slow) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	s.wait()
	return s.Client.GetMulti(keys)
}

func (s slow) Add(item *memcache.Item) error {
	s.wait()
	return s.Client.Add(item)
}

func (s slow) CompareAndSwap(item *memcache.Item) error {
	s.wait()
	return s.Client.CompareAndSwap(item)
}

// Of three calls at once one at most can be authorized, and the others give back
// what they have counted. So no user is banned who may call twice.
func TestHitsThatAreGivenBackBanNobody(t *testing.T) {
	forEachAlgorithm(t, 2, func(t *testing.T, user throttler.Condition) {
		for round := range 800 {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				rule := either(condition("everybody", 1, time.Hour), user)
				rule.Either[0].Lockout = -1
				rule.Lockout, rule.CountAuthorizedOnly = time.Hour, true
				var wg sync.WaitGroup
				for range 3 {
					th := throttler.New(slow{store}) // as if in a process of its own
					wg.Go(func() {
						_, err := th.Authorize(context.Background(), rule)
						assert.NoError(t, err)
					})
				}
				wg.Wait()
				o := peek(t, throttler.New(store), rule).Outcomes[1]
				require.False(t, o.Banned, "round %d", round)
				if user.Algorithm == throttler.SlidingWindow {
					require.GreaterOrEqual(t, o.Remaining, 1, "round %d", round)
				} else {
					// It keeps what leaked between a hit and its giving back.
					require.LessOrEqual(t, o.ResetAfter, user.TTL/2+50*time.Millisecond, "round %d", round)
				}
			})
		}
	})
}
