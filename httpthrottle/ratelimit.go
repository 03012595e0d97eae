package httpthrottle

// This file implements the header fields RateLimit-Policy and RateLimit and the
// problem type quota-exceeded of draft-ietf-httpapi-ratelimit-headers-11 (23
// May 2026). The fields are Lists of Strings with Parameters, serialized by RFC
// 9651, section 4.1.

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// Section 5.1 of the draft.
const (
	quotaExceeded      = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	quotaExceededTitle = "Quota Exceeded"
)

// The names of the fields, in the form of the keys of an http.Header.
const (
	policyField = "Ratelimit-Policy"
	limitField  = "Ratelimit"
)

// publicNames are the names of the conditions that are public.
type publicNames []string

// Publish adds the fields RateLimit-Policy and RateLimit to h, for the conditions of rule with
// these names, as [Middleware.Public] does. It is for front ends of other protocols.
func Publish(h http.Header, names []string, rule throttler.Rule, d throttler.Decision) {
	publicNames(names).publish(h, &rule, &d)
}

// publish adds the fields RateLimit-Policy and RateLimit for the public
// conditions of rule to h. It returns the names of the policies that are full,
// as the fields have them. It keeps the lines of h, since another Middleware
// may have added policies: the fields are Lists, which may be split over lines.
func (p publicNames) publish(h http.Header, rule *throttler.Rule, d *throttler.Decision) (violated []string) {
	taken := h[policyField]
	var room [2][128]byte // large enough for most rules, so that nothing is allocated
	policies, limits := room[0][:0], room[1][:0]
	conditions := rule.Conditions()
	for i := range conditions {
		c, o := &conditions[i], &d.Outcomes[i]
		if !slices.Contains(p, c.Name) || o.Remaining < 0 { // the condition was not asked
			continue
		}
		name, ok := freeName(taken, rule.Identifier, c.Name)
		if !ok {
			continue
		}
		if o.Blocked {
			violated = append(violated, policyName(name))
		}
		policies = nextMember(policies)
		item := len(policies)
		policies = appendItem(policies, name)
		if known(o) {
			limits = append(nextMember(limits), policies[item:]...)
			limits = appendLimit(limits, c, o, d)
		}
		policies = appendPolicy(policies, c)
	}
	addLines(h, taken, policies, limits)
	return violated
}

// addLines adds a line to each of the fields, unless it is empty. taken are those that
// RateLimit-Policy has. The lines are parts of two allocations, not four.
func addLines(h http.Header, taken []string, policies, limits []byte) {
	if len(policies) == 0 {
		return
	}
	both := string(append(policies, limits...))
	lines := &[2]string{both[:len(policies)], both[len(policies):]}
	h[policyField] = withLine(taken, lines[:1:1])
	if len(limits) > 0 {
		h[limitField] = withLine(h[limitField], lines[1:])
	}
}

// withLine returns the lines of a field and one more.
func withLine(taken, line []string) []string {
	if taken == nil {
		return line
	}
	return append(taken, line...)
}

// freeName returns the name of a condition's policy: its own or, if another
// Middleware has a policy of that name, "identifier/name". ok is false if that
// is taken too: it is the same rule again, and not published twice.
func freeName(taken []string, identifier, name string) (string, bool) {
	if !isTaken(taken, name) {
		return name, true
	}
	name = identifier + "/" + name
	return name, !isTaken(taken, name)
}

// isTaken reports whether a line of RateLimit-Policy has a policy of this name.
func isTaken(lines []string, name string) bool {
	if len(lines) == 0 {
		return false
	}
	item := string(appendItem(nil, name))
	return slices.ContainsFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, item) || strings.Contains(line, ", "+item)
	})
}

// known reports whether o says what its condition has left. It does not if the
// backend failed, nor if the condition of a First rule was not asked.
func known(o *throttler.Outcome) bool { return o.Err == nil && o.Remaining >= 0 }

