package throttler

import "context"

// Refund takes back hits without the Decision that counted them, for protocols that only
// say how many: in each condition of rule the newest ones, as many as its Cost, or all of
// them if there are fewer. With a Decision use [Throttler.Cancel], which takes
// back the hits of that call and no others. Bans stay.
//
// The Decision says what is left now. It is Blocked as [Throttler.Peek] of a call of one
// hit would be, and its Remaining is without that hit. The error matches [ErrInvalidRule],
// also for a condition that is [InFlight]: a lease is given back by its holder.
// After a failure of the backend, see [Decision.Err], Refund takes the hits concerned back
// from [Throttler.Fallback]. If only the answer was lost, they may be gone from the backend
// too; they are never taken back there twice.
//
// Do not Cancel the same hits as well: Cancel may then take back another call's.
func (t *Throttler) Refund(ctx context.Context, rule Rule) (d Decision, err error) {
	t.check(ctx)
	p, err := t.planOf(&rule)
	if err != nil {
		return Decision{}, err
	}
	for i, c := range rule.conditions() {
		if c.Algorithm == InFlight {
			return Decision{}, rule.invalidAt(i, "Algorithm", c.Algorithm, "another one for a Refund")
		}
	}
	c := t.newCall(&rule, p)
	c.askBoth(ctx, opRefundNewest)
	for _, e := range c.entries {
		if e.Failed() == nil {
			t.queue.Wake(e.Key)
		}
	}
	c.end(&d)
	return d, nil
}
