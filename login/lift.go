package login

import (
	"context"
	"net/netip"
	"strings"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// LiftRecord lifts what the condition of a [throttler.Outcome] has counted for
// value, as they are stored: with [Guard.Keys] the value holds the HMAC of a name.
// It is for an operator's list of what is blocked, as [throttler.Throttler.Observe]
// sees it. Resetting only the record itself would leave the failures beside it,
// and the next attempts would be banned again.
//
// For "address" it lifts all limits of that address, for "name" also the one
// where the name is known, as [Guard.Lift] does; for any other condition that one
// only. The error is the backend's, or wraps [throttler.ErrInvalidRule] if an
// option is invalid.
func (g *Guard) LiftRecord(ctx context.Context, condition, value string) error {
	if err := g.Validate(); err != nil {
		return err
	}
	p := party{address: origin{pair: byNameAddress}}
	switch condition {
	case byNameAddress, byNameDevice:
		from, name, _ := strings.Cut(value, "#")
		p.name = name
		pl, limits := plan{from: origin{condition, from}}, g.limits()
		pl.addPair(p, &limits)
		return g.forget(ctx, pl)
	case byAddress:
		p.address.value, p.networks = value, networksOf(value)
	case byName:
		p.name = value
	default:
		rule := throttler.Rule{
			Identifier: g.identifier(),
			Either:     []throttler.Condition{{Name: condition, Value: value, Max: 1, TTL: day}},
		}
		return g.throttler.Reset(ctx, rule)
	}
	return g.forget(ctx, p.anybody(g), p.known(g, p.address, true))
}

// networksOf returns the networks of an address as it is counted.
func networksOf(counted string) (of [len(networks)]string) {
	prefix, err := netip.ParsePrefix(counted)
	addr := prefix.Addr()
	if err != nil {
		addr, _ = netip.ParseAddr(counted) // the zero Addr has no networks
	}
	for i, n := range networks {
		if addr.IsValid() && address.HasNetwork(addr) {
			of[i] = address.Text(addr, n.bits)
		}
	}
	return of
}
