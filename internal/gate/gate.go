// Package gate decides requests for all front ends: the HTTP middleware, the
// gRPC interceptors, the service.
package gate

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// A Ruling is what becomes of a request.
type Ruling int

const (
	Invalid    Ruling = iota // the rule is invalid: a mistake in the program
	Passed                   // allowed
	Free                     // not limited: there is no Decision
	Refused                  // blocked for now
	TooLarge                 // blocked for ever: it costs more than a condition holds
	Overloaded               // undecided: the servers are overloaded, and it is not to pass then
	Ended                    // undecided: its context ended first
)

// Decide asks t about a request with this rule, and sets d, which is zero, to the
// Decision. The error is that of an Invalid rule, and nil for all other rulings.
//
// A request that the servers are too busy for passes, unless refuseOverloaded is set: then
// it is Overloaded, if t has no Fallback, which would decide it. One that has Ended never
// passes: otherwise a client could cancel each request right after sending it and have it
// done uncounted. The in-flight hits of a request that does not pass are given back.
func Decide(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision, refuseOverloaded bool) (Ruling, error) {
	if IsUnlimited(rule) {
		return Free, nil
	}
	var err error
	*d, err = t.Authorize(ctx, *rule)
	switch {
	case err != nil:
		return tooLarge(ctx, t, rule, d, err)
	case d.Err != nil && ctx.Err() != nil:
		drop(ctx, t, rule, d)
		return Ended, nil
	case d.Status != throttler.Authorized:
		drop(ctx, t, rule, d)
		return Refused, nil
	case refuseOverloaded && d.Err != nil && !rule.Shadow && t.Fallback == nil && errors.Is(d.Err, throttler.ErrOverloaded):
		drop(ctx, t, rule, d)
		return Overloaded, nil
	}
	return Passed, nil
}

// tooLarge is Decide for an invalid rule, whose error is err. The Cost usually
// comes from the client. So a Cost that is negative or above Max refuses the
// request. Everything else is a mistake in the program.
//
// The Decision has no RetryAfter, since the request can never be authorized.
// The backend is not asked, so Remaining is 0, and nothing is counted.
func tooLarge(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, d *throttler.Decision, err error) (Ruling, error) {
	conditions, blocked := rule.Conditions(), false
	refusal := throttler.Decision{Status: throttler.Blocked, WouldBlock: true}
	for i := range conditions {
		c := &conditions[i]
		o := throttler.Outcome{Name: c.Name, Limit: c.Max, Blocked: c.Cost < 0 || c.Cost > c.Max}
		refusal.Outcomes = append(refusal.Outcomes, o)
		if o.Blocked {
			blocked = true
			refusal.Messages = append(refusal.Messages, cmp.Or(c.Message, c.Name))
		}
	}
	if !blocked || withoutCosts(*rule).Validate() != nil {
		return Invalid, explain(rule, err)
	}
	ruling := TooLarge
	if rule.Shadow {
		ruling, refusal.Status, refusal.Messages = Passed, throttler.Authorized, nil
	}
	*d = refusal
	if t.Observe != nil {
		t.Observe(ctx, *rule, refusal)
	}
	return ruling, nil
}

// withoutCosts returns a copy of rule and its conditions without Costs.
func withoutCosts(rule throttler.Rule) throttler.Rule {
	rule.Either, rule.All = slices.Clone(rule.Either), slices.Clone(rule.All)
	for _, conditions := range [][]throttler.Condition{rule.Either, rule.All} {
		for i := range conditions {
			conditions[i].Cost, conditions[i].Least = 0, 0
		}
	}
	return rule
}
