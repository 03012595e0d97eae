package login

import (
	"context"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// Pending attempts, and failures.
//
// Begin counts an attempt against every limit before the password is looked at,
// so no more guesses are verified than the limits allow. But only failures ban.
// So each limit has two more records, which never block. They are the evidence for a ban:
//
//   - "-pending" holds the attempts that have not been ended. Begin adds a hit
//     that lasts for attemptTimeout plus the limit's TTL, and the end cancels it. While
//     more than TTL is left of a hit, its attempt is pending. After that it
//     counts as a failure for TTL, without another write.
//   - "-failures" holds the failures, which Fail adds.
//
// A call that finds a limit full, or more than Max attempts in "-pending", counts
// the failures in both. If there are Max of them, it sets the ban. Otherwise,
// if attempts are pending, its RetryAfter is short. A record that is lost or
// read late can delay a ban. It cannot cause one.
//
// "-pending" is a window and not a condition of [throttler.InFlight], whose leases
// vanish when they end. Here an attempt past its time must turn into a failure, also
// if the process that began it has died: otherwise whoever hangs up before the
// answer would never be banned. With leases that takes a third record, and one more
// write for each attempt. A lease is also 28 bytes, and a hit of "-pending" 5.

// attemptTimeout is how long an attempt may be pending before it counts as a failure.
const attemptTimeout = 30 * time.Second

const (
	pendingSuffix  = "-pending"
	failuresSuffix = "-failures"
)

// evidence is the records beside a limit, which say why it is full.
type evidence struct {
	pending  throttler.Condition
	failures throttler.Condition // if bans
	limit    throttler.Condition // the one that is banned, if bans
	bans     bool
}

// addEvidence adds the records beside a limit for value. All limits of a group share
// them.
func (pl *plan) addEvidence(group, value string, l Limit) {
	w := evidence{bans: l.Max > 0 && l.Lockout > 0}
	term := attemptTimeout
	if w.bans {
		w.limit = throttler.Condition{Name: group, Value: value, Max: l.Max, TTL: l.TTL, Lockout: l.Lockout}
		w.failures = throttler.Condition{Name: group, Value: value, Max: roomFor(l.Max), TTL: l.TTL, Lockout: -1}
		term = min(attemptTimeout, l.TTL) + l.TTL
	}
	w.pending = throttler.Condition{Name: group + pendingSuffix, Value: value, Max: roomFor(l.Max), TTL: term, Lockout: -1}
	pl.evidence = append(pl.evidence, w)
	pl.beside = append(pl.beside, w.pending)
}

// roomFor returns the Max of a window that never fills. Within attemptTimeout and TTL,
// which is at most twice TTL, the limit lets through at most twice its Max.
func roomFor(limit int) int {
	if limit < 0 || limit > throttler.MaxHits/2-1 {
		return throttler.MaxHits
	}
	return max(2*limit+1, 2*defaultBurst+1)
}

// defaultBurst is the most attempts that an address or a name can have under
// way by its other limits.
const defaultBurst = 500

// groupOf returns the group whose records stand beside a limit, or "".
func groupOf(limit, pair string) string {
	switch limit {
	case byAddress, byAddressDay, byAddressKnown:
		return byAddress
	case byNameLong:
		return byName
	case byKnownLong:
		return byKnown
	case pair, byName, byKnown, byAccount:
		return limit
	}
	return ""
}

// explain finds out why a is blocked. It bans values that have failed too
// often, and shortens RetryAfter where pending attempts fill the limit.
func (g *Guard) explain(ctx context.Context, a *Attempt) error {
	outcomes := slices.Clone(a.Decision.Outcomes)
	wait := time.Duration(0)
	for i := range outcomes {
		o := &outcomes[i]
		if !o.Blocked {
			continue
		}
		w, found := a.evidenceOf(o.Name)
		if found != nil && !o.Banned && g.answered(o.Err) && g.answered(found.Err) {
			banned, err := g.banIfFailed(ctx, w, o, found)
			if err != nil {
				return err
			}
			if underWay := found.ResetAfter > w.limit.TTL; underWay && !banned {
				o.RetryAfter = min(o.RetryAfter, comeBack)
			}
		}
		wait = max(wait, o.RetryAfter)
	}
	a.Decision.Outcomes = outcomes
	if a.Decision.Status == throttler.Blocked {
		a.Decision.RetryAfter = wait
	}
	return nil
}

// catch bans and refuses a, which passed, if too many unended attempts have
// become failures meanwhile.
func (g *Guard) catch(ctx context.Context, a *Attempt) error {
	for _, w := range a.plan.evidence {
		_, pending := a.evidenceOf(w.limit.Name)
		if !w.bans || pending == nil || !g.answered(pending.Err) || pending.Limit-pending.Remaining <= w.limit.Max {
			continue
		}
		outcomes := slices.Clone(a.Decision.Outcomes)
		for i := range outcomes {
			banned, err := g.banIfFailed(ctx, w, &outcomes[i], pending)
			if err != nil {
				return err
			}
			if banned {
				a.Decision.Outcomes = outcomes
				outcomes[i].Blocked, outcomes[i].Remaining = true, 0
				a.refuse(outcomes[i].RetryAfter)
				a.abandon(ctx)
				return nil
			}
		}
	}
	return nil
}

// evidenceOf returns the records beside a limit of a, and the outcome of the pending
// one.
func (a *Attempt) evidenceOf(limit string) (evidence, *throttler.Outcome) {
	group := groupOf(limit, a.plan.from.pair)
	for _, w := range a.plan.evidence {
		if w.pending.Name != group+pendingSuffix {
			continue
		}
		for i := range a.decided.Outcomes {
			if a.decided.Outcomes[i].Name == w.pending.Name {
				return w, &a.decided.Outcomes[i]
			}
		}
	}
	return evidence{}, nil
}

// banIfFailed bans the value of w if o is the limit that is banned and Max
// attempts have failed. pending is the outcome of w.pending.
func (g *Guard) banIfFailed(ctx context.Context, w evidence, o, pending *throttler.Outcome) (bool, error) {
	if !w.bans || o.Name != w.limit.Name {
		return false, nil
	}
	failed, err := g.haveFailed(ctx, w, pending.Limit-pending.Remaining)
	if err != nil || !failed {
		return false, err
	}
	// A call that finds the limit full bans. One that does not fills it, for the
	// next. A smaller Max would ban at once, but contradict the limit: see
	// [throttler.Throttler.Conflict].
	ban := w.limit
	ban.Cost, ban.Least = ban.Max, 1
	var filled []throttler.Decision
	for range 5 { // others may give hits back meanwhile
		d, err := g.throttler.Authorize(ctx, g.rule([]throttler.Condition{ban}))
		if err != nil {
			return false, err
		}
		found := d.Outcomes[0]
		if found.Banned {
			o.Banned, o.RetryAfter, o.ResetAfter = true, found.RetryAfter, found.ResetAfter
			return true, nil
		}
		filled = append(filled, d)
		if found.Cost == ban.Max || !g.answered(d.Err) {
			break // all hits have just expired, or the backend fails
		}
	}
	for _, d := range filled {
		g.throttler.Cancel(ctx, d)
	}
	return false, nil
}

// haveFailed reports whether Max attempts have failed for w's limit. pending is
// the number of attempts not ended.
func (g *Guard) haveFailed(ctx context.Context, w evidence, pending int) (bool, error) {
	d, err := g.throttler.Peek(ctx, g.failuresRule([]throttler.Condition{w.failures}))
	if err != nil || !g.answered(d.Err) {
		return false, err
	}
	missing := w.limit.Max - (w.failures.Max - 1 - d.Outcomes[0].Remaining)
	if missing <= 0 || missing > pending {
		return missing <= 0, nil
	}
	// Enough of the pending attempts are past their time if the one at that
	// position is. A Peek that needs the room of all up to it tells when it
	// expires.
	late := w.pending
	late.Cost = late.Max - pending + missing
	d, err = g.throttler.Peek(ctx, g.rule([]throttler.Condition{late}))
	if err != nil || !g.answered(d.Err) {
		return false, err
	}
	o := d.Outcomes[0]
	return o.Blocked && o.RetryAfter <= w.limit.TTL, nil
}

// failuresRule returns the rule that counts failures by conditions. It never
// blocks.
func (g *Guard) failuresRule(conditions []throttler.Condition) throttler.Rule {
	return throttler.Rule{
		Identifier: g.identifier() + failuresSuffix,
		Either:     conditions,
		Shadow:     true,
	}
}

// pendingRule returns the rule of the pending records of a.
func (a *Attempt) pendingRule() throttler.Rule {
	var pending []throttler.Condition
	for _, w := range a.plan.evidence {
		pending = append(pending, w.pending)
	}
	return a.guard.rule(pending)
}

// countFailure moves a from the pending records to those of failures.
func (a *Attempt) countFailure(ctx context.Context) error {
	var failures []throttler.Condition
	for _, w := range a.plan.evidence {
		if w.bans {
			failures = append(failures, w.failures)
		}
	}
	var failure throttler.Decision
	var uncount func(context.Context) error
	err := together(
		func() error {
			if len(a.plan.evidence) == 0 {
				return nil
			}
			return a.guard.throttler.CancelOnly(ctx, a.decided, a.pendingRule())
		},
		func() (err error) {
			if len(failures) > 0 {
				failure, err = a.guard.throttler.Authorize(ctx, a.guard.failuresRule(failures))
			}
			if err == nil {
				err = failure.Err
			}
			return err
		},
		func() (err error) {
			if a.alarms.CompareAndSwap(true, false) {
				uncount, err = a.guard.countGuess(ctx, a.party)
			}
			return err
		},
	)
	a.mistaken(&failure, uncount)
	a.report(ctx)
	return err
}
