package login_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A botnet guesses at one name for a year, as soon as it may, from an address of
// its own each time, and in the second case from a place where the name is known
// too. docs/login-lockout.md has the figures.
func TestAPatientBotnetHasANumberOfGuessesAYear(t *testing.T) {
	takesLong(t)
	for _, c := range []struct{ nameLong, elsewhere, known int }{
		{0, 8783, 4391},
		{100, 100, 100},
		{50, 50, 50},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.Limits = limits{"name-long": {Max: c.nameLong}}
			elsewhere, known := 0, 0
			for hour := range 365 * 24 {
				if hour%(14*24) == 0 { // the owner logs in, so that it stays known
					require.NoError(t, g.beginDevice("alice", office, "phone").Succeed(t.Context()))
				}
				for i := 0; g.fails(1, "alice", addr(30*hour+i)) == 1; i++ {
					elsewhere++
				}
				known += g.fails(1, "alice", office)
				time.Sleep(time.Hour)
			}
			require.Equal(t, c.elsewhere, elsewhere)
			require.Equal(t, c.known, known)
		})
	}
}

// While strangers have used up NameLong, an owner gets in at home and with a
// device, anywhere by a mail, and is not kept out by more guesses.
func TestOwnersDoNotNoticeThatStrangersNeedASecondStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Limits = limits{"name-long": {Max: 100}}
		g.succeeds("alice", home)
		require.NoError(t, g.beginDevice("alice", home, "phone").Succeed(t.Context()))
		random := rand.New(rand.NewPCG(1, 2))
		inAtHome, inByDevice, inByMail := 0, 0, 0
		for day := range 365 {
			for i := range 40 {
				g.fails(1, "alice", addr(40*day+i))
			}
			for random.IntN(100) < 15 { // a typo
				g.fails(1, "alice", home)
				time.Sleep(10 * time.Second)
			}
			g.succeeds("alice", home)
			inAtHome++
			time.Sleep(6 * time.Hour)

			a := g.beginDevice("alice", addr(1<<20+day), "phone")
			require.Equal(t, throttler.Authorized, a.Decision.Status)
			require.False(t, a.SecondStep)
			require.NoError(t, a.Succeed(t.Context()))
			inByDevice++
			time.Sleep(12 * time.Hour)

			if day < 10 {
				continue
			}
			hotel := addr(1<<21 + day)
			a = g.begin("alice", hotel)
			require.Equal(t, throttler.Blocked, a.Decision.Status)
			require.True(t, a.SecondStep)
			require.NoError(t, g.Recognize(t.Context(), "alice", hotel, ""))
			a = g.begin("alice", hotel)
			require.Equal(t, throttler.Authorized, a.Decision.Status)
			require.False(t, a.SecondStep)
			require.NoError(t, a.Succeed(t.Context()))
			inByMail++
			time.Sleep(6 * time.Hour)
		}
		require.Equal(t, []int{365, 365, 355}, []int{inAtHome, inByDevice, inByMail})
	})
}

// A year without an attack: nobody needs a second step, though typos that another
// process has counted are not given back.
func TestOwnersAloneNeedNoSecondStep(t *testing.T) {
	takesLong(t)
	const people, processes = 100, 4
	synctest.Test(t, func(t *testing.T) {
		store, random := memstore.New(), rand.New(rand.NewPCG(3, 4))
		store.MaxItems = 1 << 20
		var guards [processes]*login.Guard
		for i := range guards {
			guards[i] = login.New(throttler.New(store))
			guards[i].Limits = limits{"name-long": {Max: 100}}
		}
		logins, asked, most := 0, 0, 0
		for day := range 365 {
			for i := range people {
				name, from := fmt.Sprint("user", i), addr(i)
				if random.IntN(5) == 0 {
					from = addr(1<<20 + day*people + i)
				}
				logins++
				wrong := 0
				if random.IntN(100) == 0 {
					wrong = 8 // a forgotten password
				}
				for {
					a, err := guards[random.IntN(processes)].Begin(t.Context(), name, from)
					require.NoError(t, err)
					if a.SecondStep {
						asked++
					}
					if a.Decision.Status == throttler.Blocked {
						break
					}
					if wrong == 0 && random.IntN(100) >= 15 {
						require.NoError(t, a.Succeed(t.Context()))
						break
					}
					wrong = max(0, wrong-1)
					require.NoError(t, a.Fail(t.Context()))
					time.Sleep(10 * time.Second)
				}
			}
			time.Sleep(23 * time.Hour)
		}
		g := guards[0]
		for i := range people {
			d, err := g.Peek(t.Context(), fmt.Sprint("user", i), netip.Addr{})
			require.NoError(t, err)
			for _, o := range d.Outcomes {
				if o.Name == "name-long" {
					most = max(most, o.Limit-o.Remaining-1)
				}
			}
		}
		require.Zero(t, asked)
		t.Logf("%d logins, %d asked for a second step; the most failures that count for one name: %d", logins, asked, most)
		require.Less(t, most, 100)
	})
}

// However many come at once, in several processes.
func TestNameLongIsExactInABurst(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		var verified atomic.Int64
		var all sync.WaitGroup
		for range 2 {
			g := on(t, client)
			g.Limits = limits{"name-long": {Max: 40}, "name": {Max: -1}}
			for i := range 100 {
				all.Go(func() {
					a, err := g.Begin(t.Context(), "alice", addr(i))
					if assert.NoError(t, err) && a.Decision.Status == throttler.Authorized {
						verified.Add(1)
						assert.NoError(t, a.Fail(t.Context()))
					}
				})
			}
		}
		all.Wait()
		require.LessOrEqual(t, verified.Load(), int64(40))
		g := on(t, client)
		g.Limits = limits{"name-long": {Max: 40}, "name": {Max: -1}}
		for i := range 40 {
			verified.Add(int64(g.fails(1, "alice", addr(200+i))))
		}
		require.Equal(t, int64(40), verified.Load())
	})
}
