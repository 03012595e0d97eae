package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// An operator lifts what a list shows, and those who come then are not banned
// again for what was counted before.
func TestLiftedRecordsLeaveNothingBehindThatBansAgain(t *testing.T) {
	for _, key := range []string{"", "secret"} {
		synctest.Test(t, func(t *testing.T) {
			limits := throttler.New(memstore.New())
			blocked := map[string]string{}
			limits.Observe = func(_ context.Context, rule throttler.Rule, d throttler.Decision) {
				for i, o := range d.Outcomes {
					if o.Blocked && rule.Identifier == "login" && d.Status == throttler.Blocked {
						blocked[rule.Either[i].Name] = rule.Either[i].Value
					}
				}
			}
			g := try{login.New(limits), t}
			g.Keys = [][]byte{[]byte(key)}
			for i := range 60 {
				g.fails(1, fmt.Sprint("victim", i), office)
			}
			require.Contains(t, blocked, "address")
			require.NoError(t, g.LiftRecord(t.Context(), "address", blocked["address"]))
			for i := range 60 {
				g.succeeds(fmt.Sprint("user", i), office)
			}
			require.Equal(t, 50, g.fails(1, "user0", office)+g.failAt(59, office), "counted anew")

			g.fails(9, "alice", home)
			require.NoError(t, g.LiftRecord(t.Context(), "name+address", blocked["name+address"]))
			require.Equal(t, 4, g.fails(4, "alice", home))
			g.succeeds("alice", home)

			g.fill("bob")
			require.NoError(t, g.LiftRecord(t.Context(), "name", blocked["name"]))
			g.succeeds("bob", home)
		})
	}
}

// failAt fails n times at an address, each time with another name.
func (g try) failAt(n int, from netip.Addr) (verified int) {
	for i := range n {
		verified += g.fails(1, fmt.Sprint("other", i), from)
	}
	return verified
}
