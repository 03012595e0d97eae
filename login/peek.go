package login

import (
	"context"
	"net/netip"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// Peek says what counts against name, addr, and the two together, and writes
// nothing. It is for an operator who wants to know before they call Lift. It
// answers as if one more attempt were made by nobody who is known: an Outcome with
// a Remaining of Limit-1 that is not Blocked has nothing that counts. An empty
// name, or the zero addr, stands for none.
//
// The error is [ErrNameTooLong], or wraps [throttler.ErrInvalidRule] if options
// make no sense. A failure of the backend stands in the Decision's Err.
func (g *Guard) Peek(ctx context.Context, name string, addr netip.Addr) (throttler.Decision, error) {
	if len(name) > MaxName {
		return throttler.Decision{}, ErrNameTooLong
	}
	if err := g.Validate(); err != nil {
		return throttler.Decision{}, err
	}
	rule := g.rule(g.counting(name, addr))
	if len(rule.Either) == 0 {
		return throttler.Decision{Status: throttler.Authorized}, nil
	}
	rule.Shadow = false
	return g.throttler.Peek(ctx, rule)
}

// counting returns the conditions that may count against name and addr, be they
// known or not.
func (g *Guard) counting(name string, addr netip.Addr) []throttler.Condition {
	p := g.party(name, addr, "")
	p.exempt = false // what counted before still does, if it is to be exempt no more
	all := p.anybody(g).limits
	for _, c := range p.known(g, p.address, true).limits {
		if !slices.ContainsFunc(all, func(other throttler.Condition) bool { return other.Name == c.Name }) {
			all = append(all, c)
		}
	}
	return all
}
