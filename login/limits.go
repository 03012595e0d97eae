package login

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Limit is the number of attempts after which a condition blocks. A field
// that is zero has the default of the limit.
type Limit struct {
	// Max is the number of attempts that fit. Negative disables the limit.
	Max int

	// TTL is how long an attempt counts, or how long a full bucket takes to
	// leak empty.
	TTL time.Duration

	// Lockout is the length of the first ban. Negative: no ban. Only "name+address" and
	// "address" are ever banned; the others ignore it.
	Lockout time.Duration
}

// A limitSet has the limits of a Guard.
type limitSet struct {
	nameAddress, address, addressDay, network56, network48, network32, name, nameLong, known Limit

	account    Limit // of consecutive failures, of Codes
	maxLockout time.Duration
}

// defaultLimits are the defaults.
//
// Where they come from: NIST SP 800-63B-4, section 3.2.2, suggests waits that grow
// from 30 seconds to an hour, and name opens by one an hour when it is full. 5 a minute for
// a name and address is common practice. Known clients are those of OWASP's article on
// device cookies. The rest was chosen by simulation: simulation_test.go has the options that
// were tried and rejected, and testdata/simulations.md the figures.
var defaultLimits = limitSet{
	nameAddress: Limit{Max: 5, TTL: time.Minute, Lockout: 10 * time.Minute},
	address:     Limit{Max: 50, TTL: 5 * time.Minute, Lockout: 10 * time.Minute},
	addressDay:  Limit{Max: 500, TTL: day, Lockout: -1},
	network56:   Limit{Max: 1000, TTL: day, Lockout: -1},
	network48:   Limit{Max: 5000, TTL: day, Lockout: -1},
	network32:   Limit{Max: 20_000, TTL: day, Lockout: -1},
	name:        Limit{Max: 24, TTL: day, Lockout: -1},
	nameLong:    Limit{Max: -1, TTL: 365 * day, Lockout: -1},
	known:       Limit{Max: 12, TTL: day, Lockout: -1},
	account:     Limit{Max: -1},
	maxLockout:  time.Hour,
}

// bySiege is the name of the alarm among [Guard.Limits].
const bySiege = "siege"

// defaultSiegeFloor is the default of its Max.
const defaultSiegeFloor = 100

// limits returns the limits of g with their defaults filled in.
func (g *Guard) limits() limitSet {
	l := defaultLimits
	if len(g.Limits) > 0 {
		for _, f := range l.table() {
			*f.Limit = g.Limits[f.name].or(*f.Limit)
		}
	}
	l.account = g.account.or(l.account)
	l.maxLockout = cmp.Or(g.MaxLockout, l.maxLockout)
	return l
}

// or returns l with its zero fields taken from defaults.
func (l Limit) or(defaults Limit) Limit {
	return Limit{
		Max:     cmp.Or(l.Max, defaults.Max),
		TTL:     cmp.Or(l.TTL, defaults.TTL),
		Lockout: cmp.Or(l.Lockout, defaults.Lockout),
	}
}

// A limitField is a limit of a limitSet.
type limitField struct {
	name      string
	algorithm throttler.Algorithm
	*Limit
}

// table returns the limits of l that [Guard.Limits] may name.
func (l *limitSet) table() [9]limitField {
	const window, bucket = throttler.SlidingWindow, throttler.LeakyBucket
	return [...]limitField{
		{byNameAddress, window, &l.nameAddress},
		{byAddress, window, &l.address},
		{byAddressDay, bucket, &l.addressDay},
		{byNetwork56, bucket, &l.network56},
		{byNetwork48, bucket, &l.network48},
		{byNetwork32, bucket, &l.network32},
		{byName, bucket, &l.name},
		{byNameLong, window, &l.nameLong},
		{byKnown, bucket, &l.known},
	}
}

// validateLimits returns the error of the limits of g.
func (g *Guard) validateLimits() error {
	limits := g.limits()
	table := limits.table()
	for name := range g.Limits {
		if name != bySiege && !slices.ContainsFunc(table[:], func(f limitField) bool { return f.name == name }) {
			return invalid("Limits", fmt.Sprintf("of %q", name), "the name of a limit")
		}
	}
	for _, f := range append(table[:], limitField{byAccount, throttler.SlidingWindow, &limits.account}) {
		if err := f.validate(); err != nil {
			return err
		}
	}
	const largest = throttler.MaxHits / 2
	switch siege := g.Limits[bySiege]; {
	case g.MaxLockout < 0:
		return invalid("MaxLockout", g.MaxLockout, "0 or more")
	case siege.Max > 0 && (siege.Max < siegeShare || siege.Max > largest):
		return invalid(`Limits["siege"].Max`, siege.Max, fmt.Sprintf("%d to %d, 0 or negative", siegeShare, largest))
	case siege.TTL != 0 || siege.Lockout != 0:
		return invalid(`Limits["siege"]`, fmt.Sprintf("%+v", siege), "a Max only")
	}
	return nil
}

func (f limitField) validate() error {
	largest := throttler.MaxHits
	if f.algorithm == throttler.LeakyBucket {
		largest = int(min(int64(f.TTL), math.MaxInt))
	}
	switch {
	case f.Max < 0:
		return nil // there is no such limit
	case f.TTL < time.Millisecond:
		return invalid(f.field("TTL"), f.TTL, "1ms or more")
	case f.algorithm == throttler.LeakyBucket && f.TTL > record.MaxBucketTTL:
		return invalid(f.field("TTL"), f.TTL, fmt.Sprintf("at most %v", record.MaxBucketTTL))
	case f.Max > largest:
		return invalid(f.field("Max"), f.Max, fmt.Sprintf("at most %d", largest))
	}
	return nil
}

// field names a field of f.
func (f limitField) field(name string) string { return fmt.Sprintf("Limits[%q].%s", f.name, name) }
