package login_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// fill has strangers use up the budget of name, from many addresses.
func (g try) fill(name string) {
	g.t.Helper()
	for i := range 30 {
		g.fails(1, name, addr(1000+i))
	}
	require.Equal(g.t, throttler.Blocked, g.begin(name, away).Decision.Status)
}

// banAddress has strangers get addr banned.
func (g try) banAddress(addr netip.Addr) {
	g.t.Helper()
	for i := range 51 {
		g.fails(1, fmt.Sprint("victim", i), addr)
	}
	require.Equal(g.t, throttler.Blocked, g.begin("stranger", addr).Decision.Status)
}

func TestKnownAddressGetsInWhenItsNameIsUnderAttack(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		g.succeeds("alice", home)
		g.fill("alice")
		for range 20 {
			g.succeeds("alice", home)
		}
		g.fails(4, "alice", home)
		g.succeeds("alice", home)
		require.Equal(t, throttler.Blocked, g.begin("alice", away).Decision.Status)
	})
}

func TestKnownAddressGetsInWhenItIsBanned(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		g.succeeds("alice", office)
		g.banAddress(office)
		g.succeeds("alice", office)
	})
}

// What is known is not trusted: from there, too, guesses are limited.
func TestKnownAddressHasABudgetOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.succeeds("alice", home)
		g.fill("alice")
		require.Equal(t, 5, g.fails(9, "alice", home))
		g.isBlocked("alice", home, 10*time.Minute)
		time.Sleep(10 * time.Minute)

		verified := 5
		for range 24 * 60 {
			g.fails(1, "alice", away) // the attack goes on
			verified += g.fails(1, "alice", home)
			time.Sleep(time.Minute)
		}
		require.LessOrEqual(t, verified, 12+12+1)
	})
}

// However many addresses a name is known at, an attacker who shares them all has
// one budget.
func TestKnownAddressesShareABudgetAndDevicesHaveTheirOwn(t *testing.T) {
	takesLong(t)
	for _, addresses := range []int{1, 5, 100} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			for i := range addresses {
				require.NoError(t, g.beginDevice("alice", addr(i), "phone").Succeed(t.Context()))
			}
			g.fill("alice")
			verified := 0
			for range 24 * 60 {
				g.fails(1, "alice", away) // so that the name stays full
				for i := range addresses {
					verified += g.fails(1, "alice", addr(i))
				}
				time.Sleep(time.Minute)
			}
			require.LessOrEqual(t, verified, 12+12+24+1, "with what the name itself leaks")
			require.Equal(t, throttler.Authorized, g.beginDevice("alice", away, "phone").Decision.Status)
		})
	}
}

// Who has used up the budget where the name is known gets in by a link.
func TestRecognizeRefillsTheBudgetWhereANameIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for _, from := range []netip.Addr{home, office, addr(1)} {
			require.NoError(t, g.Recognize(t.Context(), "alice", from, ""))
		}
		g.fill("alice")
		for _, from := range []netip.Addr{home, office, addr(1)} {
			g.fails(5, "alice", from)
		}
		require.Equal(t, throttler.Blocked, g.begin("alice", addr(1)).Decision.Status)
		require.NoError(t, g.Recognize(t.Context(), "alice", addr(1), ""))
		g.succeeds("alice", addr(1))

		require.Equal(t, 5, g.fails(9, "alice", addr(1)))
		require.NoError(t, g.Recognize(t.Context(), "alice", away, ""))
		g.succeeds("alice", away)

		g.fails(3, "alice", away)
		used := func() int {
			d, err := g.Peek(t.Context(), "alice", netip.Addr{})
			require.NoError(t, err)
			require.Equal(t, "known", d.Outcomes[1].Name)
			return 12 - 1 - d.Outcomes[1].Remaining
		}
		require.Positive(t, used())
		require.NoError(t, g.Lift(t.Context(), "alice", netip.Addr{}), "an operator lifts it by the name")
		require.Zero(t, used())
	})
}

// An insider who knows all names known at a shared address gains only its daily
// limit once more.
func TestThoseKnownAtAnAddressShareABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for i := range 400 {
			g.succeeds(fmt.Sprint("user", i), office)
		}
		g.banAddress(office)
		verified := 0
		for i := range 4000 {
			verified += g.fails(1, fmt.Sprint("user", i%400), office)
		}
		require.Equal(t, 500, verified)

		require.NoError(t, g.Lift(t.Context(), "", office))
		g.banAddress(office)
		require.Equal(t, 1, g.fails(1, "user0", office))
	})
}

func TestSuccessThroughAKnownAddressIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.succeeds("alice", home)
		g.fill("alice")
		for range 3 {
			g.fails(3, "alice", home)
			g.succeeds("alice", home)
		}
		d := g.begin("alice", home).Decision
		require.Equal(t, "known", d.Outcomes[1].Name)
		require.Equal(t, 12-9-1, d.Outcomes[1].Remaining)
		require.Equal(t, "name+address", d.Outcomes[0].Name)
		require.Equal(t, 5-1, d.Outcomes[0].Remaining)
	})
}

func TestKnownIsANameAtItsAddressAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.succeeds("alice", home)
		g.succeeds("mallory", away)
		g.succeeds("mallory", office)
		g.fill("alice")
		require.Equal(t, throttler.Blocked, g.begin("alice", office).Decision.Status)
		g.banAddress(home)
		require.Equal(t, throttler.Blocked, g.begin("mallory", home).Decision.Status)
	})
}

