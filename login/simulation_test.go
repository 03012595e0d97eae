package login_test

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// The simulation: a day of an office of a thousand honest users, during which
// an attacker guesses passwords. It runs on a held clock, by itself in one
// goroutine and from a fixed seed, so it prints the same tables every time:
// those of testdata/simulations.md. With -update it writes them there. All of them are
// looked at only if tests are to run in full: see skiptest.InFull.
//
// The users log in around 9, 13 and 16 o'clock. They mistype 15 of 100 passwords. One
// time in a hundred they have forgotten theirs, try eight others and give up. The
// attacker knows all limits and guesses for 24 hours: as soon as they are not blocked,
// at most once a second with each name or address, or patiently, never fast enough to
// be banned.
//
// What the table of attacks says:
//
//   - An attack from elsewhere refuses nobody who is known at the office. One from the
//     office refuses nearly all who have no device there.
//   - One name yields 47 guesses on the first day and 24 on each later one. At addresses
//     where the name is known there are half as many more, however many these are.
//   - During an attack on a name, its owner cannot log in at a new address without a
//     device or Recognize.
//   - On a first day under attack many are refused, so begin with some days of Shadow.

var update = flag.Bool("update", false, "write the tables of the simulations to their file, which takes some minutes")

// simulations is the file of all tables. docs/login-lockout.md says what they show.
const simulations = "testdata/simulations.md"

const (
	users     = 1000 // behind the address office
	addresses = 1000 // of a botnet
	pause     = time.Second
)

// A day is one simulated day.
type day struct {
	t      *testing.T
	guard  *login.Guard
	people people
	random *rand.Rand
	end    time.Time
	queue  queue

	verified int // guesses of the attacker
	logins   int // of honest users at the office who know their passwords
	refused  int // of these
	visits   int // of user 0, whose password is known to them, from new addresses
	rejected int // of these
}

// An event is something that happens at a time, and at the time that it returns
// once more, unless that is zero.
type event struct {
	at     time.Time
	number int // of two at one time the first that was made
	do     func() (next time.Time)
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].number < q[j].number
	}
	return q[i].at.Before(q[j].at)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(event)) }
func (q *queue) Pop() any {
	e := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return e
}

// after has do happen at some time after now.
func (d *day) after(wait time.Duration, do func() time.Time) {
	heap.Push(&d.queue, event{time.Now().Add(wait), d.random.IntN(1 << 30), do})
}

// run lets everything happen until the day ends.
func (d *day) run() {
	for d.queue.Len() > 0 {
		e := heap.Pop(&d.queue).(event)
		if !e.at.Before(d.end) {
			return
		}
		time.Sleep(time.Until(e.at))
		if next := e.do(); !next.IsZero() {
			heap.Push(&d.queue, event{next, d.random.IntN(1 << 30), e.do})
		}
	}
}

// begin makes an attempt, which has the password right or not.
func (d *day) begin(name string, addr netip.Addr, device string, right bool) *throttler.Decision {
	a, err := d.guard.Begin(login.WithDevice(d.t.Context(), device), name, addr)
	require.NoError(d.t, err)
	require.NoError(d.t, a.Decision.Err)
	end := a.Fail // of one that was refused it does nothing
	if right && a.Decision.Status == throttler.Authorized {
		end = a.Succeed
	}
	require.NoError(d.t, end(d.t.Context()))
	return &a.Decision
}

func user(i int) string { return fmt.Sprint("user", i) }

// device is what user i sends along.
func (d *day) device(i int) string {
	if d.people.devices {
		return fmt.Sprint("device of ", i)
	}
	return ""
}

// people are what is known of the users.
type people struct {
	known   bool // they have logged in at the office the day before
	devices bool // with devices that the application knows
}

// office has every user of the office log in three times.
func (d *day) office() {
	for i := range users {
		for _, hour := range []float64{9, 13, 16} {
			when := (hour + d.random.NormFloat64()/4) * float64(time.Hour)
			wrong := 0
			for d.random.Float64() < 0.15 {
				wrong++
			}
			forgotten := d.random.Float64() < 0.01
			if forgotten {
				wrong = 8
			}
			d.after(time.Duration(when), d.person(wrong, forgotten, func(right bool) *throttler.Decision {
				return d.begin(user(i), office, d.device(i), right)
			}))
		}
	}
}

// person logs in once, after some typos, or gives up when refused or when
// the password is forgotten.
func (d *day) person(wrong int, forgotten bool, try func(right bool) *throttler.Decision) func() time.Time {
	if !forgotten {
		d.logins++
	}
	return func() (again time.Time) {
		blocked := try(wrong == 0 && !forgotten).Status == throttler.Blocked
		if blocked && !forgotten {
			d.refused++
		}
		if blocked || wrong == 0 {
			return again
		}
		wrong--
		return time.Now().Add(time.Duration(5+d.random.IntN(10)) * time.Second)
	}
}

