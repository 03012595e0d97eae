package login_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// handOver hands a over to another guard on the same servers.
func handOver(t *testing.T, a *login.Attempt, to *login.Guard) *login.Attempt {
	t.Helper()
	text, err := a.HandOver()
	require.NoError(t, err)
	taken, err := to.TakeOver(text)
	require.NoError(t, err)
	return taken
}

// ends are the ways to end an attempt.
var ends = map[string]func(*login.Attempt, context.Context) error{
	"Succeed": (*login.Attempt).Succeed, "Fail": (*login.Attempt).Fail, "Cancel": (*login.Attempt).Cancel,
}

// An attempt that another process ends leaves the same behind as one that its own
// ends, whatever it was counted by.
func TestAnotherProcessEndsAnAttemptAsItsOwnDoes(t *testing.T) {
	for what, test := range map[string]struct {
		name   string
		addr   netip.Addr
		device string
	}{
		"a stranger":              {"alice", home, ""},
		"another spelling":        {"Alice\xff", home, ""},
		"with a device":           {"alice", home, "phone"},
		"on IPv6":                 {"alice", v6(1, 2), ""},
		"no name":                 {"", home, ""},
		"known by the address":    {"known", home, ""},
		"known by the device":     {"known", away, "laptop"},
		"known at a full address": {"known", office, ""},
	} {
		for how, end := range ends {
			name, from := test.name, test.addr
			after := func(handed bool) (left []throttler.Decision, events []login.Event) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					g, other := on(t, store), login.New(throttler.New(store))
					for _, from := range []netip.Addr{home, office} {
						require.NoError(t, g.Recognize(t.Context(), "known", from, "laptop"))
					}
					g.fill("known")
					g.burst(60, pupil, same(office))
					a := g.beginDevice(name, from, test.device)
					require.Equal(t, throttler.Authorized, a.Decision.Status)
					require.Equal(t, name == "known", a.Known)
					time.Sleep(time.Second)
					observe := func(_ context.Context, e login.Event) {
						e.Decision = throttler.Decision{Status: e.Decision.Status}
						events = append(events, e)
					}
					g.Observe, other.Observe = observe, observe
					if handed {
						a = handOver(t, a, other)
						g.Guard = other
					}
					require.NoError(t, end(a, t.Context()))
					a = g.beginDevice(name, from, test.device) // gives back a failure just before it
					require.NoError(t, a.Succeed(t.Context()))
					for range 7 {
						a := g.beginDevice(name, from, test.device)
						d := throttler.Decision{Status: a.Decision.Status, RetryAfter: a.Decision.RetryAfter, Outcomes: a.Decision.Outcomes}
						left = append(left, d)
						require.NoError(t, a.Fail(t.Context()))
					}
				})
				return left, events[:1]
			}
			left, events := after(false)
			leftByOther, eventsOfOther := after(true)
			require.Equal(t, left, leftByOther, "%s, %s", what, how)
			require.Equal(t, events, eventsOfOther, "%s, %s", what, how)
		}
	}
}

func TestAnAttemptThatWasHandedOverEndsElsewhereOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		observed := g.events()
		a := g.begin("alice", home)
		taken := handOver(t, a, g.Guard)
		_, err := a.HandOver()
		require.ErrorIs(t, err, login.ErrNotOpen)
		require.ErrorIs(t, a.Succeed(ctx), login.ErrSettled)
		require.ErrorIs(t, a.Cancel(ctx), login.ErrSettled)
		require.NoError(t, a.Fail(ctx))
		require.Empty(t, observed())
		again := handOver(t, taken, g.Guard)
		require.NoError(t, again.Succeed(ctx))
		require.Len(t, observed(), 1)
		_, err = again.HandOver()
		require.ErrorIs(t, err, login.ErrNotOpen)
	})
}

func TestABlockedAttemptIsNotHandedOver(t *testing.T) {
	g := on(t, memstore.New())
	g.fails(5, "alice", home)
	_, err := g.begin("alice", home).HandOver()
	require.ErrorIs(t, err, login.ErrNotOpen)
}

func TestBytesThatAreNoAttemptAreRefused(t *testing.T) {
	g := on(t, memstore.New())
	for _, text := range []string{"", "{", "null", "{}", `{"addr":"x"}`, `{"addr":""}`, `{"addr":"203.0.113.7","receipt":"AAAA"}`, `{"addr":"203.0.113.7","receipt":"!"}`} {
		a, err := g.TakeOver([]byte(text))
		require.ErrorIs(t, err, login.ErrHandover, "%s", text)
		require.Nil(t, a)
	}
}
