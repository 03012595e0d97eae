// Package gate decides requests for all front ends: the HTTP middleware, the
// gRPC interceptors, the service. A front end makes a rule of a request, calls
// Decide, and encodes the Decision as its protocol wants.
package gate

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// An Action is what a front end does with a request.
type Action int

const (
	Invalid    Action = iota // answer an error: the rule is invalid, a mistake in the program
	Pass                     // serve it
	Unlimited                // serve it: there is no Decision
	Refuse                   // refuse it for now
	TooLarge                 // refuse it for ever: it costs more than a condition holds
	Overloaded               // refuse it undecided: the servers are overloaded
	Ended                    // refuse it undecided: its context ended first
)

// Options are a front end's options for one request.
type Options struct {
	// Look asks what is left, and counts nothing. Such a request passes,
	// whatever is left.
	Look bool

	// RefuseOverloaded refuses a request that the servers are too busy to
	// decide, unless t has a Fallback. Otherwise it passes.
	RefuseOverloaded bool
}

// Decide asks t about a request with this rule, and sets d, which is zero, to
// the Decision as the client may see it: see [Messages]. The error is that of
// an Invalid rule, and nil for all other Actions.
//
// A request that has Ended never passes: otherwise a client could cancel each
// request right after sending it and have it done uncounted. The in-flight hits
// of a request that does not pass are given back.
func Decide(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision, o Options) (Action, error) {
	if IsUnlimited(rule) {
		return Unlimited, nil
	}
	action, err := decide(ctx, t, rule, d, o)
	if action != Pass && action != Invalid {
		d.Messages = Messages(d)
		drop(ctx, t, rule, d)
	}
	return action, err
}

func decide(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision, o Options) (action Action, err error) {
	if o.Look {
		*d, err = t.Peek(ctx, looking(rule))
	} else {
		*d, err = t.Authorize(ctx, *rule)
	}
	if err != nil {
		return tooLarge(ctx, t, rule, d, o, err)
	}
	if o.Look {
		uncount(d)
	}
	return actionOf(ctx, t, rule, d.Status != throttler.Authorized, d.Err, o), nil
}

// actionOf returns the Action for a request that was decided, with the error of
// the backend.
func actionOf(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, blocked bool, err error, o Options) Action {
	switch {
	case err != nil && ctx.Err() != nil:
		return Ended
	case o.Look:
		return Pass
	case blocked:
		return Refuse
	case o.RefuseOverloaded && err != nil && !rule.Shadow && t.Fallback == nil && errors.Is(err, throttler.ErrOverloaded):
		return Overloaded
	}
	return Pass
}

// Take is Decide by limit, whose rule is given with any Value. It sets outcome to the Outcome of
// the one condition, and d, which is zero, to the Decision on a request that does not pass. So it
// allocates nothing for one that passes, which cannot be given back.
func Take(ctx context.Context, limit *throttler.Limit, rule *throttler.Rule, value string, outcome *throttler.Outcome, d *throttler.Decision, o Options) Action {
	*outcome = limit.Take(ctx, value)
	action := actionOf(ctx, limit.Throttler(), rule, outcome.Blocked, outcome.Err, o)
	if action != Pass {
		*d = throttler.Decision{
			Status:     throttler.Blocked,
			Messages:   []string{cmp.Or(rule.Conditions()[0].Message, tooMany)},
			RetryAfter: outcome.RetryAfter,
			Outcomes:   []throttler.Outcome{*outcome},
			WouldBlock: true,
			Err:        outcome.Err,
		}
	}
	return action
}

// uncount changes d, the answer of Peek, to what is left before the call.
func uncount(d *throttler.Decision) {
	for i := range d.Outcomes {
		if o := &d.Outcomes[i]; o.Cost > 0 {
			o.Remaining, o.Cost, o.RetryAfter = o.Remaining+o.Cost, 0, 0
		}
	}
}

// tooLarge is decide for an invalid rule, whose error is invalid. The Cost
// usually comes from the client. So a Cost that is negative or above Max
// refuses the request. Everything else is a mistake in the program.
//
// The Decision has no RetryAfter, since the request can never be authorized.
// Its Outcomes say what is left. Nothing is counted.
func tooLarge(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision, o Options, invalid error) (Action, error) {
	conditions := rule.Conditions()
	if !slices.ContainsFunc(conditions, neverFits) {
		return Invalid, explain(rule, invalid)
	}
	asked := looking(rule)
	for i := range asked.Conditions() {
		c := &asked.Conditions()[i]
		c.Cost, c.Least = 0, 0
	}
	left, err := t.Peek(ctx, asked)
	if err != nil {
		return Invalid, explain(rule, invalid)
	}
	uncount(&left)
	*d = throttler.Decision{Status: throttler.Blocked, WouldBlock: true, Outcomes: left.Outcomes, Err: left.Err}
	for i, c := range conditions {
		if outcome := &d.Outcomes[i]; neverFits(c) {
			outcome.Blocked = true
			d.Messages = append(d.Messages, cmp.Or(c.Message, c.Name))
		} else {
			outcome.Blocked = outcome.Banned
		}
	}
	if rule.Shadow {
		d.Status, d.Messages = throttler.Authorized, nil
	}
	switch {
	case o.Look:
		return Pass, nil
	case t.Observe != nil:
		t.Observe(ctx, *rule, *d)
	}
	if rule.Shadow {
		return Pass, nil
	}
	return TooLarge, nil
}

// neverFits reports whether no request of c's Cost can ever pass.
func neverFits(c throttler.Condition) bool { return c.Cost < 0 || c.Cost > c.Max }

// looking returns a copy of rule that sets no ban: a Peek tells of the one that a call would
// set, too.
func looking(rule *throttler.Rule) throttler.Rule {
	copied := *rule
	copied.Lockout, copied.LockoutGrowth, copied.MaxLockout = 0, 0, 0
	for _, conditions := range []*[]throttler.Condition{&copied.Either, &copied.All, &copied.First} {
		*conditions = slices.Clone(*conditions)
		for i := range *conditions {
			(*conditions)[i].Lockout = 0
		}
	}
	return copied
}

// tooMany is what clients read in place of a condition's name.
const tooMany = "Too many requests."

// Messages returns the messages of d for clients. A condition without a Message
// has its Name in d, which says nothing to clients and may tell too much: they
// read "Too many requests.", once.
func Messages(d *throttler.Decision) []string {
	named := func(message string) bool {
		return slices.ContainsFunc(d.Outcomes, func(o throttler.Outcome) bool { return o.Name == message })
	}
	if !slices.ContainsFunc(d.Messages, named) {
		return d.Messages
	}
	var messages []string
	for _, message := range d.Messages {
		if named(message) {
			message = tooMany
		}
		if message != tooMany || !slices.Contains(messages, tooMany) {
			messages = append(messages, message)
		}
	}
	return messages
}