// traveller has user 0 log in every half an hour, from a new address each time.
func (d *day) traveller() {
	d.after(15*time.Minute, func() time.Time {
		d.visits++
		if d.begin(user(0), addr(1<<20+d.visits), d.device(0), true).Status == throttler.Blocked {
			d.rejected++
		}
		return time.Now().Add(30 * time.Minute)
	})
}

// An attacker guesses at names from addresses. next returns the n-th pair.
//
// It knows all that a Guard knows. When it is blocked it comes back at the very
// moment that it may. A patient one waits before it is blocked, if it would be,
// so that it is never banned.
func (d *day) attacker(patient bool, next func(n int) (string, netip.Addr)) {
	n := 0
	d.after(pause, func() time.Time {
		name, from := next(n)
		decision := d.begin(name, from, "", false)
		if decision.Status == throttler.Blocked {
			n++
			return time.Now().Add(max(decision.RetryAfter, pause))
		}
		n++
		d.verified++
		wait := pause
		for i := range decision.Outcomes {
			if patient {
				wait = max(wait, decision.Outcomes[i].RetryAfter)
			}
		}
		return time.Now().Add(wait)
	})
}

// An attack is what is done to the office.
type attack struct {
	what  string
	start func(d *day)
}

// attacks are those of the tables, in their order.
var attacks = []attack{
	{"none", func(*day) {}},
	{"one name, one address", func(d *day) {
		d.attacker(false, func(int) (string, netip.Addr) { return user(0), away })
	}},
	{"one name, one address, patiently", func(d *day) {
		d.attacker(true, func(int) (string, netip.Addr) { return user(0), away })
	}},
	{"one name, from the office", func(d *day) {
		d.attacker(false, func(int) (string, netip.Addr) { return user(0), office })
	}},
	{"one name, 1,000 addresses", func(d *day) {
		d.attacker(false, func(n int) (string, netip.Addr) { return user(0), addr(n % addresses) })
	}},
	{"1,000 names, one address", spray(false, away)},
	{"1,000 names, one address, patiently", spray(true, away)},
	{"1,000 names, from the office", spray(false, office)},
	{"1,000 names, from the office, patiently", spray(true, office)},
	{"1,000 names, 1,000 addresses", func(d *day) {
		for i := range users {
			d.attacker(false, func(n int) (string, netip.Addr) { return user(i), addr((7*i + n) % addresses) })
		}
	}},
}

func spray(patient bool, from netip.Addr) func(d *day) {
	return func(d *day) {
		d.attacker(patient, func(n int) (string, netip.Addr) { return user(n % users), from })
	}
}

// simulate returns how a day went.
func simulate(t *testing.T, a attack, p people, options func(*login.Guard)) (result day) {
	synctest.Test(t, func(t *testing.T) {
		guard := login.New(throttler.New(memstore.New()))
		options(guard)
		d := &day{t: t, guard: guard, people: p, random: rand.New(rand.NewPCG(1, 2))}
		for i := range users {
			if p.known {
				d.begin(user(i), office, d.device(i), true)
			}
		}
		time.Sleep(24 * time.Hour)
		d.end = time.Now().Add(24 * time.Hour)
		d.office()
		d.traveller()
		a.start(d)
		d.run()
		result = *d
	})
	return result
}

// A variant is a set of options that is tried.
type variant struct {
	what    string
	options func(*login.Guard)
}

// variants are those that the defaults are compared with. Why they are not the defaults:
//
//   - Nobody is known: during an attack from the office, nobody there gets in.
//   - 200 an address and day, 20 an address in 5 minutes: nobody is refused at this
//     office either, but forgotten passwords, and failures that another process counted,
//     are not given back. They fit a site without larger offices.
//   - 2,000 an address and day quadruples the guesses of spraying and benefits nobody.
//   - 100 a name and hour (OWASP ASVS 4.0.3, 2.2.1, allowed that), 10 a name in 15
//     minutes: about a thousand guesses or more for each name and day.
//   - 10 a name and day is safer. But one person with a forgotten password, or one mail
//     program with an old one, comes near it.
//   - Bans up to 24 hours: no fewer guesses from outside, and neighbours are locked out
//     for longer. Bans that do not grow make no difference in guesses.
//
// Without address-known, an attacker at the office has 23,944 guesses instead of 1,998.
var variants = []variant{
	{"the defaults", func(*login.Guard) {}},
	{"nobody is known", func(g *login.Guard) { g.KnownFor = -1 }},
	{"no limit by the day", func(g *login.Guard) { g.Limits = limits{"address-day": {Max: -1}} }},
	{"200 an address and day", func(g *login.Guard) { g.Limits = limits{"address-day": {Max: 200}} }},
	{"2,000 an address and day", func(g *login.Guard) { g.Limits = limits{"address-day": {Max: 2000}} }},
	{"20 an address in 5 minutes", func(g *login.Guard) { g.Limits = limits{"address": {Max: 20}} }},
	{"100 a name and hour", func(g *login.Guard) { g.Limits = limits{"name": {Max: 100, TTL: time.Hour}} }},
	{"10 a name in 15 minutes", func(g *login.Guard) { g.Limits = limits{"name": {Max: 10, TTL: 15 * time.Minute}} }},
	{"10 a name and day", func(g *login.Guard) { g.Limits = limits{"name": {Max: 10}} }},
	{"no limit of the name", func(g *login.Guard) { g.Limits = limits{"name": {Max: -1}} }},
	{"bans up to 24 hours", func(g *login.Guard) { g.MaxLockout = 24 * time.Hour }},
	{"bans that do not grow", func(g *login.Guard) { g.MaxLockout = 10 * time.Minute }},
}

