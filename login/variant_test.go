package login_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Two accounts that are one name: the first one's owner guesses at the second.
var twins = [][2]string{{"jose", "josé"}, {"josé", "jose"}, {"Alice", "alice"}, {"alice", "Alice"}, {"ALICE", "Alice"}}

// guess has the owner of own guess at the twin for a day, and log in whenever
// that is possible. It returns how many guesses were verified.
func (g try) guess(own, twin string) (verified int) {
	for range 24 * 60 * 2 {
		verified += g.fails(1, twin, home)
		if a := g.begin(own, home); a.Decision.Status == throttler.Authorized {
			require.NoError(g.t, a.Succeed(g.t.Context()))
		}
		time.Sleep(30 * time.Second)
	}
	return verified
}

func TestOwnerOfATwinClearsNothing(t *testing.T) {
	takesLong(t)
	for _, pair := range twins {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			require.LessOrEqual(t, g.guess(pair[0], pair[1]), 24+24, "%q, by the owner of %q", pair[1], pair[0])

			g = on(t, memstore.New())
			g.Name.Max, g.Address.Max, g.AddressDay.Max = -1, -1, -1
			alone := 0
			for range 24 * 60 * 2 {
				alone += g.fails(1, fmt.Sprint(pair[1], "x"), home)
				time.Sleep(30 * time.Second)
			}
			require.LessOrEqual(t, g.guess(pair[0], pair[1]), alone+5, "no more than without an account")
		})
	}
}
