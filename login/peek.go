package login

import (
	"context"
	"net/netip"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// Peek returns what counts against name, addr, and the two together. It changes
// nothing. It is for an operator, before a call of [Guard.Lift]. It answers as
// if a stranger made one more attempt: where an Outcome is not Blocked and has
// a Remaining of Limit-1, nothing counts. An empty name or the zero addr is
// left out.
//
// The error is [ErrNameTooLong], or wraps [throttler.ErrInvalidRule] if an
// option is invalid. The Decision's Err is the backend's.
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
	rule.Shadow, rule.CountAuthorizedOnly = false, false // each outcome includes the attempt
	return g.throttler.Peek(ctx, rule)
}

// counting returns the conditions that may count against name and addr, known
// or not.
func (g *Guard) counting(name string, addr netip.Addr) []throttler.Condition {
	p := g.party(name, addr, "")
	p.exempt = false // show what was counted before it became exempt
	all := p.anybody(g).limits
	for _, c := range p.known(g, p.address, true).limits {
		if !slices.ContainsFunc(all, func(other throttler.Condition) bool { return other.Name == c.Name }) {
			all = append(all, c)
		}
	}
	return all
}
