package throttler

import (
	"context"
	"time"
)

// giveBackTimeout is how long Release and Spend try to give hits back although ctx has ended.
const giveBackTimeout = 2 * time.Second

// Do waits for its turn as [Throttler.Wait] does, runs work, and returns work's error: use it
// to limit how many run at once, by [InFlight], or how often work runs. Hits in flight are
// renewed while work runs, and given back when it ends, also by a panic, which goes on. All
// other hits stay, after an error too.
//
// If a lease is lost, the ctx of work ends with the cause [ErrLeaseLost]. With InFlight it
// also ends when work does. If ctx ends before its turn comes, work does not run, and the
// error is that of Wait.
func (t *Throttler) Do(ctx context.Context, rule Rule, work func(context.Context) error) error {
	d, err := t.Wait(ctx, rule)
	if err != nil {
		if d.receipt != nil { // ctx has cut a try short
			go t.Cancel(context.WithoutCancel(ctx), d)
		}
		return err
	}
	return t.hold(ctx, &rule, d, work)
}

// TryDo is [Throttler.Do] for a caller that does not wait: if rule blocks the call, work does
// not run, and the error is a [*BlockedError]. If the backend fails, or ctx has ended, it fails
// open: work runs.
func (t *Throttler) TryDo(ctx context.Context, rule Rule, work func(context.Context) error) error {
	d, err := t.Authorize(ctx, rule)
	if err != nil {
		return err
	}
	if d.Status == Blocked {
		t.Hold(ctx, d).Release(ctx) // what it has counted all the same
		return &BlockedError{d}
	}
	return t.hold(ctx, &rule, d, work)
}

// hold runs work while the hits in flight of d, a Decision of rule, are held. Those that cannot
// be given back end within their TTL.
func (t *Throttler) hold(ctx context.Context, rule *Rule, d Decision, work func(context.Context) error) error {
	if !rule.any(func(c *Condition) bool { return c.Algorithm == InFlight }) {
		return work(ctx)
	}
	l := t.Hold(ctx, d)
	defer l.Release(ctx)
	return work(l.Context())
}

// Spend limits work whose cost is known only when it has ended, such as the tokens of a model:
// it reserves the Cost of each condition, runs work, and then sets the conditions whose Cost is
// set to the actual one, as [Throttler.Settle] does. A condition without a Cost, such as a
// limit of requests, keeps its one hit. Hits in flight are held as by [Throttler.Do].
//
// It returns work's error as it is. An error with an actual cost of 0, or a panic, which goes
// on, gives everything back. Other errors settle as well. Hits are settled although ctx has
// ended. If the backend fails then, the reservation stands.
//
// Spend does not wait: if rule blocks the call, work does not run, what the call has reserved
// is given back, and the error is a [*BlockedError]. If the backend fails, or ctx has ended, it
// fails open: work runs. The error matches [ErrInvalidRule] if no condition but those in flight
// sets a Cost, or, joined with work's, if actual is negative: then the reservation stands.
func (t *Throttler) Spend(ctx context.Context, rule Rule, work func(context.Context) (actual int, err error)) error {
	if !rule.any((*Condition).spends) {
		return rule.invalid("Cost", "not set", "a Cost of one condition to Spend")
	}
	d, err := t.Authorize(ctx, rule)
	if err != nil {
		return err
	}
	totals := rule.totals(&d)
	if d.Status == Blocked {
		t.Hold(ctx, d).Release(ctx) // what it has counted all the same
		t.settleAll(ctx, d, totals, 0)
		return &BlockedError{d}
	}
	ended := false
	defer func() {
		if !ended { // but has panicked
			t.giveBack(ctx, d)
		}
	}()
	var actual int
	err = t.hold(ctx, &rule, d, func(ctx context.Context) (err error) {
		actual, err = work(ctx)
		return err
	})
	ended = true
	switch {
	case actual < 0:
		return join(err, rule.invalid("Cost", actual, "0 or more as the actual one of Spend"))
	case actual == 0 && err != nil:
		t.giveBack(ctx, d)
	default:
		t.settleAll(ctx, d, totals, actual)
	}
	return err
}

// spends reports whether Spend settles c.
func (c *Condition) spends() bool { return c.Cost != 0 && c.Algorithm != InFlight }

// any reports whether is holds for any condition of r.
func (r *Rule) any(is func(*Condition) bool) bool {
	conditions := r.conditions()
	for i := range conditions {
		if is(&conditions[i]) {
			return true
		}
	}
	return false
}

// totals returns the names of the conditions that a Spend of r settles: those that spend, and
// have counted d or failed open.
func (r *Rule) totals(d *Decision) map[string]int {
	totals := make(map[string]int)
	for i, c := range r.conditions() {
		if o := &d.Outcomes[i]; c.spends() && !o.Blocked && !o.unasked() {
			totals[c.Name] = 0
		}
	}
	return totals
}

// settleAll settles the conditions of d that are in totals at actual, although ctx has ended.
func (t *Throttler) settleAll(ctx context.Context, d Decision, totals map[string]int, actual int) {
	for name := range totals {
		totals[name] = actual
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	_, _ = t.Settle(ctx, d, totals)
}

// giveBack takes back the hits of d, although ctx has ended. Those that stay expire in their
// time.
func (t *Throttler) giveBack(ctx context.Context, d Decision) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	_ = t.Cancel(ctx, d)
}
