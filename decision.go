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
	Blocked    Status = 0 // it may not: a limit is reached
	Authorized Status = 1 // it may, and it has been counted
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

	// Messages are those of the blocking conditions, in the rule's order. They
	// are nil if the call is authorized.
	Messages []string

	// RetryAfter is the time until the same call could be authorized if nothing
	// else is counted meanwhile. It is 0 if the call is authorized.
	RetryAfter time.Duration

	// Outcomes are those of all conditions, in the rule's order.
	Outcomes []Outcome

	// WouldBlock is true if the rule blocks the call. With [Rule.Shadow] the
	// call is authorized all the same.
	WouldBlock bool

	// Err is the backend's error, or nil. The conditions that it affected
	// failed open, unless [Throttler.Fallback] decided them. Err matches, by
	// errors.Is, the Err of every Outcome. To fail closed, test it.
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

// A hit is what a call has counted in one condition: what it takes to find it
// again. The zero hit is none.
type hit struct {
	cost   int     // how many hits it is
	expiry instant // when they expire as stored, in a window
	share  share   // of a bucket; the zero share: they are those of a window
}

// A verdict is what one condition makes of one call.
type verdict struct {
	outcome Outcome

	// again is how long until the condition takes the same call, with all
	// that it costs, if nothing else is counted. It is outcome.RetryAfter
	// where one hit is the cost or the call was blocked.
	again time.Duration

	// next is the record after the call. It is to be stored if store is set,
	// and otherwise the record that was given to decide. It may be given to
	// decide as stored for another call, without being encoded.
	next  record
	store bool

	hit hit // what was counted
}

// decide decides one condition at now, given what is stored for its value. The
// hits that the call costs are counted if there is room for all of them and
// count is set.
//
// It is a function of its arguments alone. The rest of the package sees to it that
// nobody else changes the record between its reading and the storing of next.
func decide(now instant, c *Condition, l lockout, stored record, count bool) verdict {
	b, corrected := stored.ban.at(now)
	if b.holds(now) {
		v := verdict{outcome: b.outcome(now, c), again: b.end.since(now), next: stored, store: corrected}
		if corrected {
			v.next = record{ban: b}
		}
		return v
	}
	if l.growth == 0 {
		b = ban{}
	}
	v := stored.look(now, c, count)
	v.next.ban = b
	if l.length > 0 && v.bans(c, l) {
		next := record{ban: l.ban(now, b)}
		if l.keepHits {
			next = v.next.kept(c, next.ban)
		}
		v = verdict{outcome: next.ban.outcome(now, c), again: next.ban.end.since(now), next: next, store: true}
		v.outcome.NewBan = true
		return v
	}
	if !v.store {
		v.next = stored
	}
	return v
}

// look decides a call by the algorithm of c. What the other one has stored, as
// another release of the same program may have, stays as it is.
func (r record) look(now instant, c *Condition, count bool) verdict {
	if c.Algorithm == LeakyBucket {
		v := r.bucket.look(now, c, count)
		v.next.hits = r.hits.after(now)
		return v
	}
	v := r.hits.look(now, c, count)
	v.next.bucket = r.bucket.after(now)
	return v
}

// bans reports whether a lockout l bans c for v: if there is room for no hit at
// all, and that is not for a moment that hits given back may have left behind.
func (v *verdict) bans(c *Condition, l lockout) bool {
	if !v.outcome.Blocked || v.outcome.Remaining > 0 {
		return false
	}
	return !l.keepHits || c.Algorithm != LeakyBucket || v.again > c.leftBehind()
}

// without returns r at now without the hits of h, and whether it had any of them.
// If it has none, since they have expired, a ban has come in their place or the
// record was reset, it stays as it is.
func (r record) without(h hit, now instant) (next record, found bool) {
	next = r
	switch {
	case h.cost == 0:
	case h.share.amount == 0:
		next.hits, found = r.hits.after(now).without(h.cost, h.expiry)
	default:
		next.bucket, found = r.bucket.without(h.share, now)
	}
	if !found {
		return r, false
	}
	return next, true
}

// decision draws the Decision from the outcomes of r's conditions. again says how
// long until each takes the same call again; nil: as long as its RetryAfter, as it
// is where no condition has a Cost.
func (r *Rule) decision(outcomes []Outcome, again []time.Duration) Decision {
	d := Decision{Status: Authorized, Outcomes: outcomes}
	for i := range outcomes {
		if err := outcomes[i].Err; err != nil && !slices.ContainsFunc(outcomes[:i], func(o Outcome) bool { return same(o.Err, err) }) {
			d.Err = join(d.Err, err)
		}
	}
	d.WouldBlock = r.blocks(outcomes)
	if !d.WouldBlock || r.Shadow {
		return d
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
	return d
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

// retryAfter returns when a call that the outcomes block could be authorized:
// with All when the first of them takes it, with Either when the last of them
// does. With Either that may be a condition that took this call, and was filled
// by it.
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

// failures are several errors. Unlike errors.Join they make one line of a log, in
// which each text stands once.
type failures struct{ errs []error }

func (f *failures) Unwrap() []error { return f.errs }

func (f *failures) Error() string { return strings.Join(f.texts(nil), "; ") }

// texts appends the texts of f to seen, as far as they are not in there.
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

// join returns the errors of errs that are not nil as one, nil if there is none. A
// single error stays as it is.
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

// same reports whether a and b are one error, as that of ctx is for all that it
// ends.
func same(a, b error) bool {
	return a != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}
