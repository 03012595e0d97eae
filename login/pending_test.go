package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// underWay begins n attempts and ends none, and returns those that were let pass
// and those that were refused.
func (g try) underWay(n int, at func(int) string, from func(int) netip.Addr) (passed, refused []*login.Attempt) {
	g.t.Helper()
	for i := range n {
		a := g.begin(at(i), from(i))
		if a.Decision.Status == throttler.Authorized {
			passed = append(passed, a)
		} else {
			refused = append(refused, a)
		}
	}
	return passed, refused
}

func pupil(i int) string { return fmt.Sprint("pupil", i) }

func TestOneWhoOnlyGuessesIsBannedThoughNothingIsEnded(t *testing.T) {
	for _, pace := range []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 11 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.Limits = limits{"name": {Max: -1}}
			banned := false
			for start := time.Now(); !banned && time.Since(start) < 3*time.Minute; time.Sleep(pace) {
				a := g.begin("alice", home)
				banned = a.Decision.Outcomes[0].Banned
				require.Equal(t, banned, a.Decision.RetryAfter > time.Minute, pace)
			}
			require.True(t, banned, pace)
		})
	}
}

// The guard bans by filling the limit. Others may end their attempts meanwhile.
func TestABanIsSetThoughOthersGiveHitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttler.New(memstore.New())
		var given atomic.Int64
		limits.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
			if len(rule.Either) != 1 || rule.Either[0].Least != 1 || given.Load() == 3 {
				return
			}
			given.Add(1)
			rule.Either = slices.Clone(rule.Either)
			rule.Either[0].Cost, rule.Either[0].Least = 1, 0
			back, err := limits.Refund(ctx, rule)
			assert.NoError(t, err)
			assert.NoError(t, back.Err)
		}
		g := try{login.New(limits), t}
		g.underWay(5, same("alice"), same(home))
		time.Sleep(61 * time.Second)
		g.isBlocked("alice", home, 10*time.Minute)
		require.EqualValues(t, 3, given.Load())
	})
}

// A ban needs evidence: where that is lost, the limit alone holds.
func TestLostFailuresBanNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		g := on(t, store)
		g.fails(5, "alice", home)
		require.NoError(t, store.Delete("login-failures#name+address#203.0.113.7#alice"))
		a := g.begin("alice", home)
		require.Equal(t, throttler.Blocked, a.Decision.Status)
		require.False(t, a.Decision.Outcomes[0].Banned)
		require.LessOrEqual(t, a.Decision.RetryAfter, time.Minute)
	})
}

// The guard's own calls look at records in more than one way.
func TestGuardDoesNotContradictItsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttler.New(memstore.New())
		limits.Conflict = func(_ throttler.Rule, err error) { t.Error(err) }
		g := try{login.New(limits), t}
		g.fails(5, "alice", home)
		g.isBlocked("alice", home, 10*time.Minute)
		for range 5 {
			require.NoError(t, g.beginDevice("bob", away, "phone").Fail(t.Context()))
		}
		require.Equal(t, throttler.Blocked, g.beginDevice("bob", away, "phone").Decision.Status)
		g.burst(60, pupil, same(office))

		g.underWay(6, same("carol"), same(away))
		time.Sleep(61 * time.Second) // the limit is empty, and the attempts have failed
		g.isBlocked("carol", away, 10*time.Minute)
		require.NoError(t, g.Recognize(t.Context(), "carol", home, "laptop"))
		g.fill("carol")
		require.True(t, g.begin("carol", home).Known)
		require.NoError(t, g.Lift(t.Context(), "alice", home))
		require.NoError(t, g.LiftRecord(t.Context(), "name", "alice"))
		require.NoError(t, g.LiftRecord(t.Context(), "known", "alice"))
	})
}
