// Package gate decides what becomes of a request, for every front end alike: the
// HTTP middleware, the gRPC interceptors, the service.
package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// A Verdict is what becomes of a request.
type Verdict int

const (
	Invalid    Verdict = iota // the rule is invalid: a programmer's mistake
	Passed                    // it may happen
	Free                      // it may happen, and is not limited: there is no Decision
	Refused                   // it may not happen now
	TooLarge                  // it may never happen: it costs more than a condition holds
	Overloaded                // nobody knows whether it may, since the servers are asked too much
	Ended                     // nobody knows, since its context ended first
)

const unlimited = "throttler: unlimited"

// Unlimited returns the rule of a request that is not limited. Any Throttler
// takes it for an invalid rule.
func Unlimited() throttler.Rule { return throttler.Rule{Identifier: unlimited} }

// IsUnlimited reports whether rule is that of a request that is not limited.
func IsUnlimited(rule *throttler.Rule) bool {
	return rule.Identifier == unlimited && len(rule.Either) == 0 && len(rule.All) == 0
}

const noAddress = "throttler: no address"

// ErrNoAddress is the error about a [NoAddress] rule.
var ErrNoAddress = fmt.Errorf("%w: the peer has no address; set TrustUnix of the Source if a proxy connects through a Unix socket, and have it forward the client's address", throttler.ErrInvalidRule)

// NoAddress returns the rule of a request whose peer has no address to count,
// which is an invalid one.
func NoAddress() throttler.Rule { return throttler.Rule{Identifier: noAddress} }

// Validate is rule.Validate, but knows what is wrong with a [NoAddress] rule.
func Validate(rule *throttler.Rule) error { return explain(rule, rule.Validate()) }

// explain returns err, that of rule, or one that says more.
func explain(rule *throttler.Rule, err error) error {
	if rule.Identifier == noAddress && len(rule.Either) == 0 && len(rule.All) == 0 {
		return ErrNoAddress
	}
	return err
}

// Decide asks t about a request with this rule. The error is that of an Invalid
// one, nil for all other verdicts.
//
// A request is Overloaded only if t has no Fallback, which decides otherwise. A
// front end may let it pass: the Decision does. It must not let a request pass
// that has Ended, or a client that takes each of its requests back at once would
// have them all done and none counted.
func Decide(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule) (throttler.Decision, Verdict, error) {
	if IsUnlimited(rule) {
		return throttler.Decision{}, Free, nil
	}
	d, err := t.Authorize(ctx, *rule)
	switch {
	case err != nil:
		return tooLarge(ctx, t, rule, err)
	case d.Err != nil && ctx.Err() != nil:
		return d, Ended, nil
	case d.Status != throttler.Authorized:
		return d, Refused, nil
	case d.Err != nil && !rule.Shadow && t.Fallback == nil && errors.Is(d.Err, throttler.ErrOverloaded):
		return d, Overloaded, nil
	}
	return d, Passed, nil
}

// tooLarge decides a request whose rule is invalid, as err says. A Cost is
// usually what the request says, so one that no condition can hold, or a
// negative one, refuses the request; all else is a mistake in the program.
//
// The Decision has no RetryAfter: the request can never be authorized. The
// backend is not asked, so Remaining is 0, and nothing is counted.
func tooLarge(ctx context.Context, t *throttler.Throttler, rule *throttler.Rule, err error) (throttler.Decision, Verdict, error) {
	conditions, blocked := Conditions(rule), false
	d := throttler.Decision{Status: throttler.Blocked, WouldBlock: true}
	for i := range conditions {
		c := &conditions[i]
		o := throttler.Outcome{Name: c.Name, Limit: c.Max, Blocked: c.Cost < 0 || c.Cost > c.Max}
		d.Outcomes = append(d.Outcomes, o)
		if o.Blocked {
			blocked = true
			d.Messages = append(d.Messages, message(c))
		}
	}
	if !blocked || withoutCosts(*rule).Validate() != nil {
		return throttler.Decision{}, Invalid, explain(rule, err)
	}
	verdict := TooLarge
	if rule.Shadow {
		verdict, d.Status, d.Messages = Passed, throttler.Authorized, nil
	}
	if t.Observe != nil {
		t.Observe(ctx, *rule, d)
	}
	return d, verdict, nil
}

// withoutCosts returns rule with conditions of its own, none of which has a
// Cost.
func withoutCosts(rule throttler.Rule) throttler.Rule {
	rule.Either, rule.All = slices.Clone(rule.Either), slices.Clone(rule.All)
	for _, conditions := range [][]throttler.Condition{rule.Either, rule.All} {
		for i := range conditions {
			conditions[i].Cost = 0
		}
	}
	return rule
}

// Conditions returns those of rule, whichever way they are combined.
func Conditions(rule *throttler.Rule) []throttler.Condition {
	if len(rule.Either) > 0 {
		return rule.Either
	}
	return rule.All
}

func message(c *throttler.Condition) string {
	if c.Message != "" {
		return c.Message
	}
	return c.Name
}
