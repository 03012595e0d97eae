package login

import (
	"cmp"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// The records of a Guard. I is its Identifier.
//
// Limits may block. The TTL is the limit's:
//
//	record          in          holds                                 for       read by
//	name+address …  I           attempts that have not succeeded      TTL       Begin, Peek
//
// All others are memories, which block nothing by themselves:
//
//	record          in          holds                                 for       read by
//	…-pending       I           attempts that were not ended          TTL+30 s  Begin, of a ban
//	…               I-failures  attempts that failed                  TTL       Begin, of a ban
//	…-variant       I           attempts with other spellings         25 h      Succeed, Recognize
//	name+address    I-known     where a name is known                 KnownFor  Begin, if it is blocked
//	name+device     I-known     by which device it is                 KnownFor  or there is a siege
//	…-replaced      I-known     by which one it was and still is      KnownFor  likewise
//	…-leaving       I-known     by which one it is for a moment       30 s      likewise
//	…-replaces-0 …  I-known     which one a new device has replaced   KnownFor  Begin with a device
//	ended           I-handover  that an attempt elsewhere has ended   20 min    its end, the alarm
//	by-network …    I-siege     what the alarm counts, see siege.go   1 h       Begin, each 5 s
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

// identifier returns the Identifier, or its default.
func (g *Guard) identifier() string { return cmp.Or(g.Identifier, defaultIdentifier) }

// rule returns the Guard's rule with conditions.
func (g *Guard) rule(conditions []throttler.Condition) throttler.Rule {
	for i := range conditions {
		conditions[i].Message = refusalMessage // the same for all, so that it does not tell which one blocks
	}
	return throttler.Rule{
		Identifier:          g.identifier(),
		Either:              conditions,
		LockoutGrowth:       2,
		MaxLockout:          g.limits().maxLockout,
		CountAuthorizedOnly: true,
		Shadow:              g.Shadow,
	}
}

// A plan is the set of conditions that an attempt is counted by.
type plan struct {
	from   origin                // whose limit with the name a success clears
	limits []throttler.Condition // may block
	beside []throttler.Condition // count and never block

	evidence []evidence
}

// heldBefore returns the number of hits in the record of o, of a Peek, whose outcome
// includes one more hit.
func heldBefore(o throttler.Outcome) int {
	if o.Blocked {
		return o.Limit
	}
	return o.Limit - o.Remaining - 1
}

// planned returns the rule of pl.
func (g *Guard) planned(pl plan) throttler.Rule {
	return g.rule(append(pl.limits[:len(pl.limits):len(pl.limits)], pl.beside...))
}

// anybody returns the plan for p as a stranger.
func (p party) anybody(g *Guard) plan {
	limits := g.limits()
	pl := plan{from: p.address}
	if p.name != "" && p.address.value != "" {
		pl.addPair(p, &limits)
	}
	if p.address.value != "" && !p.exempt {
		pl.addAddress(p.address.value, &limits)
	}
	if p.name != "" {
		pl.addAccount(p, &limits)
		if limits.name.Max >= 0 {
			pl.addEvidence(byName, p.name, Limit{Max: limits.name.Max})
		}
		pl.add(byName, p.name, limits.name, throttler.LeakyBucket)
		pl.add(byNameLong, p.name, limits.nameLong, throttler.SlidingWindow)
	}
	for i, n := range networks {
		if p.networks[i] != "" && !p.exempt {
			pl.add(n.condition, p.networks[i], n.limit(&limits), throttler.LeakyBucket)
		}
	}
	return pl
}

// known returns the plan for p if it is known from there. Anyone at a known
// address can try the names that are known there. So the limits of the address
// apply, or if these block (addressFull), one more for all known names.
func (p party) known(g *Guard, from origin, addressFull bool) plan {
	limits := g.limits()
	pl := plan{from: from}
	if p.name != "" && from.value != "" {
		pl.addPair(p, &limits)
	}
	if p.name != "" {
		pl.addKnown(p, &limits)
	}
	switch {
	case from.value == "" || from != p.address || p.exempt:
	case addressFull:
		pl.addEvidence(byAddress, from.value, limits.address)
		pl.add(byAddressKnown, from.value, limits.addressDay, throttler.LeakyBucket)
	default:
		pl.addAddress(from.value, &limits)
	}
	return pl
}

// addPair adds the limit of p's name from pl's origin.
func (pl *plan) addPair(p party, limits *limitSet) {
	pl.add(pl.from.pair, p.at(pl.from), limits.nameAddress, throttler.SlidingWindow)
	pl.addEvidence(pl.from.pair, p.at(pl.from), limits.nameAddress)
	if p.variant != "" {
		pl.beside = append(pl.beside, p.variants(pl.from, limits))
	}
}

// addAccount adds the limit of the account that p's name is, of Codes.
func (pl *plan) addAccount(p party, limits *limitSet) {
	if limits.account.Max > 0 {
		pl.addEvidence(byAccount, p.name, Limit{Max: limits.account.Max})
		pl.add(byAccount, p.name, limits.account, throttler.SlidingWindow)
	}
}

// addKnown adds the budgets of p's name where it is known: one over all addresses,
// one for each device, and the long one of the place.
func (pl *plan) addKnown(p party, limits *limitSet) {
	value := p.knownAt(pl.from)
	if limits.known.Max >= 0 {
		pl.addEvidence(byKnown, value, Limit{Max: limits.known.Max})
		pl.add(byKnown, value, limits.known, throttler.LeakyBucket)
	}
	// Each address by itself: who shares one must not use it up at the others too.
	pl.add(byKnownLong, p.at(pl.from), limits.nameLong, throttler.SlidingWindow)
}

// addAddress adds the limits of an address.
func (pl *plan) addAddress(value string, limits *limitSet) {
	pl.add(byAddress, value, limits.address, throttler.SlidingWindow)
	pl.add(byAddressDay, value, limits.addressDay, throttler.LeakyBucket)
	pl.addEvidence(byAddress, value, limits.address)
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
func (p party) variants(from origin, limits *limitSet) throttler.Condition {
	return throttler.Condition{
		Name: from.pair + variantSuffix, Value: p.at(from),
		Max: throttler.MaxHits, TTL: record.LockoutMemory + max(limits.maxLockout, limits.nameAddress.Lockout), Lockout: -1,
	}
}
