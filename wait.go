package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Wait sleeps until rule authorizes the call, and returns that Decision.
//
// If there is an error the Decision is Blocked, and the error matches
//
//   - ctx.Err() if ctx ends first. If ctx cuts a try short, that try may have
//     counted; [Throttler.Cancel] takes it back.
//   - [context.DeadlineExceeded], at once, if the calls before this one leave no
//     time for it before ctx's deadline.
//   - [ErrOverloaded] if [MaxWaiting] calls already wait for one of the conditions.
//   - [ErrInvalidRule], as with [Throttler.Authorize].
//
// A call that waits counts nothing and sets no ban, as if the rule had
// CountAuthorizedOnly and no Lockout. It waits for the end of existing bans.
//
// Calls of one process that wait for the same condition are served first come,
// first served. With Either, a call waits for the condition that opens last, and
// other calls may use the others meanwhile. With All, it waits for the one that opens
// first. A call with a Cost waits until all its hits fit, and smaller calls behind it
// wait too. Calls of different processes compete.
//
// Wait notices a Cancel, Reset or Ban through the same Throttler at once, and one of
// another process within a minute.
//
// If the backend fails, this process lets one hit through every TTL/Max until the
// backend answers again. The first one comes no earlier than the time that the backend
// gave last.
// Decision.Err holds the failure. With [Throttler.Fallback], the fallback decides
// instead.
//
// A call that returns an error before it has asked the backend has Outcomes by the
// queue alone: a condition that other calls wait for is Blocked.
func (t *Throttler) Wait(ctx context.Context, rule Rule) (Decision, error) {
	if err := rule.validate(); err != nil {
		return Decision{}, err
	}
	start := t.startObserving()
	d, err := t.wait(ctx, rule)
	if err != nil {
		d.Status = Blocked // even if the last try authorized it, or failed open
	}
	t.observe(ctx, &rule, &d, start)
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
func (t *Throttler) attempt(ctx context.Context, rule Rule) (d Decision) {
	c := t.newCall(&rule)
	c.rule.CountAuthorizedOnly = true
	for _, e := range c.entries {
		e.lockout.length = 0
	}
	c.run(ctx, &d)
	return d
}

// cutShort reports whether ctx ended before d was complete. A complete decision
// stands, even if ctx has ended since.
func cutShort(ctx context.Context, d Decision) bool {
	return ctx.Err() != nil && errors.Is(d.Err, ctx.Err())
}

// withdraw blocks d, which failed open too early, and takes back what it has counted
// at servers that answer.
func (t *Throttler) withdraw(ctx context.Context, d *Decision) {
	if err := t.Cancel(ctx, *d); err != nil {
		d.Err = join(d.Err, err)
	}
	d.Status, d.receipt = Blocked, nil
}

// sleep returns after d, or when w is called, or with ctx's error when ctx ends. With
// a negative d it sleeps until w is called.
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

// tooLate returns the error of a call whose deadline is before opens.
func tooLate(opens, now time.Time) error {
	return fmt.Errorf("throttler: the limit opens in %v at the earliest, after the deadline of ctx: %w", opens.Sub(now), context.DeadlineExceeded)
}
