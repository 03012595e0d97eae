package login

import (
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
// A name is known by its exact spelling: the owner of "jose" has not logged in
// to "josé", though both count as one name.

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

// familiar returns the rule whose conditions tell from which of its origins p
// is known, and whether p can be known at all.
func (g *Guard) familiar(p party) (throttler.Rule, bool) {
	rule := throttler.Rule{Identifier: or(g.Identifier, DefaultIdentifier) + "-known"}
	for _, from := range p.origins() {
		name, value := from.pair, p.at(from)
		if p.variant != "" {
			name, value = name+variantSuffix, value+"#"+p.variant
		}
		rule.All = append(rule.All, throttler.Condition{
			Name:  name,
			Value: value,
			Max:   2, TTL: 2 * or(g.KnownFor, DefaultKnownFor),
			Algorithm: throttler.LeakyBucket,
		})
	}
	return rule, len(rule.All) > 0 && g.KnownFor >= 0
}

// wasKnown returns the origins from which p is known under a former key.
func (g *Guard) wasKnown(ctx context.Context, p party) (from []origin) {
	for _, f := range p.former {
		q := party{name: f.name, variant: f.variant, device: f.device, address: p.address}
		rule, possible := g.familiar(q)
		if !possible {
			continue
		}
		d, err := g.throttler.Peek(ctx, rule)
		for i, one := range q.origins() {
			if err != nil || d.Outcomes[i].Err != nil || d.Outcomes[i].Remaining > 0 {
				continue
			}
			if one.pair == byNameDevice {
				one = p.device
			}
			from = append(from, one)
		}
	}
	return from
}

// remember makes p known from its origins. It does so in the Fallback too, where
// p would otherwise be a stranger in an outage.
func (g *Guard) remember(ctx context.Context, p party) error {
	rule, possible := g.familiar(p)
	if !possible {
		return nil
	}
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
	if g.account.Max > 0 {
		var pl plan
		pl.watch(byAccount, p.name, Limit{Max: g.account.Max})
		pl.add(byAccount, p.name, g.account, throttler.SlidingWindow)
		return g.forget(ctx, pl)
	}
	if p.name == "" || p.variant != "" || from.value == "" || g.nameAddress().Max < 0 {
		return nil
	}
	others, err := g.throttler.Peek(ctx, g.rule([]throttler.Condition{p.variants(from, g)}))
	if err == nil {
		err = others.Err
	}
	if err != nil || others.Outcomes[0].Remaining < throttler.MaxHits-1 {
		return err
	}
	pl := plan{from: from}
	pl.addPair(p, g)
	return g.forget(ctx, pl)
}

// refill forgets what was counted for p's name where it is known.
func (g *Guard) refill(ctx context.Context, p party) error {
	var steps []func() error
	for _, from := range p.origins() {
		pl := plan{from: from}
		pl.addKnown(p, g)
		steps = append(steps, func() error { return g.forget(ctx, pl) })
	}
	return together(steps...)
}

// beginKnown begins again as known, after blocked was begun as a stranger's. It
// returns blocked if p is not known, or would have to wait longer as known.
func (g *Guard) beginKnown(ctx context.Context, p party, blocked *Attempt) (*Attempt, error) {
	rule, possible := g.familiar(p)
	if !possible {
		return blocked, nil
	}
	origins := p.origins()
	leaving := g.leaving(p)
	rule.All = append(rule.All, leaving...)
	former := g.wasKnown(ctx, p)
	d, err := g.throttler.Peek(ctx, rule)
	if err != nil {
		return nil, err
	}
	addressFull := blocks(&blocked.Decision, byAddress, byAddressDay)
	for i, from := range origins {
		known := d.Outcomes[i].Remaining == 0 // after one more hit: otherwise it was empty, or unreadable
		if from == p.device && len(leaving) > 0 {
			known = known || d.Outcomes[len(origins)].Blocked
		}
		if !known && !slices.Contains(former, from) {
			continue
		}
		a, err := g.begin(ctx, p, p.known(g, from, addressFull))
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
