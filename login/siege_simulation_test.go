package login_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
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

// The simulated siege: a site whose 3,000 people log in from home, in the morning
// and in the evening, on three quiet days and one on which it is attacked. It runs
// as the simulated day at an office does, and its table stands in testdata/simulations.md.
//
// The alarm does not notice 42 guesses an hour, fewer than honest people's typos. Nor does
// it notice an attack on one name: there the limits of names hold. One from a single
// network is a siege of that network, which the table does not call an alarm.

const (
	residents  = 3000
	quietDays  = 3
	residences = 300 // networks in which people live
)

// A town is what happens to the site.
type town struct {
	day
	residents int
	attackAt  time.Time

	guesses  int           // of the attacker, that no limit refused
	verified int           // of these without Attempt.Siege
	noticed  time.Duration // after the attack began; -1: never
	rang     time.Duration // how long the alarm did, on that day
	rangAt   time.Time
	early    int // alarms before
	honest   int // attempts of people, on the day of the attack
	asked    int // of these that had to solve a CAPTCHA
	turned   int // of these refused
	observed login.Siege
}

// ring notes an alarm.
func (w *town) ring(s login.Siege) {
	now := time.Now()
	switch attacked := !now.Before(w.attackAt); {
	case !attacked && s.On:
		w.early++
	case s.On:
		w.rangAt = now
		if w.noticed < 0 {
			w.noticed, w.observed = now.Sub(w.attackAt), s
		}
	case !w.rangAt.IsZero():
		w.rang += now.Sub(w.rangAt)
		w.rangAt = time.Time{}
	}
}

// attempt makes an attempt, as the handler of docs/login-lockout.md does, and says
// whether it was let pass and whether a CAPTCHA is asked for.
func (w *town) attempt(name string, addr netip.Addr, right, solved bool) (passed, asked bool) {
	a, err := w.guard.Begin(w.t.Context(), name, addr)
	require.NoError(w.t, err)
	end := a.Fail
	switch {
	case a.Decision.Status == throttler.Blocked:
		return false, false
	case a.Siege && !solved:
		asked, end = true, a.Challenge
	case right:
		end = a.Succeed
	}
	require.NoError(w.t, end(w.t.Context()))
	return true, asked
}

// solving is how long people take for a CAPTCHA.
const solving = time.Minute

// home returns where resident i lives.
func (w *town) home(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{80, byte(i % residences), byte(i / residences), 1}).Next()
}

// live has everybody log in as they do: a fifth of the times from elsewhere.
func (w *town) live(days int) {
	for d := range days {
		for i := range w.residents {
			for range w.random.IntN(3) { // 1 on average
				hour, spread := 20.0, 2.0
				if w.random.Float64() < 0.4 {
					hour, spread = 9, 1.5
				}
				hour = math.Mod(24+hour+spread*w.random.NormFloat64(), 24)
				w.after(time.Duration((float64(24*d)+hour)*float64(time.Hour)), w.resident(i))
			}
		}
	}
}

// resident logs in once, with typos.
func (w *town) resident(i int) func() time.Time {
	from, wrong := w.home(i), 0
	if w.random.IntN(5) == 0 {
		from = netip.AddrFrom4([4]byte{90, byte(w.random.IntN(200)), byte(w.random.IntN(250)), 1})
	}
	for w.random.Float64() < 0.15 {
		wrong++
	}
	if w.random.Float64() < 0.01 {
		wrong = 8 // forgotten
	}
	solved := false
	return func() time.Time {
		passed, asked := w.attempt(fmt.Sprint("user", i), from, wrong == 0, solved)
		if solved = asked; asked {
			w.asked++
			return time.Now().Add(solving)
		}
		if !time.Now().Before(w.attackAt) {
			w.honest++
			if !passed {
				w.turned++
			}
		}
		if wrong == 0 || !passed {
			return time.Time{}
		}
		wrong--
		return time.Now().Add(time.Duration(5+w.random.IntN(10)) * time.Second)
	}
}

