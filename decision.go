package throttler

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Status says whether a call may happen.
type Status int

const (
	Blocked    Status = 0 // the call may not happen: a limit is reached
	Authorized Status = 1 // the call may happen, and has been counted
)

// String returns "blocked" or "authorized".
func (s Status) String() string {
	switch s {
	case Blocked:
		return "blocked"
	case Authorized:
		return "authorized"
	}
	return fmt.Sprintf("Status(%d)", int(s))
}

// A Decision is the answer to one call. The zero Decision is Blocked.
type Decision struct {
	// Status is the answer.
	Status Status

	// Messages are those of the blocking conditions, in the rule's order. Nil if
	// the call is authorized.
	Messages []string

	// RetryAfter is the time until the same call could be authorized if nothing
	// else is counted meanwhile. 0 if the call is authorized.
	RetryAfter time.Duration

	// Outcomes are those of all conditions, in the rule's order.
	Outcomes []Outcome

	// WouldBlock is true if the rule blocks the call. With [Rule.Shadow] the
	// call is authorized all the same.
	WouldBlock bool

	// Err is the backend's error, or nil. To fail closed, test it. The conditions
	// that it affected failed open, unless [Throttler.Fallback] decided them. Err
	// matches, by errors.Is, the Err of every Outcome.
	Err error

	receipt *receipt      // what was counted; nil: nothing was
	took    time.Duration // see Took
}

// Took returns the duration of the call that made d, which includes the waiting of
// [Throttler.Wait]. It is 0 unless [Throttler.Observe] is set.
func (d Decision) Took() time.Duration { return d.took }

// An Outcome is the answer of one condition.
type Outcome struct {
	// Name is the condition's.
	Name string

	// Blocked is true if the condition was full or banned.
	Blocked bool

	// Banned is true if a ban holds, found or set by this call.
	Banned bool

	// NewBan is true if this call set the ban, or, in Peek, would have.
	NewBan bool

	// Limit is the condition's Max.
	Limit int

	// Remaining is the number of hits for which there is room after this call.
	Remaining int

	// RetryAfter is the time until the condition takes another hit, 0 if it
	// would now. If it blocked a call of several hits, it is the time until all
	// of them fit.
	RetryAfter time.Duration

	// ResetAfter is the time until the condition holds no hit and no ban.
	ResetAfter time.Duration

	// LostRaces is the number of times that the condition was decided anew
	// because another process had changed its record.
	LostRaces int

	// Err is the error that kept the condition from being looked at, counted or
	// banned, or nil. A condition that could not be looked at fails open, with
	// Remaining equal to Limit. One that was found full and could not be banned
	// still blocks.
	Err error
}

// A hit identifies what a call has counted in one condition, so that it can be taken
// back. The zero hit is none.
type hit struct {
	cost   int     // how many hits it is
	expiry instant // when they expire as stored, in a window
	share  share   // in a bucket; zero in a window
}

// A verdict is what one condition makes of one call.
type verdict struct {
	outcome Outcome

	// again is the time until the condition has room for the same call, with its
	// whole cost, if nothing else is counted. It equals outcome.RetryAfter if the
	// cost is one hit or the call was blocked.
	again time.Duration

	// next is the record, before the call and then after it. If store is set it
	// must be stored, and may be decided on again without being encoded.
	// Otherwise the stored record stays as it is, and next is of no use.
	next  record
	store bool

	hit hit // what was counted
}

// decide decides one condition at now on the stored record of its value. If count is
// set and all hits of the call fit, it counts them.
//
// It depends on its arguments alone. The rest of the package makes sure that the
// record does not change between its read and the write of next.
func decide(now instant, c *Condition, l lockout, stored record, count bool) verdict {
	v := verdict{next: stored}
	v.decide(now, c, l, count)
	if !v.store {
		v.next = stored
	}
	return v
}

// decide is the function decide for the record in v.next.
func (v *verdict) decide(now instant, c *Condition, l lockout, count bool) {
	v.store, v.hit = false, hit{}
	b, corrected := v.next.ban.at(now)
	if b.holds(now) {
		v.block(now, c, b)
		if v.store = corrected; corrected {
			v.next = v.next.corrected(b)
		}
		return
	}
	if l.growth == 0 {
		b = ban{}
	}
	v.next.ban = b
	v.look(now, c, count)
	if l.length > 0 && v.bans(c, l) {
		b = l.ban(now, b)
		if l.keepHits {
			v.next = v.next.kept(c, b)
		} else {
			v.next = record{ban: b}
		}
		v.block(now, c, b)
		v.outcome.NewBan, v.store = true, true
	}
}

