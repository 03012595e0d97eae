package throttler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler/internal/engine"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// giveBackTimeout is how long Release, Do and Spend try to give hits back although ctx has ended.
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
			go t.giveBack(ctx, d)
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
		return engine.Join(err, rule.invalid("Cost", actual, "0 or more as the actual one of Spend"))
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

// Cancel takes back the hits that d has cost, so that successes do not count. It takes back
// a surplus by [Throttler.Settle] too. A program that authorizes first and
// cancels on success counts failures only: however many calls run at once, no more
// than Max are between the two.
//
// The error is the backend's. Hits that could not be looked up stay in d, for
// another Cancel. A hit whose removal failed may be gone or not, and expires in its
// time. If the call had left with ctx's error before the answer to its write was lost, its
// hit may have been counted: then Cancel returns the error of that, and the hit expires.
//
// Cancel may be called twice, from any goroutine, or after the hits have expired:
// each hit is taken back once. A call waits while another takes back hits of d, until
// its own ctx ends. A ban stays, even one that d has set. A hit of a
// [LeakyBucket] leaves behind at most what leaks between Authorize and Cancel.
//
// A hit of a [SlidingWindow] is known by its time. If the clock of this process was ahead
// of another one by d, and the other one counted in the same record within d after the
// hit, Cancel does not find it, and it expires in its time. After a Reset, Cancel takes
// back the hit of another call if that was counted in the same nanosecond as its own.
func (t *Throttler) Cancel(ctx context.Context, d Decision) error {
	t.check(ctx)
	if d.receipt == nil {
		return nil
	}
	return d.receipt.Cancel(ctx, t.engine(), nil)
}

// CancelOnly takes back the hits that d counted in some of its conditions, those of rule:
// use it if what the call came to counts against one limit and not against another.
// The other hits of d stay, and may be taken back later. The error matches [ErrInvalidRule],
// or is one of [Throttler.Cancel].
func (t *Throttler) CancelOnly(ctx context.Context, d Decision, rule Rule) error {
	t.check(ctx)
	p, err := t.prepare(&rule)
	if err != nil || d.receipt == nil {
		return err
	}
	keys := p.plan.Keys(p.demands(&rule, nil))
	return d.receipt.Cancel(ctx, t.engine(), func(_, key string) bool { return slices.Contains(keys, key) })
}

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
	p, err := t.prepare(&rule)
	if err != nil {
		return Decision{}, err
	}
	for i, c := range rule.conditions() {
		if c.Algorithm == InFlight {
			return Decision{}, rule.invalidAt(i, "Algorithm", c.Algorithm, "another one for a Refund")
		}
	}
	demands, out := p.demands(&rule, nil), p.outcomes(nil)
	p.plan.Refund(ctx, demands, out)
	p.conclude(&d, out, make([]Outcome, len(out)), nil)
	return d, nil
}

// Settle sets what conditions of d have cost, by their names, when that is known only
// afterwards: that many hits in total, instead of those that the call has counted. Hits
// below that are given back, the newest first. Hits above it count from now on, even beyond
// Max: then the condition takes no other hit until enough of them have expired.
//
// It may be called again, with a larger or a smaller total, from any goroutine. The same
// total twice changes nothing. d and the returned Decision share one reservation, so either
// may be used, also for Cancel, which sets all totals to 0. A condition that blocked the
// call, or failed open, has cost 0. Conditions that are not in actual stay as they are.
// Each call takes one exchange with the server for each record, all at once.
// After the hits have expired, or a Reset, a larger total adds the difference, and a smaller
// one changes nothing.
//
// The Outcomes are those of the conditions in actual, in the rule's order. The Decision is
// Blocked if one of them holds more than its Max now, or is banned. With [Rule.Shadow] only
// WouldBlock says so. Settle sets no ban and lifts none. Beside a ban it counts nothing.
//
// The error matches [ErrInvalidRule] if d has no condition of that name, or if a total is
// negative. A failure of the backend is not an error: see [Decision.Err]. If Err says that it is unknown whether the hits were counted, the total
// stands, since another try might count them twice. After any other failure, call Settle
// again.
//
// A [SlidingWindow] holds at most [MaxHits] hits, and a larger total counts as that. See
// docs/metered.md for an example, and for what a [LeakyBucket] does not give back.
func (t *Throttler) Settle(ctx context.Context, d Decision, actual map[string]int) (Decision, error) {
	t.check(ctx)
	if err := d.settles(actual); err != nil {
		return Decision{}, err
	}
	settled := Decision{Status: Authorized, receipt: d.receipt}
	if len(actual) == 0 {
		return settled, nil
	}
	told, shadow := d.receipt.Settle(ctx, t.engine(), actual)
	for i := range told {
		var o Outcome
		o.set(told[i].Name, told[i].Max, &told[i].Outcome)
		settled.Outcomes = append(settled.Outcomes, o)
		settled.Err = engine.Join(settled.Err, o.Err)
		settled.WouldBlock = settled.WouldBlock || o.Blocked
	}
	if !settled.WouldBlock || shadow {
		return settled, nil
	}
	settled.Status = Blocked
	for i, o := range settled.Outcomes {
		if o.Blocked {
			settled.Messages = append(settled.Messages, told[i].Message)
			settled.RetryAfter = max(settled.RetryAfter, o.RetryAfter)
		}
	}
	return settled, nil
}