func TestAddressIsKnownForAMonthAfterTheLastSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		g := on(t, memstore.New())
		isKnown := func() bool {
			g.fill("alice")
			return g.begin("alice", home).Decision.Status == throttler.Authorized
		}
		for range 100 {
			g.succeeds("alice", home)
			time.Sleep(day)
		}
		time.Sleep(28 * day)
		require.True(t, isKnown())
		time.Sleep(32 * day)
		require.False(t, isKnown())

		g.KnownFor = -1
		time.Sleep(day)
		g.succeeds("alice", home)
		require.False(t, isKnown())
	})
}

func TestKnownDeviceGetsInFromAnywhere(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		require.NoError(t, g.beginDevice("alice", home, "phone").Succeed(t.Context()))
		g.fill("alice")
		g.banAddress(office)
		g.fails(6, "alice", office)
		for _, from := range []netip.Addr{away, office, addr(5)} {
			a := g.beginDevice("alice", from, "phone")
			require.Equal(t, throttler.Authorized, a.Decision.Status)
			require.NoError(t, a.Succeed(t.Context()))
		}
		require.Equal(t, throttler.Blocked, g.beginDevice("alice", addr(6), "tablet").Decision.Status)
		require.Equal(t, throttler.Blocked, g.beginDevice("bob", office, "phone").Decision.Status)
	})
}

// A login by a known device does not lift the ban of a neighbour.
func TestSuccessByDeviceDoesNotLiftTheBanOfNameAndAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		require.NoError(t, g.beginDevice("alice", office, "phone").Succeed(t.Context()))
		g.fails(6, "alice", office)
		a := g.beginDevice("alice", office, "phone")
		require.Equal(t, throttler.Authorized, a.Decision.Status)
		require.NoError(t, a.Succeed(t.Context()))
		g.isBlocked("alice", office, 10*time.Minute)
	})
}

func TestStolenDeviceIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		require.NoError(t, g.beginDevice("alice", home, "phone").Succeed(t.Context()))
		g.fill("alice")
		verified := 0
		for i := range 100 {
			if g.beginDevice("alice", addr(i), "phone").Decision.Status == throttler.Authorized {
				verified++
			}
		}
		require.Equal(t, 5, verified)
	})
}

// A user who leaves a shared computer does not make others strangers.
func TestForgottenDeviceIsForgottenForItsNameAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for _, name := range []string{"alice", "Bob"} {
			require.NoError(t, g.beginDevice(name, home, "shared").Succeed(t.Context()))
			g.fill(name)
		}
		require.NoError(t, g.Forget(t.Context(), "alice", "shared"))
		require.NoError(t, g.Forget(t.Context(), "bob", "shared"), "another spelling than the one that is known")
		require.Equal(t, throttler.Blocked, g.beginDevice("alice", away, "shared").Decision.Status)
		require.Equal(t, throttler.Authorized, g.beginDevice("Bob", away, "shared").Decision.Status)
		require.Equal(t, throttler.Authorized, g.begin("alice", home).Decision.Status, "known by the address")
		require.NoError(t, g.Forget(t.Context(), "", "shared"))
		require.ErrorIs(t, g.Forget(t.Context(), strings.Repeat("x", 1025), "shared"), login.ErrNameTooLong)
	})
}

func TestABlankAtAnEndMakesNobodyAStranger(t *testing.T) {
	for _, typed := range []struct {
		before, now string
		want        throttler.Status
	}{
		{"alice", "alice ", throttler.Authorized}, {"alice\u00a0", "alice", throttler.Authorized}, {"Alice", " Alice", throttler.Authorized},
		{"alice", "al ice", throttler.Blocked}, {"alice", "Alice ", throttler.Blocked},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			require.NoError(t, g.begin(typed.before, home).Succeed(t.Context()))
			g.fill(typed.before)
			g.fill(typed.now)
			require.Equal(t, typed.want, g.begin(typed.now, home).Decision.Status, "%q at the place of %q", typed.now, typed.before)
		})
	}
}

func TestRecognizeLetsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.fails(6, "alice", away)
		g.fill("alice")
		require.NoError(t, g.Recognize(t.Context(), "alice", away, ""))
		g.succeeds("alice", away)

		require.NoError(t, g.Recognize(t.Context(), "alice", home, "laptop"))
		require.Equal(t, throttler.Authorized, g.beginDevice("alice", addr(1), "laptop").Decision.Status)
	})
}

// RetryAfter of a known name is the time until the first way opens.
func TestRetryAfterIsThatOfTheShorterWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.succeeds("alice", home)
		g.fill("alice")
		g.fails(5, "alice", home)
		g.isBlocked("alice", home, 10*time.Minute)
		require.Greater(t, g.begin("alice", away).Decision.RetryAfter, 50*time.Minute)
	})
}

// docs/login-lockout.md, "What limits a lockout": an attacker at the office, who has
// strangers fill the name, keeps its owner out at home too, unless they have a
// device.
func TestWhoSharesAnAddressUsesUpWhatIsKnownElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.succeeds("alice", office)
		require.NoError(t, g.beginDevice("alice", home, "laptop").Succeed(t.Context()))
		g.fill("alice")
		for range 12 {
			g.fails(1, "alice", office)
			time.Sleep(10 * time.Minute)
			g.fill("alice")
		}
		g.fails(1, "alice", office)
		require.Equal(t, throttler.Blocked, g.begin("alice", home).Decision.Status)
		require.NoError(t, g.beginDevice("alice", home, "laptop").Succeed(t.Context()))
		require.NoError(t, g.Recognize(t.Context(), "alice", home, ""))
		g.succeeds("alice", home)
	})
}
