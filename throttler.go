// Package throttler placeholder
package throttler

import (
	"context"
	"errors"
)

// A Throttler authorizes or blocks calls by rules, with its records in the
// backend that it was made with. All throttlers that use the same servers, in
// however many processes and machines, count together.
//
// A Throttler is safe for concurrent use. It starts no goroutine that outlives
// a call, except that a call which is left at the end of its ctx leaves behind
// the operations that the client has not given up yet.
//
// The exported fields are options. They must be set before the first use.
type Throttler struct {
	// Observe, if not nil, is called after every decision of Authorize, with
	// the rule and the Decision that the caller is about to get, whose slices
	// it must not change. It is called on the caller's goroutine, from many
	// of them at once.
	Observe func(ctx context.Context, rule Rule, d Decision)

	client Client
}

// New returns a Throttler that keeps its records in client. It panics if client
// is nil.
func New(client Client) *Throttler {
	if client == nil {
		panic("throttler: New with a nil Client")
	}
	return &Throttler{client: client}
}

// Authorize decides whether what rule describes may happen now, and counts it.
//
// Every condition of the rule is looked at. One that is banned, or has Max
// unexpired hits, is full: it blocks, and is counted no further. With a lockout
// it is banned from now on, unless it is already. Every other condition counts
// the call, even if the call as a whole is blocked by another.
//
// The error is for the programmer: rule is invalid, errors.Is(err,
// [ErrInvalidRule]), and the Decision is the zero one, which is Blocked. A
// failure of the backend is not an error: the conditions that it concerns do
// not block, and [Decision.Err] says why. It is the same when ctx is done
// before the answer is known: Authorize returns at once, and the conditions
// still undecided do not block.
func (t *Throttler) Authorize(ctx context.Context, rule Rule) (Decision, error) {
	d, err := t.decide(ctx, &rule, false)
	if err == nil && t.Observe != nil {
		t.Observe(ctx, rule, d)
	}
	return d, err
}

// Peek returns the Decision that [Throttler.Authorize] would return now, down to
// what would remain after the call, and changes nothing: no hit is counted and
// no ban is set.
func (t *Throttler) Peek(ctx context.Context, rule Rule) (Decision, error) {
	return t.decide(ctx, &rule, true)
}

func (t *Throttler) decide(ctx context.Context, rule *Rule, dry bool) (Decision, error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	outcomes := make([]Outcome, len(rule.conditions()))
	newCall(t.client, rule, outcomes).run(ctx, dry)
	return rule.decision(outcomes), nil
}

// Reset forgets the hits and lifts the bans of all conditions of rule, for the
// values that they have in it. The error says that rule is invalid, as
// errors.Is(err, [ErrInvalidRule]), or which records the backend failed to
// delete; the others are gone all the same.
func (t *Throttler) Reset(ctx context.Context, rule Rule) error {
	if err := rule.Validate(); err != nil {
		return err
	}
	c := newCall(t.client, &rule, make([]Outcome, len(rule.conditions())))
	each(ctx, c.open, (*entry).remove)
	var errs []error
	for _, e := range c.open {
		errs = append(errs, e.err)
	}
	return errors.Join(errs...)
}
