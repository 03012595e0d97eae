package login

import (
	"cmp"
	"fmt"
	"math"
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

	// Lockout is the length of the first ban. Negative: no ban. Only
	// NameAddress and Address are ever banned; the others ignore it.
	Lockout time.Duration
}

// Limits are the limits of a [Guard].
type Limits struct {
	// NameAddress limits one name from one address, or with one device. Default: 5 in
	// 1 minute, then a ban of 10 minutes.
	NameAddress Limit

	// Address limits one address. Default: 50 in 5 minutes, then a ban of 10
	// minutes.
	Address Limit

	// AddressDay limits one address over a longer time, by a leaky bucket. A
	// second bucket of the same size limits all names known at that address,
	// once the other limits of the address block. Never banned. Default: 500 at
	// once, then 500 a day, evenly.
	AddressDay Limit

	// Network56, Network48 and Network32 limit the /56, the /48 and the /32 of
	// an IPv6 address, by leaky buckets. They do not block a name where it is
	// known. Never banned. Default: 1,000 at once, then 1,000 a day for a /56;
	// 5,000 at once, then 5,000 a day for a /48; 20,000 at once, then 20,000 a
	// day for a /32.
	Network56, Network48, Network32 Limit

	// Name limits one name, by a leaky bucket. Never banned. Default: 24 at
	// once, then 1 an hour.
	Name Limit

	// NameLong limits one name over a long time, by a window, against attackers
	// who are more patient than Name. Once it is full, strangers have to prove who
	// they are before their password is looked at: see [Attempt.SecondStep]. It
	// does not block a name where it is known: each address and device has a
	// window of the same size. Never banned. Zero means that there is no such
	// limit. Default of TTL: 365 days.
	NameLong Limit

	// Known limits one name where it is known, once the other limits would block
	// it: over all addresses together, and for each device. It is a leaky
	// bucket. Never banned. Default: 12 at once, then 1 in 2 hours.
	Known Limit

	// MaxLockout bounds the length of a ban. Each further ban of a value is twice as
	// long as the one before; with MaxLockout no longer than Lockout, all are alike.
	// Default: 1 hour.
	MaxLockout time.Duration

	// SiegeFloor is the least number of failures an hour, over all names and
	// processes, that begins a siege. A siege begins when the failures of an hour
	// reach half the number of names that logged in meanwhile, but never below
	// SiegeFloor, and always at 20,000. One name counts at most a 20th of that, and so
	// does one network (an IPv4 /16 or an IPv6 /32). Nothing is learned: when the
	// records are lost, the alarm goes on with what is counted from then on. Zero
	// means the default; negative disables the alarm. Default: 100.
	SiegeFloor int

	account Limit // of consecutive failures, of Codes
}

// defaultLimits are the defaults.
//
// Where they come from: NIST SP 800-63B-4, section 3.2.2, suggests waits that grow
// from 30 seconds to an hour, and name opens by one an hour when it is full. 5 a minute for
// a name and address is common practice. Known clients are those of OWASP's article on
// device cookies. The rest was chosen by simulation: simulation_test.go has the options that
// were tried and rejected, and testdata/simulations.md the figures.
var defaultLimits = Limits{
	NameAddress: Limit{Max: 5, TTL: time.Minute, Lockout: 10 * time.Minute},
	Address:     Limit{Max: 50, TTL: 5 * time.Minute, Lockout: 10 * time.Minute},
	AddressDay:  Limit{Max: 500, TTL: day, Lockout: -1},
	Network56:   Limit{Max: 1000, TTL: day, Lockout: -1},
	Network48:   Limit{Max: 5000, TTL: day, Lockout: -1},
	Network32:   Limit{Max: 20_000, TTL: day, Lockout: -1},
	Name:        Limit{Max: 24, TTL: day, Lockout: -1},
	NameLong:    Limit{Max: -1, TTL: 365 * day, Lockout: -1},
	Known:       Limit{Max: 12, TTL: day, Lockout: -1},
	MaxLockout:  time.Hour,
	SiegeFloor:  100,
	account:     Limit{Max: -1},
}

// limits returns the limits of g with their defaults filled in.
func (g *Guard) limits() Limits {
	l, d := g.Limits, defaultLimits
	defaults := d.table()
	for i, f := range l.table() {
		*f.Limit = f.or(*defaults[i].Limit)
	}
	l.MaxLockout = cmp.Or(l.MaxLockout, d.MaxLockout)
	l.SiegeFloor = cmp.Or(l.SiegeFloor, d.SiegeFloor)
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

// A limitField is a field of Limits.
type limitField struct {
	name      string
	algorithm throttler.Algorithm
	*Limit
}

// table returns the fields of l, all limits and in one order.
func (l *Limits) table() [10]limitField {
	const window, bucket = throttler.SlidingWindow, throttler.LeakyBucket
	return [...]limitField{
		{"NameAddress", window, &l.NameAddress},
		{"Account", window, &l.account},
		{"Address", window, &l.Address},
		{"AddressDay", bucket, &l.AddressDay},
		{"Network56", bucket, &l.Network56},
		{"Network48", bucket, &l.Network48},
		{"Network32", bucket, &l.Network32},
		{"Name", bucket, &l.Name},
		{"NameLong", window, &l.NameLong},
		{"Known", bucket, &l.Known},
	}
}

// validate returns the error of l, which has its defaults.
func (l *Limits) validate() error {
	for _, f := range l.table() {
		if err := f.validate(); err != nil {
			return err
		}
	}
	const largest = throttler.MaxHits / 2
	switch {
	case l.MaxLockout < 0:
		return invalid("MaxLockout", l.MaxLockout, "0 or more")
	case l.SiegeFloor >= 0 && (l.SiegeFloor < siegeShare || l.SiegeFloor > largest):
		return invalid("SiegeFloor", l.SiegeFloor, fmt.Sprintf("%d to %d, 0 or negative", siegeShare, largest))
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
		return invalid(f.name+".TTL", f.TTL, "1ms or more")
	case f.algorithm == throttler.LeakyBucket && f.TTL > record.MaxBucketTTL:
		return invalid(f.name+".TTL", f.TTL, fmt.Sprintf("at most %v", record.MaxBucketTTL))
	case f.Max > largest:
		return invalid(f.name+".Max", f.Max, fmt.Sprintf("at most %d", largest))
	}
	return nil
}
