package login_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Of two ends of an attempt the first holds. The second does nothing, or is an error. It
// does not matter that the client has hung up.
func TestTheFirstEndOfAnAttemptHolds(t *testing.T) {
	type end = struct {
		how     string
		event   login.Event
		settled string // the ends that are errors after it
	}
	all := []end{
		{"refused", login.Event{Result: login.Refused}, "succeed handOver"},
		{"succeed", login.Event{Result: login.Succeeded}, "handOver"},
		{"fail", login.Event{Result: login.Failed}, "succeed cancel challenge handOver"},
		{"cancel", login.Event{Result: login.Canceled}, "succeed handOver"},
		{"challenge", login.Event{Result: login.Canceled, Challenged: true}, "succeed handOver"},
		{"keep", login.Event{Result: login.Canceled, Kept: true}, "succeed cancel challenge handOver"},
		{"handOver", login.Event{}, "succeed cancel challenge handOver"},
	}
	for _, first := range all {
		for _, second := range all[1:] {
			synctest.Test(t, func(t *testing.T) {
				g := on(t, memstore.New())
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				finish := func(a *login.Attempt, how string) error {
					if how == "handOver" {
						_, err := a.HandOver()
						return err
					}
					return ends[how](a, ctx)
				}
				counted := func() []throttler.Outcome {
					d, err := g.Peek(t.Context(), "alice", home)
					require.NoError(t, err)
					return d.Outcomes
				}
				g.fails(map[bool]int{false: 2, true: 5}[first.how == "refused"], "alice", home)
				observed := g.events()
				a := g.begin("Alice", netip.MustParseAddr("::ffff:203.0.113.7"))
				first.event.Name, first.event.Addr, first.event.Decision = "alice", home, a.Decision
				if first.how == "refused" {
					a.Decision.Status = throttler.Authorized // what the application sets does not count
				} else {
					require.Empty(t, observed())
					require.NoError(t, finish(a, first.how))
				}
				if first.how == "handOver" {
					require.Empty(t, observed())
				} else {
					require.Equal(t, []login.Event{first.event}, observed())
				}
				left := counted()
				err := finish(a, second.how)
				if slices.Contains(strings.Fields(first.settled), second.how) {
					require.ErrorIs(t, err, login.ErrSettled, "%s after %s", second.how, first.how)
				} else {
					require.NoError(t, err, "%s after %s", second.how, first.how)
				}
				require.Equal(t, left, counted(), "%s after %s", second.how, first.how)
				require.Empty(t, observed())
			})
		}
	}
}

// What an attempt leaves in the limits, by the way in which it ends.
func TestEndsOfAnAttempt(t *testing.T) {
	playOnEachBackend(t, []scene{
		{"a success takes all back", nil, "alice fails 2; alice in; alice left name+address 5; alice left name 22; alice left address 50"},
		{"a failure counts", nil, "alice fails 3; alice left name+address 2; alice left name 21; alice left address 47"},
		{"a kept attempt does too", nil, "alice keeps 3; alice left name+address 2; alice left name 21; alice left address 47; alice@* keeps 21/25; bob passes"},
		{"a canceled one counts nowhere", nil, "*@office cancels 200; alice@office left address 50; alice@office left address-day 500"},
		{"a challenged one neither", nil, `
			alice challenges 100; alice left name+address 5; alice left name 24; alice left address 50; alice left address-day 500; alice in`},
		{"pending ones refuse others for seconds: a class at a new address", nil, `
			*@office begins 50/60; alice@office refused <1m; pending succeed; *@office in 60`},
		{"six clicks at a slow site", nil, "alice begins 5/6; alice refused <1m; pending succeed; alice in 6"},
		{"one name from everywhere", nil, "alice@* begins 24/30; alice refused <1m; pending succeed; alice@* in 30"},
	})
	play(t, []scene{
		{"a canceled attempt never becomes a failure", nil, "*@office cancels 60; wait 1m; @office fails 50/60"},
		{"a kept one bans nobody", nil, `
			alice keeps 5; alice refused <1m; wait 31s; alice refused <29s; wait 28s; alice refused <1s; wait 1s
			alice keeps 4; alice in; alice keeps 5; alice refused <1m`},
		{"nor in shadow", func(g *login.Guard) { g.Shadow = true }, "alice keeps 50; wait 1m; alice left name+address 5"},
		{"the ban waits for what is pending, which succeeds", nil, `
			alice fails 4; alice begins 1; alice refused <1m; pending succeed; alice fails 5/9; alice refused 10m`},
		{"is canceled", nil, "alice fails 4; alice begins 1; alice refused <1m; pending cancel; alice fails 1/9; alice refused 10m"},
		{"fails", nil, "alice fails 4; alice begins 1; alice refused <1m; pending fail; alice refused 10m"},
		{"or is left, and fails after half a minute", nil, "alice fails 4; alice begins 1; alice refused <1m; wait 30s; alice refused 10m"},
		{"five are left", nil, "alice begins 5; wait 29s; alice refused 5s; wait 1s; alice refused 10m; alice@away in"},
		{"and one comes later", nil, "alice begins 5; wait 59s; alice refused 10m; alice@away in"},
		{"when the limit is empty", nil, "alice begins 5; wait 60s; alice refused 10m; alice@away in"},
		{"in the last second", nil, "alice begins 5; wait 89s; alice refused 10m; alice@away in"},
		{"late is not too late", nil, "alice begins 5; wait 40s; pending succeed; alice fails 5/9"},
		{"failures ban within their time alone", nil, "alice fails 4; wait 61s; alice begins 5/6; alice refused <1m"},
		{"where no ban is set, an attempt past its time is not pending", func(g *login.Guard) { g.Limits = limits{"address-day": {Max: 3}} }, `
			*@office begins 3; alice@office refused 5s; wait 31s; alice@office refused 8h`},
	})
}
