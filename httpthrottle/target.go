package httpthrottle

import (
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

	// limitsItem is the name, in place of a condition's, of the item that holds those limits.
	limitsItem = "server-limits"
)

// A target is what the server limits: the requests that have a rule in common.
type target struct {
	rule  throttler.Rule
	value string // what the server limits: all values of the rule
	key   string // of the limits that the server tells
}

func newTarget(rule throttler.Rule) *target {
	value := jointValue(rule.Conditions())
	return &target{rule, value, throttler.RecordKey(rule.Identifier, limitsItem, value)}
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
func (l *target) rules(server limits, margin func(time.Duration) time.Duration, now time.Time) []throttler.Rule {
	rule := l.rule
	rule.CountAuthorizedOnly = true // a request that is not sent uses up nothing
	rule.Either, rule.All, rule.First = withMargin(rule.Either, margin), withMargin(rule.All, margin), withMargin(rule.First, margin)
	serverRule := throttler.Rule{Identifier: rule.Identifier, Shadow: rule.Shadow, CountAuthorizedOnly: true, Either: l.serverConditions(server, margin, now)}
	if len(rule.Either) == 0 {
		return []throttler.Rule{serverRule, rule}
	}
	rule.Either = append(rule.Either, serverRule.Either...)
	return []throttler.Rule{rule}
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

// serverConditions returns the conditions that the server's answers add.
func (l *target) serverConditions(server limits, margin func(time.Duration) time.Duration, now time.Time) []throttler.Condition {
	conditions := []throttler.Condition{l.closed()}
	for _, limit := range server {
		if limit.valid(now) {
			conditions = append(conditions, throttler.Condition{
				Name: limit.condition(), Value: l.value, Max: limit.Max, TTL: limit.TTL + margin(limit.TTL), Lockout: -1,
				Message: "The server allows no more requests for now.",
			})
		}
	}
	return conditions
}

const closedMessage = "The server wants no requests for now."

// closed returns the condition that is banned while the server wants no requests. It is never
// full by itself, and its record is small.
func (l *target) closed() throttler.Condition {
	return throttler.Condition{
		Name: ClosedCondition, Value: l.value, Max: 1000, TTL: time.Millisecond, Algorithm: throttler.LeakyBucket, Lockout: -1,
		Message: closedMessage,
	}
}

// keeps reports whether the rule never allows more than max requests in window.
func (l *target) keeps(max int, window time.Duration) bool {
	return slices.ContainsFunc(l.rule.Either, func(c throttler.Condition) bool {
		if c.Cost > 1 || c.TTL <= 0 {
			return false // another unit
		}
		windows := math.Ceil(float64(window) / float64(c.TTL))
		switch c.Algorithm {
		case throttler.LeakyBucket:
			windows++ // the burst
		case throttler.SlidingWindow:
		default:
			return false
		}
		return windows*float64(c.Max) <= float64(max)
	})
}
