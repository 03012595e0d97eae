package login

import (
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The names of the conditions.
const (
	byNameAddress  = "name+address"
	byNameDevice   = "name+device"
	byAddress      = "address"
	byAddressDay   = "address-day"
	byNetwork      = "network-56"
	byWide         = "network-48"
	byName         = "name"
	byKnown        = "known"
	byAddressKnown = "address-known"
)

const day = 24 * time.Hour

// The limits of a Guard that are not set. docs/login.md says how they were
// chosen.
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

func (g *Guard) name() Limit {
	return g.Name.or(Limit{Max: 24, TTL: day, Lockout: -1})
}

func (g *Guard) known() Limit {
	return g.Known.or(Limit{Max: 12, TTL: day, Lockout: -1})
}

// or returns l with what is not set taken from defaults.
func (l Limit) or(defaults Limit) Limit {
	return Limit{
		Max:     or(l.Max, defaults.Max),
		TTL:     or(l.TTL, defaults.TTL),
		Lockout: or(l.Lockout, defaults.Lockout),
	}
}

// or returns option, or byDefault if that is not set.
func or[T comparable](option, byDefault T) T {
	var unset T
	if option == unset {
		return byDefault
	}
	return option
}

// rule returns the Guard's rule of these conditions.
func (g *Guard) rule(conditions []throttler.Condition) throttler.Rule {
	message := or(g.Message, DefaultMessage)
	for i := range conditions {
		conditions[i].Message = message
	}
	return throttler.Rule{
		Identifier:          or(g.Identifier, DefaultIdentifier),
		Either:              conditions,
		LockoutGrowth:       or(g.LockoutGrowth, DefaultLockoutGrowth),
		MaxLockout:          or(g.MaxLockout, DefaultMaxLockout),
		CountAuthorizedOnly: true,
		Shadow:              g.Shadow,
	}
}

// anybody returns the conditions for p, whether known or not.
func (p party) anybody(g *Guard) []throttler.Condition {
	var c conditions
	if p.name != "" && p.address.value != "" {
		c.add(byNameAddress, p.at(p.address), g.nameAddress(), throttler.SlidingWindow)
	}
	if p.address.value != "" {
		c.addAddress(p.address.value, g)
	}
	if p.name != "" {
		c.add(byName, p.name, g.name(), throttler.LeakyBucket)
	}
	if p.network != "" {
		c.add(byNetwork, p.network, g.network56(), throttler.LeakyBucket)
	}
	if p.wide != "" {
		c.add(byWide, p.wide, g.network48(), throttler.LeakyBucket)
	}
	return c
}

// known returns the conditions for p if it is known from there. An address is
// no secret: somebody else there may try the names of all who are known. So its
// own limits hold, or once these block, as addressFull says, one more.
func (p party) known(g *Guard, from origin, addressFull bool) []throttler.Condition {
	var c conditions
	if p.name != "" && from.value != "" {
		c.add(from.pair, p.at(from), g.nameAddress(), throttler.SlidingWindow)
		c.add(byKnown, p.at(from), g.known(), throttler.LeakyBucket)
	}
	switch {
	case from.value == "" || from != p.address:
	case addressFull:
		c.add(byAddressKnown, from.value, g.addressDay(), throttler.LeakyBucket)
	default:
		c.addAddress(from.value, g)
	}
	return c
}

type conditions []throttler.Condition

// addAddress adds the limits of an address.
func (c *conditions) addAddress(value string, g *Guard) {
	c.add(byAddress, value, g.address(), throttler.SlidingWindow)
	c.add(byAddressDay, value, g.addressDay(), throttler.LeakyBucket)
}

// add adds a condition, unless there is no such limit.
func (c *conditions) add(name, value string, l Limit, algorithm throttler.Algorithm) {
	if l.Max < 0 {
		return
	}
	*c = append(*c, throttler.Condition{
		Name: name, Value: value,
		Max: l.Max, TTL: l.TTL, Lockout: l.Lockout,
		Algorithm: algorithm,
	})
}
