package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler/internal/line"
)

// MaxWaiting is the number of calls of one process that may wait for one
// condition. A further one gets [ErrOverloaded].
const MaxWaiting = line.MaxWaiting

// Wait sleeps until rule authorizes the call, and returns that Decision: use it instead of
// [Throttler.Authorize] if every call is to happen, at a limited rate.
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
// A call that waits leaves no hit and sets no ban, as if the rule had CountAuthorizedOnly
// and no Lockout. It waits for the end of existing bans. If it has counted in one of several
// conditions when another one refuses it, it gives the hit back. An Authorize that finds the
// first one full meanwhile may ban it. That ban stays, unless its rule has
// CountAuthorizedOnly and several conditions.
//
// Calls of one process that wait for the same condition are served first come,
// first served. With Either, a call waits for the condition that opens last, and
// other calls may use the others meanwhile. With All or First, it waits for the one that
// opens first. A call with a Cost waits until all its hits fit, or [Condition.Least] of them,
// and smaller calls behind it wait too. Calls of different processes compete.
//
// Wait notices a Release, Cancel, Reset or Ban through the same Throttler at once, and one
// of another process within a minute, or a second for hits in flight.
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
	t.check(ctx)
	p, err := t.planOf(&rule)
	if err != nil {
		return Decision{}, err
	}
	start := t.startObserving()
	d, err := t.wait(ctx, rule, p)
	if err != nil {
		d.Status = Blocked // even if the last try authorized it, or failed open
	}
	t.observe(ctx, &rule, &d, start)
	return d, err
}

func (t *Throttler) wait(ctx context.Context, rule Rule, p *plan) (d Decision, err error) {
	w := t.queue.Arrive(rule.wants(), len(rule.Either) == 0, rule.Shadow)
	defer t.queue.Leave(w)
	for {
		nap, err := t.queue.Next(ctx, w)
		switch {
		case errors.Is(err, line.ErrFull):
			return t.refusal(&rule, w, d), fmt.Errorf("%w: %w", ErrOverloaded, err)
		case err != nil:
			return t.refusal(&rule, w, d), err
		case nap != 0:
			if err := sleep(ctx, nap, w.Signals()); err != nil {
				return t.refusal(&rule, w, d), err
			}
			continue
		}
		d = t.attempt(ctx, rule, p)
		switch {
		case cutShort(ctx, d):
			return d, ctx.Err()
		case t.queue.Report(w, d.Status == Authorized, seenIn(&d)):
			return d, nil
		case d.Status == Authorized:
			t.withdraw(ctx, &d)
		}
	}
}

// attempt decides rule for a call that can wait.
func (t *Throttler) attempt(ctx context.Context, rule Rule, p *plan) (d Decision) {
	c := t.newCall(&rule, p)
	c.rule.CountAuthorizedOnly = true
	for _, e := range c.entries {
		e.lockout.Length = 0
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

// sleep returns after d, or when called gets a value, or with ctx's error when ctx ends.
// With a negative d it sleeps until called gets one.
func sleep(ctx context.Context, d time.Duration, called <-chan struct{}) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-called:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// wants returns what a call of r wants of each record.
func (r *Rule) wants() []line.Want {
	conditions, keys := r.conditions(), r.keys()
	wants := make([]line.Want, len(conditions))
	for i := range conditions {
		c, limit := &conditions[i], conditions[i].limit()
		wants[i] = line.Want{
			Key: keys[i], Name: c.Name, Needed: limit.Needed(), Cost: limit.Hits(), Max: c.Max,
			Leaks: c.Algorithm == LeakyBucket, Interval: time.Duration(limit.Interval()), TTL: c.TTL,
		}
		wants[i].Sooner = c.Algorithm == InFlight
		if c.Algorithm == Calendar {
			wants[i].TTL, wants[i].Longest = limit.Period.Length()
		}
	}
	return wants
}

// seenIn returns what d has found of each record.
func seenIn(d *Decision) []line.Seen {
	seen := make([]line.Seen, len(d.Outcomes))
	for i := range d.Outcomes {
		o := &d.Outcomes[i]
		seen[i] = line.Seen{
			Unasked: o.unasked(), Blocked: o.Blocked, Failed: failedOpen(o), Remaining: o.Remaining, RetryAfter: o.RetryAfter,
		}
	}
	return seen
}

// failedOpen reports whether neither the backend nor a fallback decided the condition
// of o.
func failedOpen(o *Outcome) bool {
	return o.Err != nil && !o.Blocked && o.Remaining == o.Limit
}

// refusal returns the Decision of w when it gives up. d is that of its last try, or
// zero: then it is by the queue alone.
func (t *Throttler) refusal(rule *Rule, w *line.Waiter, d Decision) Decision {
	closed, retry := t.queue.Outlook(w)
	if d.Outcomes == nil {
		outcomes := make([]Outcome, len(closed))
		for i, c := range rule.conditions() {
			outcomes[i] = Outcome{Name: c.Name, Limit: c.Max, Remaining: c.Max}
			if closed[i] > 0 {
				outcomes[i] = Outcome{Name: c.Name, Limit: c.Max, Blocked: true, RetryAfter: closed[i], ResetAfter: closed[i]}
			}
		}
		d = Decision{}
		rule.combine(&d, outcomes, nil, nil)
	}
	if retry >= 0 {
		d.RetryAfter = retry
	}
	return d
}
