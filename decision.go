package throttler

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// Status says whether a call may happen: test [Decision.Status] after each one.
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

// A Decision is the answer to one call: test its Status, and keep it to take hits back,
// settle or hold them. The zero Decision is Blocked.
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

// Took returns the duration of the call that made d, for metrics in [Throttler.Observe].
// It includes the waiting of [Throttler.Wait]. It is 0 unless [Throttler.Observe] is set.
func (d Decision) Took() time.Duration { return d.took }

// ErrBlocked matches, by errors.Is, the error of a call that a rule blocks: a [*BlockedError].
var ErrBlocked = errors.New("throttler: blocked")

// A BlockedError is the error of [Throttler.Allow], [Throttler.TryDo] and [Throttler.Spend] if
// the rule blocks the call: get it by errors.As, to tell the client when to come back. It
// matches [ErrBlocked].
type BlockedError struct{ Decision Decision }

// Error returns the messages, and when to come back: throttler: blocked: second, day; try
// again in 20s.
func (e *BlockedError) Error() string {
	return fmt.Sprintf("%v: %s; try again in %v",
		ErrBlocked, strings.Join(e.Decision.Messages, ", "), roundUp(e.Decision.RetryAfter, time.Millisecond))
}

// Unwrap returns [ErrBlocked].
func (e *BlockedError) Unwrap() error { return ErrBlocked }

// roundUp returns d as a multiple of unit.
func roundUp(d, unit time.Duration) time.Duration {
	if rest := d % unit; rest > 0 && d <= math.MaxInt64-unit {
		d += unit - rest
	}
	return d
}

// An Outcome is the answer of one condition, to show what is left or which limit blocked.
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

	// Cost is the number of hits that the call has counted in this condition, or
	// would have, in Peek. It is less than the condition's Cost only with
	// [Condition.Least]. 0 if it counted none: the condition blocked the call, failed
	// open, or gave the hits back, which may go on after ctx has ended.
	Cost int

	// Remaining is the number of hits for which there is room after this call. It is -1
	// if the condition was not asked, as a condition of [Rule.First] before it counted the
	// call.
	Remaining int

	// RetryAfter is the time until the condition takes another hit, 0 if it
	// would now. If it blocked a call of several hits, it is the time until all
	// of them fit, or [Condition.Least] of them.
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

// set sets o to what was told of the condition of that name, which allows limit hits. What
// failed, and the lost races, it leaves alone.
func (o *Outcome) set(name string, limit int, told *record.Outcome) {
	o.Name, o.Limit = name, limit
	o.Blocked, o.Banned, o.NewBan = told.Blocked, told.Banned, told.NewBan
	o.Cost, o.Remaining = told.Cost, told.Remaining
	o.RetryAfter, o.ResetAfter = told.RetryAfter, told.ResetAfter
}

// setUnasked sets o to that of a condition which was not asked.
func (o *Outcome) setUnasked(name string, limit int) {
	*o = Outcome{Name: name, Limit: limit, Remaining: -1}
}

// unasked reports whether the condition of o was not asked.
func (o *Outcome) unasked() bool { return o.Remaining < 0 }

// combine sets d, which is zero, to what the outcomes of r's conditions come to. again is
// the time until each has room for the same call; nil means its RetryAfter, as without a
// Cost. The messages of d are written to messages, if that has room for all.
func (r *Rule) combine(d *Decision, outcomes []Outcome, again []time.Duration, messages []string) {
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
	d.Messages = slices.Grow(messages[:0], len(outcomes))
	for i := range outcomes {
		if outcomes[i].Blocked {
			d.Messages = append(d.Messages, conditions[i].message())
		}
	}
}

// blocks reports whether the outcomes block the call: any of Either, every
// one of All and First.
func (r *Rule) blocks(outcomes []Outcome) bool {
	return blocks(r, outcomes, func(o *Outcome) bool { return o.Blocked })
}

// blocks is [Rule.blocks] of conditions in another form.
func blocks[T any](r *Rule, conditions []T, blocked func(*T) bool) bool {
	any := len(r.Either) > 0
	for i := range conditions {
		if blocked(&conditions[i]) == any {
			return any
		}
	}
	return !any
}

// retryAfter returns when a call that the outcomes block could be authorized: with
// All and First when the first condition has room, with Either when the last one has. With
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