// A page is the file with the tables of the simulations.
type page struct {
	t          *testing.T
	path, text string
}

func pageOf(t *testing.T, path string) page {
	takesLong(t)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return page{t, path, string(text)}
}

// inFull reports whether all that is simulated is to be looked at. Then it runs it, and
// compares it with these tables, or writes them with -update.
func (p page) inFull(tables map[string]func(*testing.T) string) bool {
	if !*update && !skiptest.InFull() {
		return false
	}
	text := p.text
	for name, table := range tables {
		text = replace(p.t, text, name, table(p.t))
	}
	if *update {
		require.NoError(p.t, os.WriteFile(p.path, []byte(text), 0o644))
	} else {
		require.Equal(p.t, p.text, text, stale)
	}
	return true
}

const stale = "the file does not say what the simulation does; go test ./login -run Simulat -update has it say so"

// says requires a row, as far as it goes.
func (p page) says(row string) {
	p.t.Helper()
	require.True(p.t, strings.Contains(p.text, row), "%s: %s\n%s", p.path, stale, row)
}

// In part, it is the first columns of a few rows.
func TestSimulation(t *testing.T) {
	p := pageOf(t, simulations)
	if p.inFull(map[string]func(*testing.T) string{"defaults": attackTable, "variants": variantTable}) {
		return
	}
	for _, a := range []attack{attacks[0], attacks[1], attacks[5], attacks[7]} {
		d := simulate(t, a, people{known: true}, variants[0].options)
		p.says(start(a.what, d.verified, d.refused) + " ")
		require.Equal(t, []int{2965, 48}, []int{d.logins, d.visits}, "%s says so", p.path)
	}
}

// replace returns doc with another table of this name.
func replace(t *testing.T, doc, name, table string) string {
	begin, end := "<!-- "+name+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(doc, begin)
	require.True(t, ok, "no place for the table %s", name)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "no end of the table %s", name)
	t.Logf("%s\n%s", name, table)
	return before + begin + table + end + after
}

// attackTable shows all attacks on the defaults.
func attackTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| attack | guesses verified | refused at the office | on its first day | with devices | owner refused elsewhere | with a device |\n")
	b.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, a := range attacks {
		run := func(p people) day { return simulate(t, a, p, variants[0].options) }
		first, later, devices := run(people{}), run(people{known: true}), run(people{known: true, devices: true})
		b.WriteString(start(a.what, later.verified, later.refused, first.refused, devices.refused, later.rejected, devices.rejected))
		b.WriteByte('\n')
	}
	return b.String()
}

// variantTable shows how many guesses are verified, and how many logins at the
// office are refused, with each variant.
func variantTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| options | guesses: one name, one address | one name, 1,000 addresses | 1,000 names, one address | 1,000 names, from the office | refused: no attack | no attack, first day | attack from the office |\n")
	b.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, v := range variants {
		run := func(attack int) day { return simulate(t, attacks[attack], people{known: true}, v.options) }
		first := simulate(t, attacks[0], people{}, v.options)
		inside, patient := run(7), run(8)
		b.WriteString(start(v.what, max(run(1).verified, run(2).verified), run(4).verified, max(run(5).verified, run(6).verified),
			max(inside.verified, patient.verified), run(0).refused, first.refused, max(inside.refused, patient.refused)))
		b.WriteByte('\n')
	}
	return b.String()
}

// start returns the row of a table, as far as these go.
func start(what string, counts ...int) string {
	row := "| " + what + " |"
	for _, n := range counts {
		row += " " + number(n) + " |"
	}
	return row
}

// number writes n with commas.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
