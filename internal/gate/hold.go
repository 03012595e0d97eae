package gate

import (
	"context"

	"github.com/adaptivethrottler/throttler"
)

// Hold holds the in-flight hits of d, a decision by rule, until release is called: also when
// ctx has ended, as a handler may run on. It returns a child of ctx for the handler, which
// ends too if the lease is lost. If rule has no condition in flight, that is ctx itself, and
// release does nothing.
func Hold(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision) (held context.Context, release func()) {
	if !limitsInFlight(rule) {
		return ctx, func() {}
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

// drop gives back the in-flight hits of d, a decision by rule on a request that does not
// run: the conditions that had room have counted it all the same.
func drop(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision) {
	if limitsInFlight(rule) {
		lasting := context.WithoutCancel(ctx)
		_ = t.Hold(lasting, *d).Release(lasting) // what it cannot give back ends within the TTL
	}
}

// limitsInFlight reports whether rule has a condition in flight.
func limitsInFlight(rule *throttler.Rule) bool {
	conditions := rule.Conditions()
	for i := range conditions { // without a copy of each
		if conditions[i].Algorithm == throttler.InFlight {
			return true
		}
	}
	return false
}
