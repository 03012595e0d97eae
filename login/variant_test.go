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

func TestOwnerOfATwinMakesNothingKnown(t *testing.T) {
	for _, pair := range twins {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			require.NoError(t, g.beginDevice(pair[0], home, "phone").Succeed(t.Context()))
			require.NoError(t, g.Recognize(t.Context(), pair[0], office, "laptop"))
			g.fill(pair[1])
			for _, device := range []string{"", "phone", "laptop"} {
				require.Equal(t, throttler.Blocked, g.beginDevice(pair[1], home, device).Decision.Status)
				require.Equal(t, throttler.Blocked, g.beginDevice(pair[1], office, device).Decision.Status)
			}
			require.Equal(t, throttler.Authorized, g.begin(pair[0], home).Decision.Status)
			require.Equal(t, throttler.Authorized, g.beginDevice(pair[0], addr(1), "laptop").Decision.Status)
		})
	}
}

func TestOwnerOfATwinDoesNotLiftItsBan(t *testing.T) {
	for _, pair := range twins {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			own := g.begin(pair[0], home)
			require.Equal(t, 4, g.fails(4, pair[1], home))
			require.NoError(t, own.Succeed(t.Context()))
			require.Equal(t, 1, g.fails(3, pair[1], home), "the four still count")
			g.isBlocked(pair[1], home, 10*time.Minute)
			require.NoError(t, g.Recognize(t.Context(), pair[0], home, ""))
			g.isBlocked(pair[1], home, 10*time.Minute)
		})
	}
}

// An account's own spelling is known and cleared, normalized or not.
func TestSpellingsThatAreNotNormalizedAreKnownToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.succeeds("José", home)
		g.fill("jose")
		g.succeeds("José", home)
		require.Equal(t, throttler.Blocked, g.begin("José", away).Decision.Status)
	})
}
