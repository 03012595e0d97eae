package login_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// events returns a function that returns what g has observed since the last call.
func (g try) events() func() []login.Event {
	var events []login.Event
	g.Observe = func(ctx context.Context, e login.Event) {
		require.NotNil(g.t, ctx)
		events = append(events, e)
	}
	return func() []login.Event {
		observed := events
		events = nil
		return observed
	}
}

func TestEachAttemptIsObservedOnceWithItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		observed := g.events()
		for _, c := range []struct {
			result login.Result
			end    func(*login.Attempt) error
		}{
			{login.Succeeded, func(a *login.Attempt) error { return a.Succeed(ctx) }},
			{login.Failed, func(a *login.Attempt) error { return a.Fail(ctx) }}, // after it: a success forgets failures
			{login.Canceled, func(a *login.Attempt) error { return a.Cancel(ctx) }},
		} {
			a := g.begin("Alice", netip.MustParseAddr("::ffff:203.0.113.7"))
			require.Empty(t, observed())
			for range 3 {
				require.NoError(t, ignore(c.end(a), login.ErrSettled))
			}
			require.NoError(t, a.Fail(ctx))
			require.Equal(t, []login.Event{{Name: "alice", Addr: home, Decision: a.Decision, Result: c.result}}, observed())
		}
		g.fails(4, "alice", home)
		require.Len(t, observed(), 4)
		a := g.begin("alice", home)
		require.Equal(t, []login.Event{{Name: "alice", Addr: home, Decision: a.Decision, Result: login.Refused}}, observed())
		require.NoError(t, a.Fail(ctx))
		require.Empty(t, observed())
	})
}

// ignore returns err unless it is what is ignored.
func ignore(err, ignored error) error {
	if err == ignored {
		return nil
	}
	return err
}

// The owner of a name under attack makes one attempt, and it succeeds.
func TestThoseWhoAreKnownAreObservedOnce(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.succeeds("alice", home)
			g.fill("alice")
			g.Shadow = shadow
			observed := g.events()
			g.succeeds("alice", home)
			events := observed()
			require.Len(t, events, 1)
			require.True(t, events[0].Known)
			require.Equal(t, login.Succeeded, events[0].Result)
			require.False(t, events[0].Decision.WouldBlock)

			g.fails(1, "alice", away)
			events = observed()
			require.Len(t, events, 1)
			require.Equal(t, map[bool]login.Result{false: login.Refused, true: login.Failed}[shadow], events[0].Result)
			require.True(t, events[0].Decision.WouldBlock)
		})
	}
}

func TestAttemptSaysThatALimitIsHalfUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for _, want := range []bool{false, false, true, true, true, true} {
			a := g.begin("alice", home)
			require.Equal(t, want, a.HalfUsed)
			require.NoError(t, a.Fail(t.Context()))
		}
		require.False(t, g.begin("bob", home).HalfUsed)
		for i := range 12 {
			g.fails(1, "carol", addr(i))
		}
		require.True(t, g.begin("carol", away).HalfUsed, "of the name")
	})
}

func TestResultsHaveNames(t *testing.T) {
	for r, want := range map[login.Result]string{
		login.Refused: "refused", login.Succeeded: "succeeded", login.Failed: "failed", login.Canceled: "canceled",
		-1: "Result(-1)", 4: "Result(4)",
	} {
		require.Equal(t, want, r.String())
	}
}

func TestExemptAddressesHaveTheLimitsOfNamesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Exempt = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("::ffff:198.51.100.0/120")}
		g.Network48.Max = 10
		for i := range 1000 {
			for _, from := range []netip.Addr{office, v6(0, 0), away} {
				require.Equal(t, 1, g.fails(1, pupil(i), from))
			}
		}
		require.Equal(t, 5, g.fails(9, "alice", office))
		require.Equal(t, 50, g.burst(60, pupil, same(home)))
		g.fill("bob")
		a := g.begin("bob", office)
		require.Equal(t, throttler.Blocked, a.Decision.Status)
	})
}
