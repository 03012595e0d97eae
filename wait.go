package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Wait postpones a call until rule authorizes it, and returns the Decision that
// does. A call that waits is counted nowhere and bans nobody, as if the rule
// were CountAuthorizedOnly and without lockouts. It waits for the end of bans
// that others have set.
//
// Calls of one process that wait for the same condition are served in the order
// in which they came. A call with several conditions of Either waits for the one
// that opens last, and lets others use the rest in the meantime. With All it is
// served when the first of its conditions opens. A call that takes several hits
// waits until there is room for all of them; smaller ones behind it do not
// overtake. Calls of different processes compete.
//
// A Cancel or a Reset through the same Throttler is noticed at once, one of
// another process within a minute.
//
// The error is one of these, and the Decision is then Blocked:
//
//   - It matches ctx.Err() if ctx ends first. If ctx cuts a try short, that try
//     may have counted; [Throttler.Cancel] takes it back.
//   - It matches [context.DeadlineExceeded], at once, if the calls before this
//     one leave no time for it before ctx's deadline.
//   - It matches [ErrOverloaded] if [MaxWaiting] calls wait for one of the
//     conditions already.
//   - It matches [ErrInvalidRule], as with [Throttler.Authorize].
//
// A call that leaves without having asked the backend has Outcomes by the line
// alone: a condition that others wait for is Blocked.
//
// If the backend fails, Wait does not let calls through at once: until the backend
// answers again, this process lets one hit through every TTL/Max, the first not
// before the time that the backend named last. Decision.Err says why. With
// [Throttler.Fallback] set, the fallback decides instead.
func (t *Throttler) Wait(ctx context.Context, rule Rule) (Decision, error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	start := t.startObserving()
	d, err := t.wait(ctx, rule)
	if err != nil {
		d.Status = Blocked // even if the last try, or a backend that failed, would let it pass
	}
	t.observe(ctx, rule, &d, start)
	return d, err
}

func (t *Throttler) wait(ctx context.Context, rule Rule) (d Decision, err error) {
	w := t.queue.arrive(&rule)
	defer t.queue.leave(w)
	for {
		nap, err := t.queue.next(ctx, w)
		switch {
		case err != nil:
			return t.queue.refusal(w, d), err
		case nap != 0:
			if err := w.sleep(ctx, nap); err != nil {
				return t.queue.refusal(w, d), err
			}
			continue
		}
		d = t.attempt(ctx, rule)
		switch {
		case cutShort(ctx, d):
			return d, ctx.Err()
		case t.queue.answer(w, &d):
			return d, nil
		case d.Status == Authorized:
			t.withdraw(ctx, &d)
		}
	}
}

// attempt decides rule for a call that can wait.
func (t *Throttler) attempt(ctx context.Context, rule Rule) Decision {
	c := t.newCall(rule)
	c.rule.CountAuthorizedOnly = true
	for _, e := range c.entries {
		e.lockout.length = 0
	}
	return c.run(ctx)
}

// cutShort reports whether ctx ended before d was made. A decision that was made
// stands, even if ctx has ended since.
func cutShort(ctx context.Context, d Decision) bool {
	return ctx.Err() != nil && errors.Is(d.Err, ctx.Err())
}

// withdraw makes of d, which a failed backend let pass too early, a refusal. What
// d has counted where the backend answers is taken back.
func (t *Throttler) withdraw(ctx context.Context, d *Decision) {
	if err := t.Cancel(ctx, *d); err != nil {
		d.Err = join(d.Err, err)
	}
	d.Status, d.receipt = Blocked, nil
}

// sleep returns after d, or when w is called; with ctx's error if that ends
// first. A negative d means that w has no more to do until it is called.
func (w *waiter) sleep(ctx context.Context, d time.Duration) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-w.called:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// tooLate returns the error of a call that cannot be let through before opens.
func tooLate(opens, now time.Time) error {
	return fmt.Errorf("throttler: the limit opens in %v at the earliest, which is too late: %w", opens.Sub(now), context.DeadlineExceeded)
}