// block makes v the verdict of b, which holds at now.
func (v *verdict) block(now instant, c *Condition, b ban) {
	v.again = b.end.since(now)
	v.outcome = Outcome{Name: c.Name, Limit: c.Max, Blocked: true, Banned: true, RetryAfter: v.again, ResetAfter: v.again}
}

// look decides a call by the algorithm of c. Hits of the other algorithm, as of
// another release of the same program, stay as they are.
func (v *verdict) look(now instant, c *Condition, count bool) {
	v.outcome = Outcome{}
	v.outcome.Name, v.outcome.Limit = c.Name, c.Max
	if c.Algorithm == LeakyBucket {
		v.next.hits.expire(now)
		v.lookAtBucket(now, c, count)
	} else {
		v.next.bucket.expire(now)
		v.lookAtWindow(now, c, count)
	}
}

// bans reports whether l bans c for v: there is room for no hit at all, and not only
// because of the moment that a hit may leave in a bucket when it is given back.
func (v *verdict) bans(c *Condition, l lockout) bool {
	if !v.outcome.Blocked || v.outcome.Remaining > 0 {
		return false
	}
	return !l.keepHits || c.Algorithm != LeakyBucket || v.again > c.leftBehind()
}

// without returns r at now without the hits of h, and whether it had any of them. If
// they have expired, or a ban or a reset has replaced them, r stays as it is.
func (r record) without(h hit, now instant) (next record, found bool) {
	next = r
	switch {
	case h.cost == 0:
	case h.share.amount == 0:
		next.hits.expire(now)
		found = next.hits.remove(h.cost, h.expiry)
	default:
		next.bucket, found = r.bucket.without(h.share, now)
	}
	if !found {
		return r, false
	}
	return next, true
}

// combine sets d, which is zero, to what the outcomes of r's conditions come to. again is
// the time until each has room for the same call; nil means its RetryAfter, as without a
// Cost.
func (r *Rule) combine(d *Decision, outcomes []Outcome, again []time.Duration) {
	d.Status, d.Outcomes = Authorized, outcomes
	for i := range outcomes {
		if err := outcomes[i].Err; err != nil && !slices.ContainsFunc(outcomes[:i], func(o Outcome) bool { return same(o.Err, err) }) {
			d.Err = join(d.Err, err)
		}
	}
	d.WouldBlock = r.blocks(outcomes)
	if !d.WouldBlock || r.Shadow {
		return
	}
	d.Status = Blocked
	d.RetryAfter = r.retryAfter(outcomes, again)
	conditions := r.conditions()
	d.Messages = make([]string, 0, len(outcomes))
	for i := range outcomes {
		if outcomes[i].Blocked {
			d.Messages = append(d.Messages, conditions[i].message())
		}
	}
}

// blocks reports whether the outcomes block the call: any of Either, every
// one of All.
func (r *Rule) blocks(outcomes []Outcome) bool {
	any := len(r.Either) > 0
	for i := range outcomes {
		if outcomes[i].Blocked == any {
			return any
		}
	}
	return !any
}

// retryAfter returns when a call that the outcomes block could be authorized: with
// All when the first condition has room, with Either when the last one has. With
// Either that may be a condition that this call has filled.
func (r *Rule) retryAfter(outcomes []Outcome, again []time.Duration) time.Duration {
	var wait time.Duration
	for i := range outcomes {
		next := outcomes[i].RetryAfter
		if again != nil {
			next = again[i]
		}
		switch {
		case i == 0:
			wait = next
		case len(r.Either) > 0:
			wait = max(wait, next)
		default:
			wait = min(wait, next)
		}
	}
	return wait
}

// failures are several errors as one line of a log, in which each text occurs once.
type failures struct{ errs []error }

func (f *failures) Unwrap() []error { return f.errs }

func (f *failures) Error() string { return strings.Join(f.texts(nil), "; ") }

// texts appends the texts of f to seen, except those that are in it.
func (f *failures) texts(seen []string) []string {
	for _, err := range f.errs {
		if several, ok := err.(*failures); ok {
			seen = several.texts(seen)
		} else if text := err.Error(); !slices.Contains(seen, text) {
			seen = append(seen, text)
		}
	}
	return seen
}

// join returns the errors of errs that are not nil as one, or nil. A single error
// stays as it is.
func join(errs ...error) error {
	var all []error
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return &failures{all}
}

// same reports whether a and b are the same error value, such as that of ctx.
func same(a, b error) bool {
	return a != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}
