package login

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// Validate returns an error that wraps [throttler.ErrInvalidRule] and names the
// field, if an option is invalid. Begin, Recognize, Lift and Peek return it
// too. Call Validate when the program starts, to learn of it before the first
// login.
func (g *Guard) Validate() error {
	if err := g.validateLimits(); err != nil {
		return err
	}
	for i, prefix := range g.Exempt {
		if err := validateExempt(i, prefix); err != nil {
			return err
		}
	}
	return g.validateRest()
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
	longest := record.MaxBucketTTL / 2 // familiar doubles it
	switch {
	case g.KnownFor > 0 && g.KnownFor < time.Millisecond || g.KnownFor > longest:
		return invalid("KnownFor", g.KnownFor, fmt.Sprintf("1ms to %v, 0 or negative", longest))
	case g.IPv6Bits < 0 || g.IPv6Bits > 128:
		return invalid("IPv6Bits", g.IPv6Bits, "0 to 128")
	}
	return nil
}

func invalid(field string, problem any, want string) error {
	return fmt.Errorf("%w: Guard.%s is %v, want %s", throttler.ErrInvalidRule, field, problem, want)
}