// appendPolicy adds the parameters of a condition's policy.
func appendPolicy(b []byte, c *throttler.Condition) []byte {
	b = appendParameter(b, "q", int64(c.Max))
	if c.Algorithm == throttler.InFlight { // a quota of what is under way has no window
		return append(b, `;qu="concurrent-requests"`...)
	}
	return appendParameter(b, "w", max(seconds(windowOf(c)), 1))
}

// windowOf returns how long the hits of c count: TTL, or the period that is now.
func windowOf(c *throttler.Condition) time.Duration {
	if c.Algorithm != throttler.Calendar {
		return c.TTL
	}
	start, end := c.Period.Bounds(time.Now())
	return end.Sub(start)
}

// appendLimit adds the parameters of a condition's service limit: what is left,
// and its effective window.
//
// By section 6, Retry-After should not be earlier than the end of the window.
// So a refused answer gives a window only for conditions that block, and only
// if it ends no later than Retry-After. In an All rule it may end later.
func appendLimit(b []byte, c *throttler.Condition, o *throttler.Outcome, d *throttler.Decision) []byte {
	b = appendParameter(b, "r", int64(o.Remaining))
	if c.Algorithm == throttler.InFlight && !isFull(o) {
		return b
	}
	window := effectiveWindow(c, o)
	if d.RetryAfter > 0 && (!isFull(o) || window > d.RetryAfter) {
		return b
	}
	return appendParameter(b, "t", retrySeconds(window))
}

// isFull reports whether o's condition has no room for another such request
// until RetryAfter.
func isFull(o *throttler.Outcome) bool { return o.RetryAfter > 0 && o.Blocked || o.Remaining <= 0 }

// effectiveWindow returns the time for which the remaining hits must last.
//
// For a full condition that is the time until it takes a hit. For another it is
// the time until it is empty, but no less than the remaining hits take at the
// policy's rate of Max in TTL. So a client that spreads them evenly over the
// window keeps to that rate, as section 8.5 asks.
func effectiveWindow(c *throttler.Condition, o *throttler.Outcome) time.Duration {
	if isFull(o) {
		return o.RetryAfter
	}
	if c.Algorithm == throttler.Calendar {
		_, end := c.Period.Bounds(time.Now())
		return time.Until(end)
	}
	// A float: hits times nanoseconds can overflow an int64.
	worth := time.Duration(math.Ceil(float64(o.Remaining) * float64(c.TTL) / float64(c.Max)))
	return max(o.ResetAfter, worth)
}

// nextMember returns the List b as it is before a further member.
func nextMember(b []byte) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	return b
}

// appendItem adds a member to a List: a String.
func appendItem(b []byte, name string) []byte {
	b = append(b, '"')
	name = policyName(name)
	for i := 0; i < len(name); i++ {
		if name[i] == '"' || name[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

// maxInteger is the largest Integer that a structured field can hold.
const maxInteger = 999_999_999_999_999

// appendParameter adds a Parameter to the member that b ends with.
func appendParameter(b []byte, key string, value int64) []byte {
	b = append(b, ';')
	b = append(b, key...)
	b = append(b, '=')
	return strconv.AppendInt(b, min(value, maxInteger), 10)
}

// policyName returns the name of a condition's policy. A String holds printable
// ASCII only, so every other byte and the percent sign are percent-encoded.
// Different names stay different.
func policyName(name string) string {
	const digits = "0123456789abcdef"
	var b []byte
	for i := 0; i < len(name); i++ {
		plain := name[i] >= 0x20 && name[i] < 0x7f && name[i] != '%'
		if b == nil && plain {
			continue
		}
		if b == nil {
			b = append(b, name[:i]...)
		}
		if plain {
			b = append(b, name[i])
		} else {
			b = append(b, '%', digits[name[i]>>4], digits[name[i]&15])
		}
	}
	if b == nil {
		return name
	}
	return string(b)
}
