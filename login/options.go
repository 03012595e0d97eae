package login

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// Validate returns an error that wraps [throttler.ErrInvalidRule] and names the
// field, if an option is invalid. Begin, Recognize, Lift and Peek return it
// too. Call Validate when the program starts, to learn of it before the first
// login.
func (g *Guard) Validate() error {
	for _, l := range []struct {
		field     string
		limit     Limit
		algorithm throttler.Algorithm
	}{
		{"NameAddress", g.nameAddress(), throttler.SlidingWindow},
		{"Account", g.account.or(Limit{Max: -1}), throttler.SlidingWindow},
		{"Address", g.address(), throttler.SlidingWindow},
		{"AddressDay", g.addressDay(), throttler.LeakyBucket},
		{"Network56", g.network56(), throttler.LeakyBucket},
		{"Network48", g.network48(), throttler.LeakyBucket},
		{"Network32", g.network32(), throttler.LeakyBucket},
		{"Name", g.name(), throttler.LeakyBucket},
		{"NameLong", g.nameLong(), throttler.SlidingWindow},
		{"Known", g.known(), throttler.LeakyBucket},
	} {
		if err := l.limit.validate(l.field, l.algorithm); err != nil {
			return err
		}
	}
	for i, prefix := range g.Exempt {
		if err := validateExempt(i, prefix); err != nil {
			return err
		}
	}
	return g.validateRest()
}

// validate returns the error of l, the limit of field with its defaults filled
// in.
func (l Limit) validate(field string, algorithm throttler.Algorithm) error {
	largest := throttler.MaxHits
	if algorithm == throttler.LeakyBucket {
		largest = int(min(int64(l.TTL), math.MaxInt))
	}
	switch {
	case l.Max < 0:
		return nil // there is no such limit
	case l.TTL < time.Millisecond:
		return invalid(field+".TTL", l.TTL, "1ms or more")
	case algorithm == throttler.LeakyBucket && l.TTL > throttler.MaxBucketTTL:
		return invalid(field+".TTL", l.TTL, fmt.Sprintf("at most %v", throttler.MaxBucketTTL))
	case l.Max > largest:
		return invalid(field+".Max", l.Max, fmt.Sprintf("at most %d", largest))
	}
	return nil
}

// validateExempt returns the error of an element of Exempt that could never
// match.
func validateExempt(i int, prefix netip.Prefix) error {
	field := fmt.Sprintf("Exempt[%d]", i)
	switch {
	case !prefix.IsValid():
		return invalid(field, prefix, "a prefix, as of netip.ParsePrefix")
	case address.PlainPrefix(prefix) != prefix && !prefix.Addr().Is4In6():
		return invalid(field, prefix, "the prefix of the IPv4 addresses in it")
	}
	return nil
}

// validateRest returns the error of the options that are not limits.
func (g *Guard) validateRest() error {
	longest := throttler.MaxBucketTTL / 2 // familiar doubles it
	switch {
	case g.LockoutGrowth != 0 && !(g.LockoutGrowth >= 1) || math.IsInf(g.LockoutGrowth, 0):
		return invalid("LockoutGrowth", g.LockoutGrowth, "0, or a number from 1")
	case g.MaxLockout < 0:
		return invalid("MaxLockout", g.MaxLockout, "0 or more")
	case g.KnownFor > 0 && g.KnownFor < time.Millisecond || g.KnownFor > longest:
		return invalid("KnownFor", g.KnownFor, fmt.Sprintf("1ms to %v, 0 or negative", longest))
	case g.IPv6Bits < 0 || g.IPv6Bits > 128:
		return invalid("IPv6Bits", g.IPv6Bits, "0 to 128")
	}
	return g.validateSiege()
}

func invalid(field string, problem any, want string) error {
	return fmt.Errorf("%w: Guard.%s is %v, want %s", throttler.ErrInvalidRule, field, problem, want)
}
