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

// The siege goes on while attackers are challenged, and those who then get in
// have not contributed to it.
func TestTheAlarmCountsAChallengeUntilASuccess(t *testing.T) {
	for in, siege := range map[time.Duration]bool{-1: true, time.Minute: false, 11 * time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			w := watchOn(t, memstore.New())
			challenge := func(who string) {
				for i := range 60 {
					require.NoError(t, w.begin(fmt.Sprint(who, i), spread(i)).Challenge(t.Context()))
				}
			}
			challenge("user")
			time.Sleep(max(in, 0))
			for i := range 60 {
				if in >= 0 {
					w.succeeds(fmt.Sprint("user", i), spread(i))
				}
			}
			challenge("victim")
			require.Equal(t, siege, w.look().Siege, in)
		})
	}
}

// Those whose challenge is taken back have used nothing of the share of their network.
func TestWhatIsTakenBackUsesUpNoShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		for i := range 100 {
			name, from := fmt.Sprint("user", i), spread(i%20)
			require.NoError(t, w.begin(name, from).Challenge(t.Context()))
			w.succeeds(name, from)
		}
		for i := range 100 {
			w.fails(1, fmt.Sprint("victim", i), spread(i%20))
		}
		require.True(t, w.look().Siege)
	})
}

// What was reported before is taken back from later reports.
func TestWhatIsTakenBackLateIsNotCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		for i := range 60 {
			require.NoError(t, w.begin(fmt.Sprint("user", i), spread(i)).Challenge(t.Context()))
		}
		w.look()
		for i := range 60 {
			w.succeeds(fmt.Sprint("user", i), spread(i))
		}
		w.failed = 1000
		w.stuff(99)
		require.False(t, w.look().Siege)
		w.stuff(61)
		require.True(t, w.look().Siege)
	})
}

// docs/login-lockout.md, "The alarm": an attacker who begins a siege, and then
// tries each name once from an address that they share, sees who is not asked for
// a CAPTCHA: those who are known there. No limit stops that. Nobody can be told
// apart if nobody is known, and the price is that an owner whose name is under
// attack does not get in at home.
func TestASiegeTellsWhoIsKnownAtASharedAddress(t *testing.T) {
	const names, inhabitants = 1000, 37
	for _, c := range []struct {
		knownFor        time.Duration
		told            int
		ownerIsLetIn    bool
		guessesForAlarm int
	}{
		{0, inhabitants, true, 130},
		{-1, 0, false, 130},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := watchOn(t, memstore.New())
			w.KnownFor = c.knownFor
			for i := range inhabitants {
				w.succeeds(fmt.Sprint("user", i*names/inhabitants), office)
			}
			w.stuff(c.guessesForAlarm)
			require.True(t, w.look().Siege)

			told := 0
			for i := range names {
				a := w.begin(fmt.Sprint("user", i), office)
				require.Equal(t, throttler.Authorized, a.Decision.Status, "no limit stops it")
				if a.Siege {
					require.NoError(t, a.Challenge(t.Context()))
					continue
				}
				told++
				require.NoError(t, a.Fail(t.Context()))
				time.Sleep(10 * time.Second) // not to be banned
			}
			require.Equal(t, c.told, told)

			w.fill("user0") // by strangers elsewhere
			require.Equal(t, c.ownerIsLetIn, w.begin("user0", office).Decision.Status == throttler.Authorized)
		})
	}
}
