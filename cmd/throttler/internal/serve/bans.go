package serve

import (
	"context"
	"errors"

	"github.com/adaptivethrottler/throttler"
)

// showBans has the tally show the bans of rules and logins, and lift them for who has one of the
// keys.
func (b *backend) showBans(keys []string) {
	b.logins.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
		if rule.Identifier == guardRule { // and not what the guard keeps beside
			b.counts.ObserveBans(ctx, rule, d)
		}
	}
	b.counts.Look = func(ctx context.Context, rule throttler.Rule) (throttler.Decision, error) {
		if rule.Identifier == guardRule {
			return b.logins.Peek(ctx, rule)
		}
		return b.throttler.Peek(ctx, rule)
	}
	b.counts.Lift = func(ctx context.Context, rule throttler.Rule) error {
		if rule.Identifier != guardRule {
			return b.throttler.Reset(ctx, rule)
		}
		err := b.logins.Reset(ctx, rule)
		for _, c := range rule.Conditions() { // or the next failure would ban again
			err = errors.Join(err, b.guard.LiftRecord(ctx, c.Name, c.Value))
		}
		return err
	}
	b.counts.LiftKeys = keys
}
