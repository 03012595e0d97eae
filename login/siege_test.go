package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// reported is more than the time until an attempt reports what is counted.
const reported = 6 * time.Second

// spread returns the i-th of many addresses, each in a network of its own.
func spread(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(11 + i/200%100), byte(i % 200), 7, byte(i / 20_000)})
}

// A watch is a guard whose alarms are noted.
type watch struct {
	try
	rung   []login.Siege
	failed int
}

func watchOn(t *testing.T, client throttler.Client) *watch {
	w := &watch{try: on(t, client)}
	w.Alarm = func(_ context.Context, s login.Siege) { w.rung = append(w.rung, s) }
	return w
}

// stuff has n guesses fail, each at another name and from another network.
func (w *watch) stuff(n int) {
	w.t.Helper()
	for range n {
		w.failed++
		require.Equal(w.t, 1, w.fails(1, fmt.Sprint("victim", w.failed), spread(w.failed)))
	}
}

// look makes attempts that report what is counted, learn what is usual, and see
// what has come of it. Nothing of them stays.
func (w *watch) look() *login.Attempt {
	w.t.Helper()
	var a *login.Attempt
	for range 4 {
		time.Sleep(reported)
		a = w.begin("looker", away)
		require.NoError(w.t, a.Cancel(w.t.Context()))
	}
	return a
}

func TestFailuresOfManyNamesFromManyNetworksRingTheAlarmInEachProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		w, other := watchOn(t, store), watchOn(t, store)
		w.succeeds("alice", home)
		w.stuff(60)
		other.failed = 1000
		other.stuff(39)
		require.False(t, w.look().Siege)
		other.look()
		require.False(t, w.look().Siege)
		require.Empty(t, w.rung)

		other.stuff(12)
		other.look()
		require.Equal(t, []login.Siege{{On: true, Failures: 111, Threshold: 100}}, other.rung)
		require.True(t, w.look().Siege, "a stranger is asked for more")
		require.Len(t, w.rung, 1)
		require.True(t, w.rung[0].On)

		require.False(t, w.begin("alice", home).Siege, "who is known is not")
		require.True(t, w.begin("alice", away).Siege)
		require.True(t, w.begin("", home).Siege)

		time.Sleep(time.Hour)
		require.False(t, w.look().Siege)
		other.look()
		require.Len(t, w.rung, 2)
		require.Len(t, other.rung, 2)
		require.False(t, w.rung[1].On)
	})
}

// all returns the alarms of all networks together.
func (w *watch) all() (rung []login.Siege) {
	for _, s := range w.rung {
		if !s.Network.IsValid() {
			rung = append(rung, s)
		}
	}
	return rung
}

