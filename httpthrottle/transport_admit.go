package httpthrottle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

const (
	// closedCondition is the name of the condition that is added to each rule. It is banned while
	// the server wants no requests.
	closedCondition = "server"

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

// jointValue returns one Value for all conditions: theirs, each once, joined by &. In each, % is
// written as %25 and & as %26, so that no others are joined to the same.
func jointValue(conditions []throttler.Condition) string {
	var values []string
	for i := range conditions {
		if value := joinable.Replace(conditions[i].Value); !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	return strings.Join(values, "&")
}

var joinable = strings.NewReplacer("%", "%25", "&", "%26")

// rules returns the rule of a request, and that of what the server has told, which has no
// conditions if it is part of the first: beside conditions that are not combined by Either, any
// one of them would open it.
func (l *target) rules(margin func(time.Duration) time.Duration) (rule, told throttler.Rule) {
	rule, told = l.rule, l.pause()
	rule.CountAuthorizedOnly = true // a request that is not sent uses up nothing
	rule.Either, rule.All, rule.First = withMargin(rule.Either, margin), withMargin(rule.All, margin), withMargin(rule.First, margin)
	for _, limit := range l.limitsAt(time.Now()) {
		told.Either = append(told.Either, l.condition(limit, margin))
	}
	if len(rule.Either) > 0 {
		rule.Either, told.Either = append(rule.Either, told.Either...), nil
	}
	return rule, told
}

// pause returns a rule that is banned while the server wants no requests.
func (l *target) pause() throttler.Rule {
	return l.ruleOf(throttler.Condition{
		// It is never full by itself, and its record is small.
		Name: closedCondition, Value: l.value, Max: 1000, TTL: time.Millisecond, Algorithm: throttler.LeakyBucket, Lockout: -1,
		Message: "The server wants no requests for now.",
	})
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

// admit returns when a request of l may be sent, with what has allowed it.
func (t *Transport) admit(ctx context.Context, l *target) (allowed []throttler.Decision, err error) {
	t.refresh(l.knowledge)
	waiting, cancel := ctx, func() {}
	if t.MaxWait > 0 {
		waiting, cancel = context.WithTimeout(ctx, t.MaxWait)
	}
	defer cancel()
	for {
		rule, told := l.rules(t.margin)
		d, err := t.decide(waiting, t.Throttler, rule)
		if err != nil || d.Status == throttler.Blocked {
			return nil, notSent(ctx, waiting, d, err)
		}
		allowed = append(allowed[:0], d)
		// It may have waited for long. What is not part of the rule is asked now, and waited for
		// without hits of the rule: they would be older than the request.
		by, other := t.own, l.pause()
		d, _ = by.Peek(ctx, other)
		if d.Status == throttler.Authorized && len(told.Either) > 0 {
			by, other = t.Throttler, told
			d, _ = by.Authorize(ctx, other)
			allowed = append(allowed, d)
		}
		if d.Status == throttler.Authorized {
			return allowed, nil
		}
		t.cancel(ctx, allowed)
		if d, err = t.decide(waiting, by, other); err != nil || d.Status == throttler.Blocked {
			return nil, notSent(ctx, waiting, d, err)
		}
		by.Cancel(ctx, d)
	}
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
	rule, told := l.rules(t.margin)
	d, _ := t.Throttler.Peek(ctx, rule) // it has been asked before, and so is valid
	other, _ := t.Throttler.Peek(ctx, told)
	return slices.ContainsFunc(append(d.Outcomes, other.Outcomes...), func(o throttler.Outcome) bool {
		return o.Blocked && o.RetryAfter > pause-time.Second
	})
}

// close bans all requests of l for that long: of all processes, or of this one if the backend
// fails.
func (t *Transport) close(ctx context.Context, l *target, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if t.Throttler.Ban(ctx, l.pause(), pause) != nil {
		t.own.Ban(ctx, l.pause(), pause) // in memory, where nothing fails
	}
}
