package throttler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/engine"
)

// Status says whether a call may happen: test [Decision.Status] after each one.
type Status int

const (
	Blocked    Status = 0 // the call may not happen: a limit is reached
	Authorized Status = 1 // the call may happen, and has been counted
)

// String returns "blocked" or "authorized".
func (s Status) String() string { return nameOf("Status", int(s), "blocked", "authorized") }

// nameOf returns the name of constant i of a kind, which are counted from 0.
func nameOf(kind string, i int, names ...string) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", kind, i)
	}
	return names[i]
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

	receipt *engine.Receipt // what was counted; nil: nothing was
	took    time.Duration   // see Took
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

// set sets o to what the engine tells of the condition of that name, which allows limit hits.
func (o *Outcome) set(name string, limit int, told *engine.Outcome) {
	*o = Outcome{
		Name: name, Limit: limit, Blocked: told.Blocked, Banned: told.Banned, NewBan: told.NewBan,
		Cost: told.Cost, Remaining: told.Remaining, RetryAfter: told.RetryAfter, ResetAfter: told.ResetAfter,
		LostRaces: told.LostRaces, Err: told.Err,
	}
	if !told.Asked {
		o.Remaining = -1
	}
}

// unasked reports whether the condition of o was not asked.
func (o *Outcome) unasked() bool { return o.Remaining < 0 }

// outcomes returns the memory for what the engine tells of a call: few, if that is enough.
func (p *preparedRule) outcomes(few []engine.Outcome) []engine.Outcome {
	if n := len(p.plan.Conditions); n > len(few) {
		return make([]engine.Outcome, n)
	}
	return few[:len(p.plan.Conditions)]
}

// conclude sets d, which is zero, to what out comes to. Its Outcomes are written to outcomes, and
// its Messages to messages, if that has room for all.
func (p *preparedRule) conclude(d *Decision, out []engine.Outcome, outcomes []Outcome, messages []string) {
	d.Status, d.Outcomes = Authorized, outcomes
	for i := range out {
		o, of := &outcomes[i], &p.plan.Conditions[i]
		o.set(of.Name, of.Limit.Max, &out[i])
		if err := o.Err; err != nil && !slices.ContainsFunc(outcomes[:i], func(o Outcome) bool { return engine.Same(o.Err, err) }) {
			d.Err = engine.Join(d.Err, err)
		}
	}
	d.WouldBlock = p.plan.Blocks(out)
	if !d.WouldBlock || p.plan.Shadow {
		return
	}
	d.Status, d.RetryAfter = Blocked, p.plan.RetryAfter(out)
	if d.Messages = messages[:0]; cap(messages) < len(out) {
		d.Messages = make([]string, 0, len(out))
	}
	for i := range out {
		if out[i].Blocked {
			d.Messages = append(d.Messages, p.plan.Conditions[i].Message)
		}
	}
}

// An answer is what the caller of a call keeps, in one piece of memory if the conditions are one
// or two.
type answer struct {
	receipt  *engine.Receipt
	outcomes []Outcome
	messages []string // memory for those of the Decision
}

// answer returns the memory for the answer to a call.
func (p *preparedRule) answer() answer {
	switch n := len(p.plan.Conditions); n {
	case 1:
		a := new(struct {
			receipt  engine.Receipt
			outcomes [1]Outcome
			messages [1]string
		})
		return answer{&a.receipt, a.outcomes[:], a.messages[:]}
	case 2:
		a := new(struct {
			receipt  engine.Receipt
			more     []engine.Counted
			counted  [2]engine.Counted
			outcomes [2]Outcome
			messages [2]string
		})
		a.more = a.counted[:]
		a.receipt.Use(&a.more)
		return answer{&a.receipt, a.outcomes[:], a.messages[:]}
	default:
		a := new(struct {
			receipt engine.Receipt
			more    []engine.Counted
		})
		a.more = make([]engine.Counted, n)
		a.receipt.Use(&a.more)
		return answer{&a.receipt, make([]Outcome, n), nil}
	}
}