// Each row is what happens in one moment, and whether it puts everybody under siege.
func TestWhatRingsTheAlarm(t *testing.T) {
	in := func(format string) func(*watch) {
		return func(w *watch) {
			for i := range 2000 {
				w.fails(1, fmt.Sprint("victim", i), netip.MustParseAddr(fmt.Sprintf(format, i%250, i/250+1)))
			}
		}
	}
	ended := func(n int, how string, late bool) func(*watch) {
		return func(w *watch) {
			var pending []*login.Attempt
			for i := range n {
				pending = append(pending, w.begin(fmt.Sprint("victim", i), spread(i)))
			}
			if late {
				for range 3 { // they have lapsed
					w.look()
				}
			}
			for _, a := range pending {
				require.NoError(w.t, ends[how](a, w.t.Context()))
			}
		}
	}
	all := func(g *login.Guard) {}
	unlimited := func(g *login.Guard) {
		g.Limits = limits{"name+address": {Max: -1}, "address": {Max: -1}, "address-day": {Max: -1}, "name": {Max: -1}}
	}
	for _, row := range []struct {
		what    string
		options func(*login.Guard)
		do      func(w *watch)
		rings   bool
	}{
		{"failures of many names from many networks", all, func(w *watch) { w.stuff(100) }, true},
		{"too few", all, func(w *watch) { w.stuff(99) }, false},
		{"from an IPv4 /16", unlimited, in("198.18.%d.%d"), false},
		{"from an IPv6 /32", unlimited, in("2001:db8:%x:%x::1"), false},
		{"from its NAT64", unlimited, in("64:ff9b::198.18.%d.%d"), false},
		{"of a name", unlimited, func(w *watch) {
			for i := range 2000 {
				w.fails(1, "alice", spread(i))
			}
		}, false},
		{"from 19 networks", unlimited, func(w *watch) {
			for i := range 2000 {
				w.fails(1, fmt.Sprint("victim", i), spread(i%19))
			}
		}, false},
		{"of 19 names", unlimited, func(w *watch) {
			for i := range 2000 {
				w.fails(1, fmt.Sprint("victim", i%19), spread(i))
			}
		}, false},
		{"without a name, as those of device codes", all, func(w *watch) {
			for i := range 120 {
				w.fails(1, []string{"", " "}[i%2], spread(i))
			}
		}, true},
		{"beside successes of one's own", all, func(w *watch) {
			for i := range 100 {
				w.stuff(1)
				for range 9 {
					w.succeeds(fmt.Sprint("own", i), spread(w.failed))
				}
			}
		}, true},
		{"beside failures of one's own, which successes take back", all, func(w *watch) {
			for i := range 120 {
				w.stuff(1)
				w.fails(1, fmt.Sprint("own", i), spread(w.failed))
				for range 5 {
					w.succeeds(fmt.Sprint("own", i), spread(w.failed))
				}
			}
		}, true},
		{"from exempt addresses", func(g *login.Guard) { g.Exempt = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")} }, func(w *watch) { w.stuff(200) }, false},
		{"without an alarm", func(g *login.Guard) { g.Limits = limits{"siege": {Max: -1}} }, func(w *watch) { w.stuff(200) }, false},
		{"a raised floor", func(g *login.Guard) { g.Limits = limits{"siege": {Max: 300}} }, func(w *watch) { w.stuff(299) }, false},
		{"attempts that are never ended", all, ended(120, "begin", true), true},
		{"that fail late, and count once", all, ended(60, "fail", true), false},
		{"that are canceled", all, ended(120, "cancel", false), false},
		{"that succeed", all, ended(120, "succeed", false), false},
		{"that are kept", all, ended(300, "keep", false), false},
		{"that are challenged", all, ended(120, "challenge", false), true},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchOn(t, memstore.New())
				row.options(w.Guard)
				row.do(w)
				for range 5 { // until all that could lapse has
					require.Equal(t, row.rings, w.look().Siege)
				}
				require.Equal(t, row.rings, len(w.all()) == 1)
				if row.rings {
					require.LessOrEqual(t, w.all()[0].Failures, 120, "none is counted twice")
				}
			})
		})
	}
}

// An attack from networks that are few, and huge.
func TestStrangersFromANetworkFarBeyondItsShareAreUnderSiege(t *testing.T) {
	takesLong(t)
	for what, attack := range map[string]struct {
		networks int
		from     func(i int) netip.Addr
	}{
		"an IPv6 /32": {1, func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i%0x10000)) }},
		"19 /16s": {19, func(i int) netip.Addr {
			return netip.AddrFrom4([4]byte{11, byte(i % 19), byte(i / 19), byte(i / 4864)})
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			w, other := watchOn(t, store), watchOn(t, store)
			w.succeeds("alice", attack.from(0))
			const guesses = 10_000
			unasked := 0
			for i := range guesses {
				time.Sleep(time.Hour / guesses)
				a := w.begin(fmt.Sprint("victim", i), attack.from(i))
				require.Equal(t, throttler.Authorized, a.Decision.Status)
				if !a.Siege {
					unasked++
				}
				require.NoError(t, a.Fail(t.Context()))
			}
			require.Less(t, unasked, attack.networks*150, what)
			require.Empty(t, w.all())
			require.Len(t, w.rung, attack.networks, "the application is told which networks")
			require.True(t, w.rung[0].Network.Contains(attack.from(0)) || attack.networks > 1)

			for range 3 {
				other.fails(1, "victim", attack.from(1))
				time.Sleep(reported)
			}
			require.True(t, other.begin("bob", attack.from(1)).Siege, "another process")
			require.False(t, w.begin("bob", office).Siege, "strangers from elsewhere")
			require.False(t, w.begin("alice", attack.from(0)).Siege, "who is known there")

			time.Sleep(2 * time.Hour)
			w.look()
			w.look()
			require.False(t, w.begin("bob", attack.from(1)).Siege)
			require.Len(t, w.rung, 2*attack.networks)
			require.False(t, w.rung[len(w.rung)-1].On)
		})
	}
}

