package login_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

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

func TestResultsHaveNames(t *testing.T) {
	for r, want := range map[login.Result]string{
		login.Refused: "refused", login.Succeeded: "succeeded", login.Failed: "failed", login.Canceled: "canceled",
		-1: "Result(-1)", 4: "Result(4)",
	} {
		require.Equal(t, want, r.String())
	}
}
