package httpthrottle

// This file alone knows the header fields RateLimit-Policy and RateLimit and
// the problem type quota-exceeded, as draft-ietf-httpapi-ratelimit-headers-11
// (23 May 2026) has them. They are Lists of Strings with Parameters, serialized
// by RFC 9651, section 4.1.

import (
	"math"
	"net/http"
	"slices"
	"strconv"
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

// publish adds the fields for the public conditions of rule to h. It adds to
// what is there, since each of two Middlewares may have policies of its own,
// and the fields are Lists, which may be split over lines.
func publish(h http.Header, public []string, rule *throttler.Rule, d *throttler.Decision) {
	if len(public) == 0 || rule.Shadow {
		return
	}
	conditions := rule.Either
	if len(conditions) == 0 {
		conditions = rule.All
	}
	var room [2][128]byte // enough for most, to allocate none of it
	policies, limits := room[0][:0], room[1][:0]
	for i := range conditions {
		c, o := &conditions[i], &d.Outcomes[i]
		if !slices.Contains(public, c.Name) {
			continue
		}
		policies = appendItem(policies, c.Name)
		policies = appendParameter(policies, "q", int64(c.Max))
		policies = appendParameter(policies, "w", max(seconds(c.TTL), 1))
		if o.Err != nil || d.Status == throttler.Blocked && d.RetryAfter == 0 {
			continue // nobody knows how much is left, or has looked
		}
		remaining, window := serviceLimit(c, o, d)
		limits = appendItem(limits, c.Name)
		limits = appendParameter(limits, "r", remaining)
		if window > 0 {
			limits = appendParameter(limits, "t", window)
		}
	}
	if len(policies) > 0 {
		h[policyField] = append(h[policyField], string(policies))
	}
	if len(limits) > 0 {
		h[limitField] = append(h[limitField], string(limits))
	}
}

// serviceLimit returns the available quota of a condition and its effective
// window in seconds, 0 if that is not told.
//
// A condition with nothing left tells when it takes another hit. One with hits
// left tells when it is as good as new, and not less than those hits are worth
// at the policy's rate, Max in TTL: a client that spreads them evenly over the
// window then keeps to that rate, which section 8.5 asks for.
//
// By section 6, Retry-After should not be earlier than the end of the window.
// So in a refused answer a full condition's window ends with it at the latest,
// as that of an All rule may need, and the other conditions tell none.
func serviceLimit(c *throttler.Condition, o *throttler.Outcome, d *throttler.Decision) (remaining, window int64) {
	refused := d.Status == throttler.Blocked
	switch {
	case o.Blocked || o.Remaining <= 0:
		window = retrySeconds(o.RetryAfter)
		if refused {
			window = min(window, retrySeconds(d.RetryAfter))
		}
		return 0, window
	case refused:
		return int64(o.Remaining), 0
	}
	// A float, since hits times nanoseconds overflow an int64.
	worth := time.Duration(math.Ceil(float64(o.Remaining) * float64(c.TTL) / float64(c.Max)))
	return int64(o.Remaining), retrySeconds(max(o.ResetAfter, worth))
}

// appendItem begins a member of the List b, a String.
func appendItem(b []byte, name string) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
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

// policyName returns the name of a condition as a policy has it: a String holds
// printable ASCII only, so every other byte, and the percent sign, is percent-
// encoded. No two names become one.
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
