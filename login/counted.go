package login

import (
	"context"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
)

// Counted returns what [Guard.Lift] would forget: an outcome for each limit that
// something is counted against, or that is banned, of name, of addr and of the two
// together. None means that nothing is counted there. It is for an operator, and
// changes nothing. An empty name, or the zero addr, stands for none. The error says
// what the backend failed at, or is [ErrNameTooLong].
func (g *Guard) Counted(ctx context.Context, name string, addr netip.Addr) ([]throttler.Outcome, error) {
	if len(name) > MaxName {
		return nil, ErrNameTooLong
	}
	p := g.party(name, addr, "")
	var limits []throttler.Condition
	seen := make(map[string]bool)
	for _, pl := range []plan{p.anybody(g), p.known(g, p.address, true)} {
		for _, c := range pl.limits {
			if !seen[c.Name] {
				limits = append(limits, c)
			}
			seen[c.Name] = true
		}
	}
	if len(limits) == 0 {
		return nil, nil
	}
	rule := g.rule(limits)
	rule.CountAuthorizedOnly = false // so that all have one more hit, whichever blocks
	d, err := g.throttler.Peek(ctx, rule)
	if err == nil {
		err = d.Err
	}
	if err != nil {
		return nil, err
	}
	var counted []throttler.Outcome
	for _, o := range d.Outcomes {
		if o.Blocked || o.Remaining < o.Limit-1 { // after that hit
			counted = append(counted, o)
		}
	}
	return counted, nil
}
