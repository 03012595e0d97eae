package login_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestWhereANameIsKnown(t *testing.T) {
	playOnEachBackend(t, []scene{
		{"an address gets in when its name is under attack", nil, `
			alice in; alice full; alice in 20; alice fails 4; alice in; alice@away refused`},
		{"an address gets in when it is banned", nil, "alice@office in; @office banned; alice@office in"},
		{"a device gets in from anywhere", nil, `
			alice/phone in; alice full; @office banned; alice@office fails 0/6
			alice@away/phone in; alice@office/phone in; alice@10.0.0.5/phone in
			alice@10.0.0.6/tablet refused; bob@office/phone refused`},
	})
	scenes := []scene{
		{"it is not trusted: guesses are limited there too", nil, `
			alice in; alice full; alice fails 5/9; alice refused 10m`},
		{"a success there is taken back, and its failures are not", nil, `
			alice in; alice full; alice fails 3; alice in; alice fails 3; alice in; alice fails 3; alice in
			alice left known 3; alice left name+address 5`},
		{"is an address and nothing else", nil, `
			alice in; mallory@away in; mallory@office in; alice full; alice@office refused; @home banned; mallory@home refused`},
		{"a login by a device does not lift the ban of a neighbour", nil, `
			alice@office/phone in; alice@office fails 5/6; alice@office/phone in; alice@office refused 10m`},
		{"a stolen device is limited", nil, "alice/phone in; alice full; alice@*/phone begins 5/100"},
		{"a device is forgotten for its name alone", nil, `
			alice/shared in; alice full; Bob/shared in; Bob full
			alice/shared forgotten; bob/shared forgotten; @/shared forgotten
			alice@away/shared refused; Bob@away/shared passes; alice@home passes`},
		{"recognize lets in, and lifts the ban there", nil, `
			alice@away fails 5/6; alice full; alice@away recognized; alice@away in
			alice@home/laptop recognized; alice@10.0.0.1/laptop passes`},
		{"recognize empties the limit of a known name, everywhere", nil, `
			alice@home recognized; alice@office recognized; alice@10.0.0.1 recognized; alice full
			alice@home fails 5; alice@office fails 5; alice@10.0.0.1 fails 2/5; alice@10.0.0.1 refused
			alice@10.0.0.1 recognized; alice@10.0.0.1 in; alice@10.0.0.1 fails 5/9
			alice@away recognized; alice@away in; alice@away fails 3
			alice@away left known 9; alice lifted; alice@away left known 12`},
		{"RetryAfter is that of the way that opens first", nil, `
			alice in; alice full; alice fails 5; alice refused 10m; alice@away refused 60m`},
		{"one who shares an address uses up what is known elsewhere, but for devices", nil, `
			alice@office in; alice/laptop in; alice full` + strings.Repeat(`
			alice@office fails 1; wait 10m; alice full`, 12) + `
			alice@office fails 1/2; alice refused; alice/laptop in; alice@home recognized; alice in`},
		{"an address is known for a month after the last success", nil, strings.Repeat("alice in; wait 24h;", 100) + `
			wait 672h; alice full; alice passes; wait 768h; alice full; alice refused`},
		{"or nobody is known", func(g *login.Guard) { g.KnownFor = -1 }, "alice/phone in; alice full; alice refused; alice/phone refused"},
		{"by a spelling that is not normalized", nil, "José in; jose full; José in; José@away refused"},
	}
	for _, typed := range []struct{ before, now, want string }{
		{"alice", "alice_", "passes"}, {"alice\u00a0", "alice", "passes"}, {"Alice", "_Alice", "passes"},
		{"alice", "al_ice", "refused"}, {"alice", "Alice_", "refused"},
	} {
		scenes = append(scenes, scene{"a blank at an end makes nobody a stranger", nil, fmt.Sprintf(
			"%[1]s in; %[1]s full; %[2]s full; %[2]s %s", typed.before, typed.now, typed.want)})
	}
	for _, name := range []string{"alice", "Alice"} {
		for _, old := range []string{"-", "old"} {
			scenes = append(scenes, scene{"under a key that has become a former one", nil, strings.NewReplacer("alice", name, "OLD", old).Replace(`
				keys OLD; alice/phone in; keys new older OLD; alice full; keys new; alice refused
				keys new older OLD; alice passes; alice@office refused; alice@office/tablet refused; alice@office/phone in
				keys new; alice@office passes; alice@away/phone passes`)})
		}
	}
	// Two accounts that are one name: the first one's owner gains nothing at the second.
	for _, pair := range twins {
		names := strings.NewReplacer("own", pair[0], "twin", pair[1])
		scenes = append(scenes,
			scene{"the owner of a twin makes nothing known", nil, names.Replace(`
				own@home/phone in; own@office/laptop recognized; twin full
				twin@home refused; twin@home/phone refused; twin@home/laptop refused
				twin@office refused; twin@office/phone refused; twin@office/laptop refused
				own@home passes; own@10.0.0.1/laptop passes`)},
			scene{"nor lifts its ban", nil, names.Replace(`
				twin fails 4; own in; twin fails 1/3; twin refused 10m; own@home recognized; twin refused 10m`)})
	}
	play(t, scenes)
}

// A success gives back the last failures of the same account, from the same place.
func TestSuccessGivesBackTheTyposBeforeIt(t *testing.T) {
	play(t, []scene{
		{"its own", nil, "alice@office fails 3; alice@office in; alice@office left address 50; alice left name ~21"},
		{"not another spelling's", nil, "Alice@office fails 3; alice@office in; alice@office left address 47; alice left name ~21"},
		{"not another name's", nil, "bob@office fails 3; alice@office in; alice@office left address 47; alice left name 24"},
		{"not from elsewhere", nil, "alice fails 3; alice@office in; alice left address 47; alice left name ~21"},
		{"not of more than a minute ago", nil, "alice@office fails 3; wait 60s; alice@office in; alice@office left address 47"},
		{"no more than four", func(g *login.Guard) { g.Limits = limits{"name+address": {Max: 10}} }, `
			alice@office fails 7; alice@office in; alice@office left address 47; alice left name ~17`},
		{"once", nil, "alice@office fails 2; alice@office in; bob@office fails 2; alice@office in; bob@office left address 48; alice left name ~22"},
		{"not of another device", nil, "alice@office/phone fails 1; alice@office in; alice@office left address 49; alice left name ~23"},
	})
}

// However many addresses a name is known at, an attacker who shares them all has
// one budget.
func TestKnownAddressesShareABudgetAndDevicesHaveTheirOwn(t *testing.T) {
	takesLong(t)
	for _, addresses := range []int{1, 5, 30} {
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
			g.Limits = limits{"name": {Max: -1}, "address": {Max: -1}, "address-day": {Max: -1}}
			alone := 0
			for range 24 * 60 * 2 {
				alone += g.fails(1, fmt.Sprint(pair[1], "x"), home)
				time.Sleep(30 * time.Second)
			}
			require.LessOrEqual(t, g.guess(pair[0], pair[1]), alone+5, "no more than without an account")
		})
	}
}