// A single office, or the only carrier of a country.
func TestANetworkWhosePeopleLogInIsNotUnderSiege(t *testing.T) {
	takesLong(t)
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		for i := range 24 * 200 * tries {
			time.Sleep(time.Hour / (200 * tries))
			a := w.begin(fmt.Sprint("user", i), netip.AddrFrom4([4]byte{11, 0, byte(i), byte(i / 256)}))
			require.False(t, a.Siege, i)
			end := a.Succeed
			if i%tries == 0 {
				end = a.Fail
			}
			require.NoError(t, end(t.Context()))
		}
	})
}

// A name beyond its share counts against nobody, also not against the network.
func TestANameBeyondItsShareBesiegesNoNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		w.Limits = limits{"name+address": {Max: -1}, "address": {Max: -1}, "address-day": {Max: -1}, "name": {Max: -1}}
		for i := range 5 {
			w.fails(1, "alice", spread(i))
		}
		w.fails(300, "alice", office)
		require.False(t, w.look().Siege)
		require.Empty(t, w.rung)
	})
}

// At a busy site a network is not besieged by failures that are few beside its share: here
// that is 200, of 4,000.
func TestANetworkIsBesiegedByTwiceItsShareAtLeast(t *testing.T) {
	takesLong(t)
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		w.Limits = limits{"address": {Max: -1}, "address-day": {Max: -1}}
		for i := range 8000 {
			w.succeeds(fmt.Sprint("user", i), spread(i))
		}
		w.look()
		for i := range 450 {
			w.fails(1, fmt.Sprint("victim", i), office)
		}
		require.Empty(t, w.rung)
		w.look()
		require.Empty(t, w.rung)
		for i := range 250 {
			w.fails(1, fmt.Sprint("more", i), office)
		}
		w.look()
		require.Len(t, w.rung, 1)
		require.True(t, w.rung[0].Network.Contains(office))
	})
}

func TestSiegeEndsTenMinutesAfterItIsHalfOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchOn(t, memstore.New())
		w.stuff(50)
		time.Sleep(30 * time.Minute)
		w.stuff(60)
		for range 10 { // from the sixth on 60 are left
			require.True(t, w.look().Siege)
			time.Sleep(5 * time.Minute)
		}
		require.True(t, w.look().Siege, "still more than half")
		time.Sleep(8 * time.Minute) // none is left
		require.True(t, w.look().Siege)
		time.Sleep(10 * time.Minute)
		require.False(t, w.look().Siege)
		w.stuff(60)
		require.False(t, w.look().Siege, "it takes all of the threshold to begin")
		require.Len(t, w.rung, 2)
	})
}

// The threshold is half the names that logged in within the hour, between the bounds. A
// name counts once, whoever logs in to it and however often.
func TestThresholdIsHalfTheNamesThatLogIn(t *testing.T) {
	for _, row := range []struct{ names, logins, threshold int }{
		{0, 0, 100}, {200, 1, 100}, {202, 1, 101}, {300, 3, 150}, {1000, 1, 500},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := watchOn(t, memstore.New())
			for i := range row.names * row.logins {
				w.succeeds(fmt.Sprint("user", i%row.names), spread(i))
			}
			time.Sleep(reported)
			w.look()
			w.stuff(row.threshold - 1)
			require.False(t, w.look().Siege)
			w.stuff(1)
			require.True(t, w.look().Siege)
			require.Equal(t, []login.Siege{{On: true, Failures: row.threshold, Threshold: row.threshold}}, w.all())
			time.Sleep(62 * time.Minute)
			require.False(t, w.look().Siege)
			w.stuff(100)
			require.True(t, w.look().Siege, "the successes were of an hour ago")
		})
	}
}

