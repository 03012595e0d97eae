package engine

import (
	"context"
	"time"
)

// Ban bans the values that a call of p asks about for length from now, in the fallback too.
func (p *Plan) Ban(ctx context.Context, demands []Demand, length time.Duration) error {
	keys := p.Keys(demands)
	p.engine.hands.drop(keys)
	defer p.engine.hands.drop(keys) // what was taken meanwhile
	err := p.engine.main.ban(ctx, keys, length)
	if fallback := p.engine.fallback(); fallback != nil {
		err = Join(err, fallback.ban(context.WithoutCancel(ctx), keys, length))
	}
	return err
}

// ban bans the records of keys for length from now.
func (b *backend) ban(ctx context.Context, keys []string, length time.Duration) error {
	entries := make([]*entry, len(keys))
	for i, key := range keys {
		entries[i] = &entry{change: change{length: length}}
		entries[i].begin(b, opBan, key)
	}
	askAll(ctx, entries, false)
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = e.Failed(); errs[i] == nil {
			b.engine.freed(e.Key)
		}
	}
	return Join(errs...)
}

// Reset forgets the records that a call of p asks about, in the fallback too.
func (p *Plan) Reset(ctx context.Context, demands []Demand) error {
	keys := p.Keys(demands)
	p.engine.hands.drop(keys)
	defer p.engine.hands.drop(keys) // what was taken meanwhile
	err := p.engine.main.reset(ctx, keys)
	if fallback := p.engine.fallback(); fallback != nil {
		// Even if ctx has ended over a backend that hangs, as when it decides.
		err = Join(err, fallback.reset(context.WithoutCancel(ctx), keys))
	}
	return err
}