// attack makes guesses from the day of the attack on. next returns the n-th, and
// the pause after it; 0: it was the last.
func (w *town) attack(next func(n int) (name string, from netip.Addr, pause time.Duration)) {
	n := 0
	w.after(time.Until(w.attackAt), func() time.Time {
		name, from, pause := next(n)
		n++
		passed, asked := w.attempt(name, from, false, false)
		if passed {
			w.guesses++
			if !asked {
				w.verified++
			}
		}
		if pause == 0 {
			return time.Time{}
		}
		return time.Now().Add(pause)
	})
}

// bot returns an address of a botnet that is everywhere.
func bot(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(100 + i%64), byte(i / 64 % 200), byte(i / 12_800), 7})
}

// victim returns a name that an attacker has from a list: a fifth of them exist.
func victim(n int) string { return fmt.Sprint("user", 7919*n%(5*residents)) }

// stuffing makes one guess at each name, each from another address.
func stuffing(guesses int, pause time.Duration) func(*town) {
	return func(w *town) {
		w.attack(func(n int) (string, netip.Addr, time.Duration) {
			if n+1 == guesses {
				return victim(n), bot(n), 0
			}
			return victim(n), bot(n), pause
		})
	}
}

// A siege is what is done to the town.
type siege struct {
	what  string
	start func(*town)
}

// sieges are those of the table, in their order.
var sieges = []siege{
	{"none", func(*town) {}},
	{"none, and four times as many people", func(w *town) { w.residents *= 4 }},
	{"stuffing: 10,000 names and addresses in an hour", stuffing(10_000, 360*time.Millisecond)},
	{"stuffing in an hour, while the attacker logs in 10,000 times", func(w *town) {
		stuffing(10_000, 360*time.Millisecond)(w)
		logins := 0
		w.after(time.Until(w.attackAt), func() time.Time {
			logins++
			passed, _ := w.attempt(fmt.Sprint("own", logins%100), bot(logins), true, true)
			require.True(w.t, passed)
			if logins == 10_000 {
				return time.Time{}
			}
			return time.Now().Add(360 * time.Millisecond)
		})
	}},
	{"stuffing: 10,000 names and addresses in a day", stuffing(10_000, 8640*time.Millisecond)},
	{"stuffing: from 10 an hour, twice as fast each 3 hours", func(w *town) {
		w.attack(func(n int) (string, netip.Addr, time.Duration) {
			rate := 10 * math.Exp2(time.Since(w.attackAt).Hours()/3) // an hour
			return victim(n), bot(n), time.Duration(float64(time.Hour) / rate)
		})
	}},
	{"stuffing: 1,000 names and addresses in a day", stuffing(1000, 86*time.Second)},
	{"spraying: 1,000 names from 1,000 addresses, again and again", func(w *town) {
		w.attack(func(n int) (string, netip.Addr, time.Duration) {
			return victim(n % 1000), bot(7 * n % 1000), 10 * time.Second
		})
	}},
	{"spraying: 1,000 names from one address", func(w *town) {
		w.attack(func(n int) (string, netip.Addr, time.Duration) { return victim(n % 1000), away, 10 * time.Second })
	}},
	{"spraying: 1,000 names from one /16", func(w *town) {
		w.attack(func(n int) (string, netip.Addr, time.Duration) {
			return victim(n % 1000), addr(n % 1000), 10 * time.Second
		})
	}},
	{"one name from 1,000 addresses", func(w *town) {
		w.attack(func(n int) (string, netip.Addr, time.Duration) { return "user0", bot(n % 1000), 10 * time.Second })
	}},
}

