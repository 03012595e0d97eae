package login_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

func TestAKeptAttemptStaysCountedAndBansNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		events := g.events()
		keep := func(n int) {
			for range n {
				require.NoError(t, g.begin("alice", home).Keep(t.Context()))
			}
		}
		keep(5)
		observed := events()
		require.Len(t, observed, 5)
		require.Equal(t, login.Canceled, observed[0].Result)
		require.True(t, observed[0].Kept)
		for passed := range 59 { // also where an attempt past its lease would have failed
			g.isBlocked("alice", home, time.Minute-time.Duration(passed)*time.Second)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		keep(4)
		g.succeeds("alice", home)
		keep(5)
		g.isBlocked("alice", home, time.Minute)
	})
}

func TestKeptAttemptsFillTheLimitOfTheName(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		for i := range 24 {
			require.NoError(t, g.begin("alice", spread(i)).Keep(t.Context()))
		}
		d := g.begin("alice", spread(24)).Decision
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, throttler.Authorized, g.begin("bob", spread(24)).Decision.Status)
	})
}

func TestAKeptAttemptHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		a := g.begin("alice", home)
		require.NoError(t, a.Keep(ctx))
		require.NoError(t, a.Keep(ctx))
		require.NoError(t, a.Fail(ctx))
		require.ErrorIs(t, a.Succeed(ctx), login.ErrSettled)
		require.ErrorIs(t, a.Cancel(ctx), login.ErrSettled)
		require.ErrorIs(t, a.Challenge(ctx), login.ErrSettled)
		for range 4 {
			require.NoError(t, g.begin("alice", home).Keep(ctx))
		}
		refused := g.begin("alice", home)
		require.Equal(t, throttler.Blocked, refused.Decision.Status, "nothing was taken back")
		require.NoError(t, refused.Keep(ctx))
		right := g.begin("bob", home)
		require.NoError(t, right.Succeed(ctx))
		require.NoError(t, right.Keep(ctx))
	})
}

func TestTheAlarmDoesNotCountKeptAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		for i := range 300 {
			require.NoError(t, w.begin(fmt.Sprint("user", i), spread(i)).Keep(t.Context()))
		}
		time.Sleep(time.Minute)
		require.False(t, w.look().Siege)
	})
}

func TestKeepInShadowCountsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Shadow = true
		for range 50 {
			require.NoError(t, g.begin("alice", home).Keep(t.Context()))
		}
		time.Sleep(time.Minute)
		require.False(t, g.begin("alice", home).Decision.Outcomes[0].Blocked)
	})
}
