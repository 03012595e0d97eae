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

func TestAttemptsUnderWayRefuseOthersForSecondsAndBanNobody(t *testing.T) {
	for _, test := range []struct {
		what       string
		n, allowed int
		at         func(int) string
		from       func(int) netip.Addr
	}{
		{"a class at a new address", 60, 50, pupil, same(office)},
		{"six clicks at a slow site", 6, 5, same("alice"), same(home)},
		{"one name from everywhere", 30, 24, same("alice"), addr},
	} {
		eachBackend(t, func(t *testing.T, client throttler.Client) {
			g := on(t, client)
			passed, refused := g.underWay(test.n, test.at, test.from)
			require.Len(t, passed, test.allowed, test.what)
			for _, a := range refused {
				require.LessOrEqual(t, a.Decision.RetryAfter, time.Minute, test.what)
				require.Positive(t, a.Decision.RetryAfter)
				for _, o := range a.Decision.Outcomes {
					require.False(t, o.Banned, test.what)
				}
			}
			for _, a := range passed {
				require.NoError(t, a.Succeed(t.Context()))
			}
			for i := range test.n {
				g.succeeds(test.at(i), test.from(i))
			}
		})
	}
}

func TestClassThatComesAllAtOnceGetsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		verified := g.burst(200, pupil, same(office))
		require.Equal(t, 50, verified, "of those who fail no more are looked at")
		a := g.begin("alice", office)
		require.True(t, a.Decision.Outcomes[1].Banned)
		require.InDelta(t, 10*time.Minute, a.Decision.RetryAfter, float64(time.Second))
	})
}

// With 4 failures and one attempt under way it depends on how that ends.
func TestBanWaitsForTheEndOfWhatIsUnderWay(t *testing.T) {
	for _, end := range []string{"succeeds", "fails", "is canceled", "is left"} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.fails(4, "alice", home)
			last := g.begin("alice", home)
			refused := g.begin("alice", home)
			require.Equal(t, throttler.Blocked, refused.Decision.Status)
			require.LessOrEqual(t, refused.Decision.RetryAfter, time.Minute)
			require.False(t, refused.Decision.Outcomes[0].Banned)
			switch end {
			case "succeeds":
				require.NoError(t, last.Succeed(t.Context()))
				require.Equal(t, 5, g.fails(9, "alice", home))
			case "is canceled":
				require.NoError(t, last.Cancel(t.Context()))
				require.Equal(t, 1, g.fails(9, "alice", home))
			case "fails":
				require.NoError(t, last.Fail(t.Context()))
			case "is left":
				time.Sleep(30 * time.Second)
			}
			g.isBlocked("alice", home, 10*time.Minute)
		})
	}
}

// Applications of before do not call Fail.
func TestAttemptThatIsNotEndedFailsAfterHalfAMinute(t *testing.T) {
	for _, later := range []time.Duration{30 * time.Second, 59 * time.Second, time.Minute, 89 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.underWay(5, same("alice"), same(home))
			time.Sleep(29 * time.Second)
			require.LessOrEqual(t, g.begin("alice", home).Decision.RetryAfter, 5*time.Second)
			time.Sleep(later - 29*time.Second)
			g.isBlocked("alice", home, 10*time.Minute)
			a, err := g.Begin(t.Context(), "alice", away)
			require.NoError(t, err)
			require.NoError(t, a.Succeed(t.Context()), "nowhere else")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		passed, _ := g.underWay(5, same("alice"), same(home))
		time.Sleep(40 * time.Second)
		for _, a := range passed {
			require.NoError(t, a.Succeed(t.Context()), "late is not too late")
		}
		require.Equal(t, 5, g.fails(9, "alice", home))
	})
}

func TestOneWhoOnlyGuessesIsBannedThoughNothingIsEnded(t *testing.T) {
	for _, pace := range []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 11 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.Name.Max = -1
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

// A Fallback decides as the backend would, and bans.
func TestTheFallbackBansOneWhoseAttemptsWereLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &failing{Client: memstore.New()}
		client.down.Store(true)
		limits := throttler.New(client)
		limits.Fallback = memstore.New()
		g := login.New(limits)
		begin := func() *login.Attempt {
			a, err := g.Begin(t.Context(), "alice", home)
			require.NoError(t, err)
			require.ErrorIs(t, a.Decision.Err, errDown)
			return a
		}
		for range 5 {
			require.Equal(t, throttler.Authorized, begin().Decision.Status)
		}
		time.Sleep(61 * time.Second)
		a := begin()
		require.Equal(t, throttler.Blocked, a.Decision.Status)
		require.InDelta(t, 10*time.Minute, a.Decision.RetryAfter, float64(time.Second))
	})
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

func TestCancelTakesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		for i := range 200 { // the account database is down
			a := g.begin(pupil(i%20), office)
			require.Equal(t, throttler.Authorized, a.Decision.Status)
			require.NoError(t, a.Cancel(ctx))
			require.NoError(t, a.Cancel(ctx))
			require.NoError(t, a.Fail(ctx), "and does nothing")
			require.ErrorIs(t, a.Succeed(ctx), login.ErrSettled)
		}
		time.Sleep(time.Minute)
		require.Equal(t, 50, g.fails(60, "", office), "nothing was left to become a failure")

		a := g.begin("bob", home)
		require.NoError(t, a.Fail(ctx))
		require.ErrorIs(t, a.Cancel(ctx), login.ErrSettled)
		b := g.begin("bob", home)
		require.NoError(t, b.Succeed(ctx))
		require.NoError(t, b.Cancel(ctx))
		require.NoError(t, g.begin("bob", office).Cancel(ctx), "of one that was blocked")
	})
}

// A failure of long ago is none, and neither is one of another limit.
func TestFailuresBanWithinTheirTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.fails(4, "alice", home)
		time.Sleep(61 * time.Second)
		passed, refused := g.underWay(6, same("alice"), same(home))
		require.Len(t, passed, 5)
		require.False(t, refused[0].Decision.Outcomes[0].Banned)
	})
}

// An attempt past its lease is not under way, also if it sets no ban.
func TestAttemptsPastTheirLeaseAreNotAskedBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.AddressDay.Max = 3
		g.underWay(3, pupil, same(office))
		require.Equal(t, 5*time.Second, g.begin("alice", office).Decision.RetryAfter)
		time.Sleep(31 * time.Second)
		require.Greater(t, g.begin("alice", office).Decision.RetryAfter, 7*time.Hour)
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
