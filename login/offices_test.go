package login_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
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

// A crowd is people who log in on the simulated day, all at one address or each
// from one of their own.
type crowd struct {
	people    int
	typos     float64 // share of passwords that are mistyped
	logins    int     // of each
	processes int     // that a balancer spreads the attempts over
	first     bool    // nobody was there the day before
	devices   bool    // the application knows their browsers
	from      func(person, login int) netip.Addr
}

func (c crowd) address(person, login int) netip.Addr {
	if c.from == nil {
		return office
	}
	return c.from(person, login)
}

func (c crowd) device(person int) string {
	return (&day{people: people{devices: c.devices}}).device(person)
}

// simulate returns how the crowd's day went, with attack beside it.
func (c crowd) simulate(t *testing.T, options func(*login.Guard), attack func(*day)) (result day) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.MaxItems = 1 << 22 // what is asked here is not what it forgets
		guards := make([]*login.Guard, max(1, c.processes))
		for i := range guards {
			guards[i] = login.New(throttler.New(store))
			options(guards[i])
		}
		d := &day{t: t, guard: guards[0], random: rand.New(rand.NewPCG(3, 4))}
		for i := range c.people {
			if !c.first {
				d.begin(user(i), c.address(i, -1), c.device(i), true)
			}
		}
		time.Sleep(24 * time.Hour)
		d.end = time.Now().Add(24 * time.Hour)
		for i := range c.people {
			for n := range c.logins {
				d.after(c.hour(d, n), c.person(d, guards, i, n))
			}
		}
		attack(d)
		d.run()
		result = *d
	})
	return result
}

// hour returns the time of a person's n-th login: around 9, 13 and 16 o'clock.
func (c crowd) hour(d *day, n int) time.Duration {
	hours := []float64{9, 13, 16}
	return time.Duration((hours[n%len(hours)] + d.random.NormFloat64()/4) * float64(time.Hour))
}

// person logs in once: mistypes, or has forgotten the password and tries eight
// others, and gives up when refused.
func (c crowd) person(d *day, guards []*login.Guard, i, n int) func() time.Time {
	wrong, forgotten := 0, d.random.Float64() < 0.01
	for d.random.Float64() < c.typos {
		wrong++
	}
	if forgotten {
		wrong = 8
	}
	return d.person(wrong, forgotten, func(right bool) *throttler.Decision {
		d.guard = guards[d.random.IntN(len(guards))]
		return d.begin(user(i), c.address(i, n), c.device(i), right)
	})
}

func noAttack(*day) {}

func defaults(*login.Guard) {}

// offices are the rows of the table of people at one address, without an attack. With one
// process, or a balancer that keeps a person at one, those who are refused have mistyped
// five times in a row. With four, only the process that counted a failure gives it back, so
// three of four typos stay. Then let the balancer keep a client at one process, raise
// Address.Max and AddressDay.Max, or list the office in Exempt.
func offices() (all []crowd) {
	for _, people := range []int{1000, 2000, 3000} {
		for _, typos := range []float64{0.15, 0.3} {
			all = append(all, crowd{people: people, typos: typos, logins: 3})
		}
	}
	return all
}

// row returns the row of c in the table of offices, as far as the first columns go
// or as a whole.
func (c crowd) row(t *testing.T, whole bool) string {
	one := c.simulate(t, defaults, noAttack)
	what := fmt.Sprintf("%s | %.0f %%", number(c.people), 100*c.typos)
	if !whole {
		return start(what, one.logins, one.refused)
	}
	c.processes = 4
	four := c.simulate(t, defaults, noAttack)
	c.processes, c.first = 1, true
	first := c.simulate(t, defaults, noAttack)
	return start(what, one.logins, one.refused, four.refused, first.refused)
}

// insiders are the rows of the table of one at the office who guesses at the
// names of all others there. The limits of the address bound the guesses: address-day and
// address-known verify 500 each at once, and 499 more each by the day's end.
var insiders = []struct {
	what string
	crowd
}{
	{"do not log in", crowd{people: 1000}},
	{"log in and never mistype", crowd{people: 1000, logins: 3}},
	{"mistype 15 %", crowd{people: 1000, logins: 3, typos: 0.15}},
	{"mistype 30 %", crowd{people: 1000, logins: 3, typos: 0.3}},
}

// The carrier's phones: in one /48, at every login in another /64 of it.
const phones = 5000

var carrier = netip.MustParsePrefix("2001:db8:1::/48")

