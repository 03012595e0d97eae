package login

import (
	"cmp"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The names of the conditions.
const (
	byNameAddress  = "name+address"
	byNameDevice   = "name+device"
	byAddress      = "address"
	byAddressDay   = "address-day"
	byNetwork56    = "network-56"
	byNetwork48    = "network-48"
	byNetwork32    = "network-32"
	byName         = "name"
	byNameLong     = "name-long"
	byKnown        = "known"
	byKnownLong    = "known-long"
	byAddressKnown = "address-known"
	byAccount      = "account"

	// variantSuffix names the records beside a limit that count other spellings
	// of the name. They never block.
	variantSuffix = "-variant"
)

const day = 24 * time.Hour

// The limits of a Guard with their defaults filled in.
//
// Where the defaults come from: NIST SP 800-63B-4, section 3.2.2, suggests waits that grow
// from 30 seconds to an hour, and name opens by one an hour when it is full. 5 a minute for
// a name and address is common practice. Known clients are those of OWASP's article on
// device cookies. The rest was chosen by simulation: simulation_test.go has the options that
// were tried and rejected, and testdata/simulations.md the figures.
func (g *Guard) nameAddress() Limit {
	return g.NameAddress.or(Limit{Max: 5, TTL: time.Minute, Lockout: 10 * time.Minute})
}

func (g *Guard) address() Limit {
	return g.Address.or(Limit{Max: 50, TTL: 5 * time.Minute, Lockout: 10 * time.Minute})
}

func (g *Guard) addressDay() Limit {
	return g.AddressDay.or(Limit{Max: 500, TTL: day, Lockout: -1})
}

func (g *Guard) network56() Limit {
	return g.Network56.or(Limit{Max: 1000, TTL: day, Lockout: -1})
}

func (g *Guard) network48() Limit {
	return g.Network48.or(Limit{Max: 5000, TTL: day, Lockout: -1})
}

func (g *Guard) network32() Limit {
	return g.Network32.or(Limit{Max: 20_000, TTL: day, Lockout: -1})
}

func (g *Guard) name() Limit {
	return g.Name.or(Limit{Max: 24, TTL: day, Lockout: -1})
}

// nameLong returns the limit NameLong, which by default there is not.
func (g *Guard) nameLong() Limit {
	return g.NameLong.or(Limit{Max: -1, TTL: 365 * day, Lockout: -1})
}

func (g *Guard) known() Limit {
	return g.Known.or(Limit{Max: 12, TTL: day, Lockout: -1})
}

// or returns l with its zero fields taken from defaults.
func (l Limit) or(defaults Limit) Limit {
	return Limit{
		Max:     cmp.Or(l.Max, defaults.Max),
		TTL:     cmp.Or(l.TTL, defaults.TTL),
		Lockout: cmp.Or(l.Lockout, defaults.Lockout),
	}
}

// identifier returns the Identifier, or its default.
func (g *Guard) identifier() string { return cmp.Or(g.Identifier, DefaultIdentifier) }

// rule returns the Guard's rule with conditions.
func (g *Guard) rule(conditions []throttler.Condition) throttler.Rule {
	message := cmp.Or(g.Message, DefaultMessage)
	for i := range conditions {
		conditions[i].Message = message
	}
	return throttler.Rule{
		Identifier:          g.identifier(),
		Either:              conditions,
		LockoutGrowth:       cmp.Or(g.LockoutGrowth, DefaultLockoutGrowth),
		MaxLockout:          cmp.Or(g.MaxLockout, DefaultMaxLockout),
		CountAuthorizedOnly: true,
		Shadow:              g.Shadow,
	}
}

// A plan is the set of conditions that an attempt is counted by.
type plan struct {
	from   origin                // whose limit with the name a success clears
	limits []throttler.Condition // may block
	beside []throttler.Condition // count and never block

	watched []watched
}

// planned returns the rule of pl.
func (g *Guard) planned(pl plan) throttler.Rule {
	return g.rule(append(pl.limits[:len(pl.limits):len(pl.limits)], pl.beside...))
}

// anybody returns the plan for p as a stranger.
func (p party) anybody(g *Guard) plan {
	pl := plan{from: p.address}
	if p.name != "" && p.address.value != "" {
		pl.addPair(p, g)
	}
	if p.address.value != "" && !p.exempt {
		pl.addAddress(p.address.value, g)
	}
	if p.name != "" && g.account.Max > 0 {
		pl.watch(byAccount, p.name, Limit{Max: g.account.Max})
		pl.add(byAccount, p.name, g.account, throttler.SlidingWindow)
	}
	if p.name != "" {
		if limit := g.name(); limit.Max >= 0 {
			pl.watch(byName, p.name, Limit{Max: limit.Max})
		}
		pl.add(byName, p.name, g.name(), throttler.LeakyBucket)
		pl.add(byNameLong, p.name, g.nameLong(), throttler.SlidingWindow)
	}
	for i, n := range networks {
		if p.networks[i] != "" && !p.exempt {
			pl.add(n.condition, p.networks[i], n.limit(g), throttler.LeakyBucket)
		}
	}
	return pl
}

// known returns the plan for p if it is known from there. Anyone at a known
// address can try the names that are known there. So the limits of the address
// apply, or if these block (addressFull), one more for all known names.
func (p party) known(g *Guard, from origin, addressFull bool) plan {
	pl := plan{from: from}
	if p.name != "" && from.value != "" {
		pl.addPair(p, g)
	}
	if p.name != "" {
		pl.addKnown(p, g)
	}
	switch {
	case from.value == "" || from != p.address || p.exempt:
	case addressFull:
		pl.watch(byAddress, from.value, g.address())
		pl.add(byAddressKnown, from.value, g.addressDay(), throttler.LeakyBucket)
	default:
		pl.addAddress(from.value, g)
	}
	return pl
}

// addPair adds the limit of p's name from pl's origin.
func (pl *plan) addPair(p party, g *Guard) {
	pl.add(pl.from.pair, p.at(pl.from), g.nameAddress(), throttler.SlidingWindow)
	pl.watch(pl.from.pair, p.at(pl.from), g.nameAddress())
	if p.variant != "" {
		pl.beside = append(pl.beside, p.variants(pl.from, g))
	}
}

// addKnown adds the budgets of p's name where it is known: one over all addresses,
// one for each device, and the long one of the place.
func (pl *plan) addKnown(p party, g *Guard) {
	value := p.knownAt(pl.from)
	if limit := g.known(); limit.Max >= 0 {
		pl.watch(byKnown, value, Limit{Max: limit.Max})
		pl.add(byKnown, value, limit, throttler.LeakyBucket)
	}
	// Each address by itself: who shares one must not use it up at the others too.
	pl.add(byKnownLong, p.at(pl.from), g.nameLong(), throttler.SlidingWindow)
}

// addAddress adds the limits of an address.
func (pl *plan) addAddress(value string, g *Guard) {
	pl.add(byAddress, value, g.address(), throttler.SlidingWindow)
	pl.add(byAddressDay, value, g.addressDay(), throttler.LeakyBucket)
	pl.watch(byAddress, value, g.address())
}

// add adds a condition, unless l is disabled.
func (pl *plan) add(name, value string, l Limit, algorithm throttler.Algorithm) {
	if l.Max < 0 {
		return
	}
	pl.limits = append(pl.limits, throttler.Condition{
		Name: name, Value: value,
		Max: l.Max, TTL: l.TTL, Lockout: -1, // explain sets the bans
		Algorithm: algorithm,
	})
}

// variants returns the condition that counts attempts from there with other
// spellings of p's name, for as long as a ban may be remembered.
func (p party) variants(from origin, g *Guard) throttler.Condition {
	return throttler.Condition{
		Name: from.pair + variantSuffix, Value: p.at(from),
		Max: throttler.MaxHits, TTL: throttler.LockoutMemory + max(cmp.Or(g.MaxLockout, DefaultMaxLockout), g.nameAddress().Lockout), Lockout: -1,
	}
}
