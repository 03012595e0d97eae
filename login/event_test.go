package login_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

func TestAttemptThatEndsInManyWaysAtOnceIsObservedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		observed := g.events()
		for range 50 {
			a := g.begin("", home)
			var ends sync.WaitGroup
			for range 4 {
				ends.Go(func() { a.Succeed(t.Context()) })
				ends.Go(func() { a.Fail(t.Context()) })
				ends.Go(func() { a.Cancel(t.Context()) })
			}
			ends.Wait()
			events := observed()
			require.Len(t, events, 1)
			succeeded := a.Succeed(t.Context()) == nil
			require.Equal(t, succeeded, events[0].Result == login.Succeeded, "as it did end")
			require.Equal(t, !succeeded && a.Cancel(t.Context()) != nil, events[0].Result == login.Failed)
			time.Sleep(time.Hour)
		}
	})
}

func TestEventNamesWhatIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		observed := g.events()
		for from, want := range map[string]string{
			"203.0.113.8":          "203.0.113.8",
			"64:ff9b::203.0.113.7": "203.0.113.7",
			"fe80::1%eth0":         "fe80::1",
			"2001:db8:1:2:3:4:5:6": "2001:db8:1:2:3:4:5:6",
		} {
			g.fails(1, " ALICE ", netip.MustParseAddr(from))
			e := observed()[0]
			require.Equal(t, "alice", e.Name)
			require.Equal(t, netip.MustParseAddr(want), e.Addr)
		}
		g.fails(1, "", home)
		require.Empty(t, observed()[0].Name)
		g.Keys = [][]byte{[]byte("0123456789abcdef0123456789abcdef")}
		g.fails(1, "alice", home)
		require.Len(t, observed()[0].Name, 43, "a key keeps names from whoever observes")
	})
}
