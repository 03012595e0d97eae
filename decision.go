package throttler

import (
	"fmt"
	"time"
)

// Status is the answer to the question whether the thing may happen.
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

	// Messages are those of the blocking conditions, in the rule's order;
	// nil if the call is authorized.
	Messages []string

	// RetryAfter is how long until the same call could be authorized if
	// nothing else is counted in the meantime; 0 if it is authorized.
	RetryAfter time.Duration

	// Outcomes tell what each condition made of the call, in the rule's
	// order.
	Outcomes []Outcome

	// WouldBlock says that the rule blocks the call. With [Rule.Shadow] the
	// call is authorized all the same.
	WouldBlock bool

	// Err is what the backend failed at and was failed open over; nil if
	// nothing failed. It matches, by errors.Is, the Err of every outcome.
	// A program that would rather fail closed tests it.
	Err error

	call *call         // knows what was counted; nil: nothing was
	took time.Duration // see Took
}

// Took returns how long the call took that made d; for [Throttler.Wait] that
// includes the waiting. It is measured if [Throttler.Observe] is set, and 0
// otherwise.
func (d Decision) Took() time.Duration { return d.took }

// An Outcome is what one condition made of a call.
type Outcome struct {
	// Name is the condition's.
	Name string

	// Blocked says that the condition was full or banned.
	Blocked bool

	// Banned says that a ban holds, whether it was found or set by this
	// very call.
	Banned bool

	// NewBan says that this very call set the ban.
	NewBan bool

	// Limit is the condition's Max.
	Limit int

	// Remaining is how many more hits the condition would take now, after
	// this call.
	Remaining int

	// RetryAfter is how long until the condition takes another hit; 0 if
	// it would now.
	RetryAfter time.Duration

	// ResetAfter is how long until the condition holds no hit and no ban.
	ResetAfter time.Duration

	// LostRaces is how many times the condition had to be decided anew,
	// since another call had changed its record in the meantime.
	LostRaces int

	// Err is what kept the condition from being looked at or counted. A
	// condition that could not be looked at does not block: it fails open,
	// with Remaining equal to Limit. One that was found full and could not
	// be banned still blocks.
	Err error
}

// decide decides one condition at now, given what is stored for its value. It
// returns what the call comes to, and what is to be stored if store is set;
// otherwise the record stays as it is. A hit is counted if there is room for one
// and count is set.
//
// It is a function of its arguments alone. All that the rest of the package
// does is to keep it so while others decide the same condition.
func decide(now instant, c *Condition, l lockout, stored record, count bool) (o Outcome, next record, store bool) {
	b, corrected := stored.ban.at(now)
	if b.holds(now) {
		return b.outcome(now, c), record{ban: b}, corrected
	}
	if l.growth == 0 {
		b = ban{}
	}
	next.ban = b
	if c.Algorithm == LeakyBucket {
		o, next.bucket, store = stored.bucket.look(now, c, count)
	} else {
		o, next.hits, store = stored.hits.look(now, c, count)
	}
	if o.Blocked && l.length > 0 {
		b = l.ban(now, b)
		o = b.outcome(now, c)
		o.NewBan = true
		return o, record{ban: b}, true
	}
	return o, next, store
}