// settles returns why totals cannot be those of d, or nil.
func (d *Decision) settles(totals map[string]int) error {
	var known []string
	if d.receipt != nil && len(totals) > 0 {
		known = d.receipt.Names()
	}
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		switch total := totals[name]; {
		case !slices.Contains(known, name):
			return &RuleError{Index: -1, Field: "Name", Got: fmt.Sprintf("%q in Settle", name), Want: fmt.Sprintf("one of the Decision's, %q", known)}
		case total < 0:
			return &RuleError{Condition: name, Index: -1, Field: "Cost", Got: fmt.Sprintf("%d in Settle", total), Want: "0 or more"}
		}
	}
	return nil
}

// Receipt returns what another process needs to take back the hits that d counted, or to
// settle what they have cost, with [Throttler.Redeem]. It is nil if d counted none and was
// not settled.
//
// Use either the receipt or d, and the receipt once: a second time may take back
// another call's hits. After Redeem and [Throttler.Settle], use the Receipt of the result.
// Anyone who can write a receipt can take back hits, so authenticate it if it leaves the
// program. It contains keys, and so values, in clear text.
//
// It leaves out hits that a [Throttler.Fallback] counted, because only this process
// has them, hits whose result is still unknown, and hits that a Cancel or Settle is
// changing. It does not wait for that.
func (d Decision) Receipt() []byte {
	if d.receipt == nil {
		return nil
	}
	return d.receipt.Append()
}

// Redeem lets another process end what one has begun: it returns a Decision for
// [Throttler.Cancel], [Throttler.CancelOnly], [Throttler.Settle] and [Throttler.Renew], of
// what [Decision.Receipt] has from a Throttler on the same servers. The
// error says that the bytes are not from Receipt. The Decision has no other use. An empty
// receipt has no hits.
//
// It need not know the time zone of a [Calendar]. If it does not, and the period of the
// receipt is over, Settle takes the next ones to begin at the same offset from UTC.
func (t *Throttler) Redeem(receipt []byte) (Decision, error) {
	if len(receipt) == 0 {
		return Decision{}, nil
	}
	r, err := t.engine().Redeem(receipt, validLimit)
	if err != nil {
		return Decision{}, err
	}
	return Decision{receipt: r}, nil
}

// validLimit reports whether a condition of that name may have such a limit.
func validLimit(name string, l record.Limit) bool {
	c := Condition{Name: name, Algorithm: Algorithm(l.Algorithm), Max: l.Max, TTL: l.TTL}
	if p := l.Period; p != nil {
		c.Period = Period{Unit: Unit(p.Unit), Anchor: int(p.Anchor), Location: p.Location}
	}
	field, _, _ := c.problem()
	return field == ""
}

// ErrLeaseLost is the cause with which [Lease.Context] ends if the lease was not renewed in
// time, was taken back by Cancel or Settle, or was reset. [Throttler.Renew] returns it then,
// and after [Lease.Release].
var ErrLeaseLost = engine.ErrLeaseLost

// A Lease keeps the in-flight hits of a Decision while work is under way: [Throttler.Hold]
// returns it. Its methods are safe for concurrent use.
type Lease struct {
	by   *Throttler // which holds it
	held *engine.Lease
}

// Hold renews the in-flight hits of d while work is under way, so that they count until
// [Lease.Release]. All leases
// of this Throttler on one record are renewed together, at a third of their TTL. When ctx
// ends, renewals end, and the hits count for the rest of their TTL unless Release gives them
// back before.
//
// A lease is lost if it could not be renewed in time, as in an outage or after the process
// was stopped; if Cancel takes back its hit; and, from the next renewal on, if its record
// was reset or lost. It is then never renewed again. The Lease of a Decision without stored
// in-flight hits, or with all of them given back, is never lost, nor is that of a rule with
// [Rule.Shadow].
//
// To hold a Decision of [Throttler.Redeem], renew it first by [Throttler.Renew].
func (t *Throttler) Hold(ctx context.Context, d Decision) *Lease {
	t.check(ctx)
	return &Lease{t, d.receipt.Hold(ctx, t.engine())}
}

// Context returns the ctx for the work to hold, a child of Hold's ctx. It ends with the
// cause [ErrLeaseLost] when the lease is lost: a tenth of its TTL before others may count
// in its record, so their clocks may be that far ahead. Work that stops when it ends never
// overlaps with more than Max others. After Release it ends with [context.Canceled].
func (l *Lease) Context() context.Context { return l.held.Context() }

// Release gives the in-flight hits back, and wakes a call that waits for one. Other hits of
// the Decision stay. The second call, or one after a Cancel, does nothing. The error is that
// of [Throttler.Cancel]. Hits that could not be given back end within their TTL. Release gives
// back although ctx has ended, and returns after 2 s at the latest.
func (l *Lease) Release(ctx context.Context) error {
	l.by.check(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	return l.held.Release(ctx)
}

// Renew renews the in-flight hits of d once, for another TTL: use it instead of
// [Throttler.Hold] for a Decision of [Throttler.Redeem], or to renew at a pace of your own.
// The error matches [ErrLeaseLost] if the lease of a condition has ended, or all its hits
// were given back through d. Otherwise it is the backend's. After a Settle to a smaller
// total, what is left is renewed. Renew does nothing, without an error, if d never had
// in-flight hits, or comes from a receipt that was written after all were given back.
func (t *Throttler) Renew(ctx context.Context, d Decision) error {
	t.check(ctx)
	if d.receipt == nil {
		return nil
	}
	return d.receipt.Renew(ctx)
}