// The alarm may need the backend, but no attempt waits for it: an attempt takes
// as long as without one.
func TestAlarmCostsAnAttemptNoRoundTrip(t *testing.T) {
	took := func(f func()) time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
	for _, siege := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			if siege {
				w := watchOn(t, store)
				w.stuff(100)
				require.True(t, w.look().Siege)
			}
			with, without := on(t, distant(store)), on(t, distant(memstore.New()))
			without.Limits = limits{"siege": {Max: -1}}
			for i := range 50 {
				time.Sleep(time.Duration(i) * time.Second / 7)
				for _, right := range []bool{false, true} {
					attempt := func(g try) func() {
						return func() {
							a := g.begin(fmt.Sprint("user", i, right), spread(5000+i))
							end := a.Fail
							if right {
								end = a.Succeed
							}
							require.NoError(t, end(t.Context()))
						}
					}
					require.LessOrEqual(t, took(attempt(with)), took(attempt(without)), "%v %v %v", siege, i, right)
				}
			}
		})
	}
}

func TestAlarmWithoutFailuresToReportAsksOnceAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		th := throttler.New(memstore.New())
		th.Observe = func(_ context.Context, rule throttler.Rule, _ throttler.Decision) {
			if rule.Identifier == "login-siege" {
				asked++
			}
		}
		g := try{login.New(th), t}
		for i := range 500 {
			require.NoError(t, g.begin(fmt.Sprint("user", i), spread(i)).Fail(t.Context()))
		}
		require.Equal(t, 500, asked, "each failure once, and no report yet")
		time.Sleep(reported)
		for i := range 100 {
			g.begin(fmt.Sprint("user", i), spread(1000+i))
		}
		require.Equal(t, 500+1, asked, "one report")
	})
}

func TestOutageLeavesTheAlarmAsItWas(t *testing.T) {
	for _, siege := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client := &wire{Client: memstore.New()}
			w := watchOn(t, client)
			if siege {
				w.stuff(100)
				w.look()
			}
			client.breaks()
			for i := range 300 {
				a, err := w.Begin(t.Context(), fmt.Sprint("user", i), spread(3000+i))
				require.NoError(t, err)
				require.ErrorIs(t, a.Fail(t.Context()), errDown)
			}
			client.works()
			require.Equal(t, siege, w.look().Siege, "what fails in an outage does not count")
			client.breaks()
			for range 3 {
				a, err := w.Begin(t.Context(), "alice", home)
				require.NoError(t, err)
				require.Equal(t, siege, a.Siege)
				time.Sleep(reported)
			}
			client.works()
			require.Equal(t, siege, w.look().Siege, "what the outage has seen does not count")
		})
	}
}

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

// A process whose clock is behind learns it from the records of another, once.
func TestDifferentClocksAreReportedOnce(t *testing.T) {
	for ahead, noticed := range map[time.Duration]bool{5 * time.Minute: true, 4500 * time.Millisecond: true, 3500 * time.Millisecond: false, 0: false} {
		store := memstore.New()
		// Each bubble begins at the same time, so one that sleeps first is ahead.
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(ahead)
			w := watchOn(t, store)
			w.ClockSkew = func(context.Context, time.Duration) { t.Error("another clock is behind") }
			w.stuff(1)
			time.Sleep(reported)
			w.begin("looker", away)
		})
		synctest.Test(t, func(t *testing.T) {
			w := watchOn(t, store)
			var told []time.Duration
			w.ClockSkew = func(_ context.Context, ahead time.Duration) { told = append(told, ahead) }
			w.begin("looker", away)
			for range 5 {
				w.stuff(1)
				time.Sleep(time.Second)
				w.look()
			}
			if !noticed {
				require.Empty(t, told)
				return
			}
			require.Len(t, told, 1, "%v", ahead)
			require.InDelta(t, ahead+reported, told[0], float64(time.Second))
		})
	}
}