// subnet returns an address in the i-th /64 of the carrier's /48.
func subnet(i int) netip.Addr {
	bytes := carrier.Addr().As16()
	bytes[6], bytes[7], bytes[15] = byte(i>>8), byte(i), 1
	return netip.AddrFrom16(bytes)
}

func ofCarrier(devices bool) crowd {
	return crowd{people: phones, typos: 0.15, logins: 3, devices: devices, from: func(person, login int) netip.Addr {
		return subnet((7919*person + 104729*(login+1)) % (1 << 16))
	}}
}

// guesses is an attack on the phones' names from the carrier's first subnets.
func guesses(subnets int) func(*day) {
	return func(d *day) {
		d.attacker(false, func(n int) (string, netip.Addr) { return user(n % phones), subnet(n % subnets) })
	}
}

// networks are the rows of the table of the carrier. The attacker of the last columns has
// all 65,536 /64s of the /48, and has all strangers refused, but not those with a known
// device. With 4 processes, 1,000 a /48 refuses half of the honest logins, and 2,000 still
// 235. 5,000, the default, refuses no more than one process does. It bounds the owner of a
// /48 to 9,999 guesses on the first day and 5,000 on each later one. Without it the limit
// of the /32 remains, which all phones of the carrier share.
var networks = []variant{
	{"the defaults", defaults},
	{"1,000 a /48", func(g *login.Guard) { g.Limits = limits{"network-48": {Max: 1000}} }},
	{"2,000 a /48", func(g *login.Guard) { g.Limits = limits{"network-48": {Max: 2000}} }},
	{"no limit of the /48", func(g *login.Guard) { g.Limits = limits{"network-48": {Max: -1}} }},
	{"no limit of either", func(g *login.Guard) { g.Limits = limits{"network-48": {Max: -1}, "network-56": {Max: -1}} }},
}

// carrierRow returns the row of v in the table of the carrier.
func carrierRow(t *testing.T, v variant, whole bool) string {
	quiet := ofCarrier(false).simulate(t, v.options, noAttack)
	if !whole {
		return start(v.what, quiet.refused)
	}
	spread := ofCarrier(false)
	spread.processes = 4
	run := func(devices bool, subnets int) day {
		return ofCarrier(devices).simulate(t, v.options, guesses(subnets))
	}
	narrow, wide := run(false, 1<<8), run(false, 1<<16)
	return start(v.what, quiet.refused, spread.simulate(t, v.options, noAttack).refused,
		narrow.verified, narrow.refused, wide.verified, wide.refused, run(true, 1<<16).refused)
}

// In part, it is the first columns of a few rows.
func TestOfficesAndCarriersAreRefusedAsTheGuideSays(t *testing.T) {
	p := pageOf(t, simulations)
	if p.inFull(map[string]func(*testing.T) string{"offices": officeTable, "insiders": insiderTable, "carrier": carrierTable}) {
		return
	}
	for _, c := range offices()[:2] {
		p.says(c.row(t, false) + " ")
	}
	p.says(carrierRow(t, networks[0], false) + " ")
}

// One at the office gains nothing by the failures that others get back.
func TestInsiderGainsNothingByTheSuccessesOfOthers(t *testing.T) {
	takesLong(t)
	for _, patient := range []bool{false, true} {
		if patient && !skiptest.InFull() {
			continue
		}
		slack := 0
		if patient {
			slack = 1 // the day's last guess opens as the day ends
		}
		alone := insiders[0].simulate(t, defaults, spray(patient, office)).verified
		for _, others := range insiders[1:] {
			d := others.simulate(t, defaults, spray(patient, office))
			require.Positive(t, d.logins)
			require.LessOrEqual(t, d.verified, alone+slack, others.what)
		}
	}
}

func officeTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| people | typos | logins | refused | with 4 processes | on the first day |\n| ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, c := range offices() {
		b.WriteString(c.row(t, true) + "\n")
	}
	return b.String()
}

func insiderTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| the 1,000 others | guesses | patiently |\n| --- | ---: | ---: |\n")
	for _, others := range insiders {
		run := func(patient bool) int { return others.simulate(t, defaults, spray(patient, office)).verified }
		b.WriteString(start(others.what, run(false), run(true)) + "\n")
	}
	return b.String()
}

func carrierTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| options | refused: no attack | no attack, 4 processes | guesses from one /56 | refused | guesses from the whole /48 | refused | with devices |\n")
	b.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, v := range networks {
		b.WriteString(carrierRow(t, v, true) + "\n")
	}
	return b.String()
}
