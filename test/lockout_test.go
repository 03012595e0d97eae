package throttler_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bansOf returns the lengths of n bans of rule, each set when the one before it ends.
func bansOf(t *testing.T, rule throttler.Rule, n int) (lengths []time.Duration) {
	var s throttler.Simulation
	for now := epoch; len(lengths) < n; {
		d, err := s.Authorize(now, rule)
		require.NoError(t, err)
		if o := d.Outcomes[0]; o.Banned {
			lengths = append(lengths, o.RetryAfter)
			now = now.Add(o.RetryAfter)
		}
	}
	return lengths
}

func growing(lockout, longest time.Duration, growth float64) throttler.Rule {
	rule := either(condition("c", 1, time.Second))
	rule.Lockout, rule.MaxLockout, rule.LockoutGrowth = lockout, longest, growth
	return rule
}

func TestGrowthEndsAtTheDefault(t *testing.T) {
	day := 24 * time.Hour
	require.Equal(t, []time.Duration{time.Hour, day, day}, bansOf(t, growing(time.Hour, 0, 1000), 3))
	// A first ban is as long as it says.
	require.Equal(t, []time.Duration{2 * day, 2 * day}, bansOf(t, growing(2*day, 0, 2), 2))
	own := growing(time.Hour, day, 2)
	own.Either[0].Lockout = 2 * day
	require.Equal(t, []time.Duration{2 * day, 2 * day}, bansOf(t, own, 2))
}

// Of three calls at once one at most can be authorized, and the others give back
// what they have counted. So no user is banned who may call twice.
func TestHitsThatAreGivenBackBanNobody(t *testing.T) {
	eachAlgorithm(t, 2, func(t *testing.T, user throttler.Condition) {
		for range 250 {
			_, o := threeAtOnce(t, user, func() time.Duration { return rand.N(time.Millisecond) }) // in every order
			require.False(t, o.Banned)
			if user.Algorithm != throttler.LeakyBucket {
				require.GreaterOrEqual(t, o.Remaining, 1)
			} else {
				// It keeps what leaked between a hit and its giving back.
				require.LessOrEqual(t, o.ResetAfter, user.TTL/2+50*time.Millisecond)
			}
		}
	})
}

// Nor is a call told of a ban that is lifted a moment later, but where it comes just
// when the others have counted.
func TestHitsThatAreGivenBackHardlyEverShowABan(t *testing.T) {
	eachAlgorithm(t, 2, func(t *testing.T, user throttler.Condition) {
		const rounds = 400
		told := 0
		for range rounds {
			banned, _ := threeAtOnce(t, user, func() time.Duration { return time.Millisecond + rand.N(100*time.Microsecond) })
			if banned {
				told++
			}
		}
		require.LessOrEqual(t, told, rounds/100)
	})
}

// The hits of before a ban that keeps them are not in the bucket that begins after it.
func TestHitsOfBeforeABanAreNotTakenOutOfTheBucketThatFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(leaky(10, 10*time.Second), condition("window", 1000, time.Hour))
		rule.Either[0].Lockout, rule.CountAuthorizedOnly = time.Second, true
		burst := func() (ds []throttler.Decision) {
			for range 10 {
				ds = append(ds, authorize(t, th, rule))
				require.Equal(t, throttler.Authorized, ds[len(ds)-1].Status)
			}
			return ds
		}
		before := burst()
		require.True(t, authorize(t, th, rule).Outcomes[0].NewBan)
		time.Sleep(time.Second)
		burst()
		for _, d := range before {
			require.NoError(t, th.Cancel(t.Context(), d))
		}
		bucket := rule.Either[0]
		bucket.Lockout = 0
		o := authorize(t, th, either(bucket)).Outcomes[0]
		require.True(t, o.Blocked)
		require.Equal(t, 10*time.Second, o.ResetAfter)
	})
}

// A limit was changed from a bucket, which is over its brim, to a calendar.
func TestABanOnACalendarHoldsBesideADebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		bucket, day := leaky(10, time.Minute), calendar(1, throttler.Period{})
		day.Value = bucket.Value
		_, err := th.Settle(t.Context(), authorize(t, th, either(bucket)), map[string]int{"c": 100})
		require.NoError(t, err)
		rule := either(day, condition("window", 1000, time.Hour))
		rule.Lockout, rule.CountAuthorizedOnly = time.Hour, true
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		require.True(t, authorize(t, th, rule).Outcomes[0].NewBan)
		require.True(t, authorize(t, th, rule).Outcomes[0].Banned)
	})
}

// threeAtOnce makes three calls at once, as if in processes of their own, of a rule
// that lets everybody call once and bans a user who is full. Each operation takes as
// long as latency says. It returns whether a call was told of a ban, and what is left
// for the user.
func threeAtOnce(t *testing.T, user throttler.Condition, latency func() time.Duration) (banned bool, left throttler.Outcome) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		rule := either(condition("everybody", 1, time.Hour), user)
		rule.Either[0].Lockout = -1
		rule.Lockout, rule.CountAuthorizedOnly = time.Hour, true
		var wg sync.WaitGroup
		var told atomic.Bool
		for range 3 {
			client := over(store)
			client.before = func(string, ...string) error {
				time.Sleep(latency())
				return nil
			}
			th := throttler.New(client)
			wg.Go(func() {
				d, err := th.Authorize(context.Background(), rule)
				if assert.NoError(t, err) && d.Outcomes[1].Banned {
					told.Store(true)
				}
			})
		}
		wg.Wait()
		banned, left = told.Load(), peek(t, throttler.New(store), rule).Outcomes[1]
	})
	return banned, left
}
