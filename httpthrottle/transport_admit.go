package httpthrottle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

const (
	// ClosedCondition is the name of the condition that [Transport] adds to each rule. It is
	// banned while the server wants no requests. To lift that ban, Reset a rule with the
	// Identifier, this Name, and the Value of the rule's conditions.
	ClosedCondition = "server"

	// limitCondition begins the names of the conditions of limits that the server tells.
	limitCondition = "server-"
)

// A target is what the server limits: the requests that have a rule in common.
type target struct {
	*knowledge
	rule  throttler.Rule
	value string // of the conditions that Transport adds: all values of the rule
}

// targetOf returns what requests of rule count in.
func (t *Transport) targetOf(rule throttler.Rule) *target {
	value := jointValue(rule.Conditions())
	return &target{t.knowledgeOf(throttler.RecordKey(rule.Identifier, limitsItem, value)), rule, value}
}

// jointValue returns one Value for all conditions: the one that they have in common, or all of
// them.
func jointValue(conditions []throttler.Condition) string {
	var values []string
	for i := range conditions {
		if !slices.Contains(values, conditions[i].Value) {
			values = append(values, conditions[i].Value)
		}
	}
	if len(values) == 1 {
		return values[0]
	}
	for i := range values {
		values[i] = url.QueryEscape(values[i])
	}
	return strings.Join(values, "&")
}

// rules returns the rules that a request has to pass, one after the other. There are two
// unless the conditions of the rule are combined by Either, because any one of those would
// open it.
func (l *target) rules(margin func(time.Duration) time.Duration) []throttler.Rule {
	rule := l.rule
	rule.CountAuthorizedOnly = true // a request that is not sent uses up nothing
	rule.Either, rule.All, rule.First = withMargin(rule.Either, margin), withMargin(rule.All, margin), withMargin(rule.First, margin)
	added := []throttler.Condition{l.closed()}
	for _, limit := range l.limitsAt(time.Now()) {
		added = append(added, l.condition(limit, margin))
	}
	if len(rule.Either) == 0 {
		return []throttler.Rule{l.ruleOf(added...), rule}
	}
	rule.Either = append(rule.Either, added...)
	return []throttler.Rule{rule}
}

// ruleOf returns a rule of conditions that Transport adds.
func (l *target) ruleOf(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: l.rule.Identifier, Shadow: l.rule.Shadow, CountAuthorizedOnly: true, Either: conditions}
}

// withMargin returns a copy of conditions whose windows are longer by a margin.
func withMargin(conditions []throttler.Condition, margin func(time.Duration) time.Duration) []throttler.Condition {
	conditions = slices.Clone(conditions)
	for i := range conditions {
		if c := &conditions[i]; c.Algorithm == throttler.SlidingWindow || c.Algorithm == throttler.LeakyBucket {
			c.TTL += margin(c.TTL)
		}
	}
	return conditions
}

// condition returns that of a limit that the server tells.
func (l *target) condition(limit limit, margin func(time.Duration) time.Duration) throttler.Condition {
	return throttler.Condition{
		Name: limitCondition + limit.TTL.String(), Value: l.value, Max: limit.Max, TTL: limit.TTL + margin(limit.TTL), Lockout: -1,
		Message: "The server allows no more requests for now.",
	}
}

// closed returns the condition that is banned while the server wants no requests. It is never
// full by itself, and its record is small.
func (l *target) closed() throttler.Condition {
	return throttler.Condition{
		Name: ClosedCondition, Value: l.value, Max: 1000, TTL: time.Millisecond, Algorithm: throttler.LeakyBucket, Lockout: -1,
		Message: "The server wants no requests for now.",
	}
}

// keeps reports whether the rule never allows more than max requests in window.
func (l *target) keeps(max int, window time.Duration) bool {
	return slices.ContainsFunc(l.rule.Either, func(c throttler.Condition) bool { return mostIn(window, &c) <= float64(max) })
}

// mostIn returns how many requests c allows at most in window.
func mostIn(window time.Duration, c *throttler.Condition) float64 {
	windows := float64(window) / float64(c.TTL)
	switch c.Algorithm {
	case throttler.SlidingWindow:
		return math.Ceil(windows) * float64(c.Max)
	case throttler.LeakyBucket:
		return (1 + windows) * float64(c.Max) // its burst, and its rate
	}
	return math.Inf(1)
}

