package gate

import (
	"context"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// Hold holds the in-flight hits of d, a decision by rule, until release is called: also when
// ctx has ended, as a handler may run on. It returns a child of ctx for the handler, which
// ends too if the lease is lost. If rule has no condition in flight, that is ctx itself, and
// release is nil.
func Hold(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision) (held context.Context, release func()) {
	conditions := rule.Either
	if len(conditions) == 0 {
		conditions = rule.All
	}
	if !slices.ContainsFunc(conditions, inFlight) {
		return ctx, nil
	}
	lasting := context.WithoutCancel(ctx)
	lease := t.Hold(lasting, *d)
	held, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	return held, func() {
		stop()
		cancel(nil)
		_ = lease.Release(lasting) // what it cannot give back ends within the TTL
	}
}

func inFlight(c throttler.Condition) bool { return c.Algorithm == throttler.InFlight }