// besiege returns how the days of an attack went.
func besiege(t *testing.T, start func(*town)) (result *town) {
	synctest.Test(t, func(t *testing.T) {
		w := &town{residents: residents, day: day{
			t: t, guard: login.New(throttler.New(memstore.New())),
			random: rand.New(rand.NewPCG(1, 2)),
		}, noticed: -1}
		w.guard.Alarm = func(_ context.Context, s login.Siege) {
			if !s.Network.IsValid() {
				w.ring(s)
			}
		}
		w.attackAt = time.Now().Add(quietDays * 24 * time.Hour)
		w.end = w.attackAt.Add(24 * time.Hour)
		start(w)
		w.live(quietDays + 1)
		w.run()
		if !w.rangAt.IsZero() {
			w.rang += w.end.Sub(w.rangAt)
		}
		result = w
	})
	return result
}

// row returns the row of the table.
func (w *town) row(what string) string {
	noticed, rang := "never", "0"
	if w.noticed >= 0 {
		noticed = minutes(w.noticed)
		rang = fmt.Sprintf("%.1f h", w.rang.Hours())
	}
	return fmt.Sprintf("| %s | %d | %s | %s | %s | %s | %s | %s |\n",
		what, w.early, number(w.guesses), noticed, number(w.verified), rang, number(w.asked), number(w.turned))
}

// minutes writes a time in hours and minutes, rounded up.
func minutes(d time.Duration) string {
	m := int(math.Ceil(d.Minutes()))
	if m < 60 {
		return fmt.Sprintf("%d min", m)
	}
	return fmt.Sprintf("%d h %02d min", m/60, m%60)
}

// siegeTable shows all sieges.
func siegeTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| attack | alarms on the days before | guesses | alarm after | verified | alarm lasts | people asked for a CAPTCHA | refused |\n")
	b.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, s := range sieges {
		w := besiege(t, s.start)
		t.Logf("%s: %+v; %d of %d honest attempts were asked for more",
			s.what, w.observed, w.asked, w.honest)
		b.WriteString(w.row(s.what))
	}
	return b.String()
}

// In part, it is two rows: no attack, and stuffing.
func TestSimulatedSieges(t *testing.T) {
	p := pageOf(t, simulations)
	if p.inFull(map[string]func(*testing.T) string{"sieges": siegeTable}) {
		return
	}
	for _, s := range []siege{sieges[0], sieges[2]} {
		p.says(besiege(t, s.start).row(s.what))
	}
}

// Five hundred people an hour, of whom a fifth are strangers, and an hour of
// attack: those who are asked for a CAPTCHA do not keep the alarm ringing, nor are
// they refused.
func TestAlarmEndsSoonAfterTheAttackThoughPeopleAreAskedForMore(t *testing.T) {
	takesLong(t)
	w := besiege(t, func(w *town) {
		if slow {
			w.residents *= 4
		}
		stuffing(10_000, 360*time.Millisecond)(w)
	})
	require.Positive(t, w.noticed)
	require.LessOrEqual(t, w.rang, 3*time.Hour)
	require.Positive(t, w.asked)
	if slow {
		quiet := besiege(t, func(w *town) { w.residents *= 4 })
		require.Zero(t, quiet.asked)
		require.LessOrEqual(t, w.turned, quiet.turned+2)
	}
}

// People who share an address that is new to them, during a siege.
func TestNobodyAtANewSharedAddressIsRefusedForACaptcha(t *testing.T) {
	for people, within := range map[int]time.Duration{60: 3 * time.Minute, 200: 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := &town{day: day{t: t, guard: login.New(throttler.New(memstore.New())), random: rand.New(rand.NewPCG(1, 2))}}
			w.attackAt = time.Now()
			w.end = w.attackAt.Add(10*time.Minute + within + 2*solving)
			stuffing(10_000, 360*time.Millisecond)(w)
			in := 0
			for i := range people {
				solved := false
				w.after(10*time.Minute+time.Duration(i)*within/time.Duration(people), func() time.Time {
					passed, asked := w.attempt(fmt.Sprint("guest", i), office, true, solved)
					require.True(t, passed)
					require.Equal(t, !solved, asked)
					if asked {
						solved = true
						return time.Now().Add(solving)
					}
					in++
					return time.Time{}
				})
			}
			w.run()
			require.Equal(t, people, in)
		})
	}
}