// admit returns when a request of l may be sent, with what has allowed it. The error is a
// [*LimitError], or matches [throttler.ErrInvalidRule].
func (t *Transport) admit(ctx context.Context, l *target) (allowed []throttler.Decision, err error) {
	t.refresh(l.knowledge)
	waiting, cancel := ctx, func() {}
	if t.MaxWait > 0 {
		waiting, cancel = context.WithTimeout(ctx, t.MaxWait)
	}
	defer cancel()
	for {
		begun := time.Now()
		if d, err := t.decide(waiting, t.own, l.ruleOf(l.closed())); err != nil || d.Status == throttler.Blocked {
			return nil, notSent(ctx, waiting, d, err)
		}
		allowed = allowed[:0]
		for _, rule := range l.rules(t.margin) {
			d, err := t.decide(waiting, t.Throttler, rule)
			if err == nil && d.Status == throttler.Authorized {
				allowed = append(allowed, d)
				continue
			}
			t.cancel(ctx, allowed)
			if errors.Is(err, throttler.ErrInvalidRule) {
				return nil, fmt.Errorf("httpthrottle: %w", err)
			}
			return nil, notSent(ctx, waiting, d, err)
		}
		if time.Since(begun) < stale || t.stillOpen(waiting, l, allowed) {
			return allowed, nil
		}
		t.cancel(ctx, allowed)
	}
}

// stale is how old what allows a request may be when the request is sent.
const stale = 10 * time.Millisecond

// stillOpen asks anew what has allowed a request of l before it waited for the last rule, and
// reports whether that still does.
func (t *Transport) stillOpen(ctx context.Context, l *target, allowed []throttler.Decision) bool {
	if d, _ := t.own.Peek(ctx, l.ruleOf(l.closed())); d.Status == throttler.Blocked {
		return false
	}
	if len(allowed) == 1 {
		return true
	}
	t.cancel(ctx, allowed[:1])
	d, err := t.Throttler.Authorize(ctx, l.rules(t.margin)[0])
	allowed[0] = d
	return err == nil && d.Status == throttler.Authorized
}

// decide waits until limits allows a request by rule, unless none may wait.
func (t *Transport) decide(ctx context.Context, limits *throttler.Throttler, rule throttler.Rule) (throttler.Decision, error) {
	if t.MaxWait >= 0 {
		return limits.Wait(ctx, rule)
	}
	d, err := limits.Authorize(ctx, rule)
	if err == nil && ctx.Err() != nil {
		d.Status, err = throttler.Blocked, ctx.Err() // it may have failed open
	}
	return d, err
}

// notSent returns the error of a request whose waiting ended, or would have, with err. It is a
// part of ctx: if ctx has nothing to do with that, MaxWait has.
func notSent(ctx, waiting context.Context, d throttler.Decision, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		end, ok := ctx.Deadline()
		if part, _ := waiting.Deadline(); !ok || part.Before(end) {
			err = nil
		}
	}
	return &LimitError{Decision: d, Err: err}
}

// cancel gives the hits back, of a request that was not sent or that the server did not take.
// If the backend fails they expire in their time.
func (t *Transport) cancel(ctx context.Context, allowed []throttler.Decision) {
	for _, d := range allowed {
		t.Throttler.Cancel(ctx, d)
	}
}

// waits reports whether the next request of l waits for that long by its rule, but for the
// second to which servers round. Then a pause would only make the wait longer.
func (t *Transport) waits(ctx context.Context, l *target, pause time.Duration) bool {
	for _, rule := range l.rules(t.margin) {
		d, _ := t.Throttler.Peek(ctx, rule) // it has been asked before, and so is valid
		for i := range d.Outcomes {
			if o := &d.Outcomes[i]; o.Blocked && o.RetryAfter > pause-time.Second {
				return true
			}
		}
	}
	return false
}

// close bans all requests of l for that long: of all processes, or of this one if the backend
// fails.
func (t *Transport) close(ctx context.Context, l *target, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rule := l.ruleOf(l.closed())
	if t.Throttler.Ban(ctx, rule, pause) != nil {
		t.own.Ban(ctx, rule, pause) // in memory, where nothing fails
	}
}
