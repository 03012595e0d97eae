package login

import (
	"cmp"
	"context"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// Where a name is known from is stored as a leaky bucket of 2 hits, each of
// which takes KnownFor to leak. The name is known from there until the bucket
// is empty. A success adds a hit if there is room. If there is none, more than
// KnownFor is left. So a name is known for KnownFor to twice that after a
// success, and most successes write nothing.
//
// A name is known by its exact spelling, but for blanks at its ends: the owner of "jose" has
// not logged in to "josé", though both count as one name.

// origins returns the origins from which p may be known, if it has a name.
func (p party) origins() []origin {
	var origins []origin
	for _, from := range []origin{p.device, p.address} {
		if p.name != "" && from.value != "" {
			origins = append(origins, from)
		}
	}
	return origins
}

// familiar returns the conditions that are full where p is known, one for each of
// its origins. There are none if p cannot be known.
func (g *Guard) familiar(p party) (conditions []throttler.Condition) {
	if g.KnownFor < 0 {
		return nil
	}
	for _, from := range p.origins() {
		conditions = append(conditions, g.familiarFrom(p, from.pair, p.at(from)))
	}
	return conditions
}

// familiarFrom returns the condition for value, which is p's name somewhere.
func (g *Guard) familiarFrom(p party, name, value string) throttler.Condition {
	if p.variant != "" {
		name, value = name+variantSuffix, value+"#"+p.variant
	}
	return throttler.Condition{
		Name:  name,
		Value: value,
		Max:   2, TTL: 2 * cmp.Or(g.KnownFor, defaultKnownFor),
		Algorithm: throttler.LeakyBucket,
	}
}

// knownRule returns the rule with conditions of what is known.
func (g *Guard) knownRule(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: g.identifier() + "-known", All: conditions}
}

// knownFrom returns the origins from which p is known, under any key.
func (g *Guard) knownFrom(ctx context.Context, p party) ([]origin, error) {
	var known []origin
	for _, q := range p.keyed() {
		places, conditions := p.origins(), g.familiar(q)
		if len(conditions) == 0 {
			continue // there is no name, or nobody is known
		}
		if old, possible := g.oldDevice(q); possible {
			places, conditions = append(places, p.device, p.device), append(conditions, old.replaced, old.leaving)
		}
		d, err := g.throttler.Peek(ctx, g.knownRule(conditions...))
		if err != nil {
			return nil, err
		}
		for i, o := range d.Outcomes {
			// A bucket has no room after one more hit. It would if it had been empty,
			// or is unreadable.
			if o.Blocked || conditions[i].Algorithm == throttler.LeakyBucket && o.Remaining == 0 {
				known = append(known, places[i])
			}
		}
	}
	unknown := func(from origin) bool { return !slices.Contains(known, from) }
	return slices.DeleteFunc(p.origins(), unknown), nil
}

// remember makes p known from its origins. It does so in the Fallback too, where
// p would otherwise be a stranger in an outage.
func (g *Guard) remember(ctx context.Context, p party) error {
	conditions := g.familiar(p)
	if len(conditions) == 0 {
		return nil
	}
	rule := g.knownRule(conditions...)
	if local := g.fallback(); local != nil {
		pour(ctx, local, rule) // in this process: it does not fail
	}
	return pour(ctx, g.throttler, rule)
}

// fallback returns a Throttler on the Fallback alone, or nil.
func (g *Guard) fallback() *throttler.Throttler {
	if g.throttler.Fallback == nil {
		return nil
	}
	g.localOnce.Do(func() { g.local = throttler.New(g.throttler.Fallback) })
	return g.local
}

// pour adds a hit to each bucket of rule that has room.
func pour(ctx context.Context, t *throttler.Throttler, rule throttler.Rule) error {
	// Peek first: an Authorize would be observed, usually as a block.
	d, err := t.Peek(ctx, rule)
	if err == nil && d.Err == nil && d.Status == throttler.Authorized {
		d, err = t.Authorize(ctx, rule)
	}
	if err != nil {
		return err
	}
	return d.Err
}

// clear forgets the failures and bans of p's name from there, if all were of
// this spelling. Others may be another account's. Of Codes it forgets the
// consecutive failures of the account.
func (g *Guard) clear(ctx context.Context, p party, from origin) error {
	limits := g.limits()
	if limits.account.Max > 0 {
		var pl plan
		pl.addAccount(p, &limits)
		return g.forget(ctx, pl)
	}
	if p.name == "" || p.variant != "" || from.value == "" || limits.nameAddress.Max < 0 {
		return nil
	}
	others, err := g.throttler.Peek(ctx, g.rule([]throttler.Condition{p.variants(from, &limits)}))
	if err == nil {
		err = others.Err
	}
	if err != nil || others.Outcomes[0].Remaining < throttler.MaxHits-1 {
		return err
	}
	pl := plan{from: from}
	pl.addPair(p, &limits)
	return g.forget(ctx, pl)
}

// refill forgets what was counted for p's name where it is known.
func (g *Guard) refill(ctx context.Context, p party) error {
	var steps []func() error
	limits := g.limits()
	for _, from := range p.origins() {
		pl := plan{from: from}
		pl.addKnown(p, &limits)
		steps = append(steps, func() error { return g.forget(ctx, pl) })
	}
	return together(steps...)
}

// asKnown authorizes an attempt by p with the limits of who is known, after the stranger's was
// blocked. It returns blocked if p is not known, or would have to wait longer as known.
func (g *Guard) asKnown(ctx context.Context, p party, blocked *Attempt) (*Attempt, error) {
	known, err := g.knownFrom(ctx, p)
	if err != nil {
		return nil, err
	}
	addressFull := blocks(&blocked.Decision, byAddress, byAddressDay)
	for _, from := range known {
		a, err := g.authorize(ctx, p, p.known(g, from, addressFull))
		if err != nil {
			return nil, err
		}
		a.Known = true
		if !a.Decision.WouldBlock {
			return a, nil
		}
		if a.Decision.RetryAfter < blocked.Decision.RetryAfter {
			blocked = a
		}
	}
	return blocked, nil
}
