package httpthrottle

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The names of the fields, in the form of the keys of an http.Header.
const (
	xLimitField     = "X-Ratelimit-Limit"
	xRemainingField = "X-Ratelimit-Remaining"
	xResetField     = "X-Ratelimit-Reset"
)

// A report is the state of a condition in the X-RateLimit fields.
type report struct {
	limit, remaining int
	blocked          bool
	window           time.Duration
}

func reportOf(c *throttler.Condition, o *throttler.Outcome) report {
	return report{c.Max, max(o.Remaining, 0), o.Blocked, effectiveWindow(c, o)}
}

// tighter reports whether s restricts a client more than other does.
func (s report) tighter(other report) bool {
	switch {
	case s.blocked != other.blocked:
		return s.blocked
	case !s.blocked && s.remaining != other.remaining:
		return s.remaining < other.remaining
	}
	return s.window > other.window
}

// publishX sets the X-RateLimit fields for one public condition of rule: the
// tightest of Either, which blocks first, or the loosest of All or First, which
// blocks last. Reset is when a full condition takes a hit, and otherwise when it is
// empty.
func (p publicNames) publishX(h http.Header, rule *throttler.Rule, d *throttler.Decision) {
	var chosen report
	found := false
	conditions := rule.Conditions()
	for i := range conditions {
		c, o := &conditions[i], &d.Outcomes[i]
		if !slices.Contains(p, c.Name) || !known(o) {
			continue
		}
		s := reportOf(c, o)
		if !found || s.tighter(chosen) == (len(rule.Either) > 0) {
			chosen, found = s, true
		}
	}
	if found && (d.Status == throttler.Blocked || !hasLess(h, chosen.remaining)) {
		chosen.set(h)
	}
}

// hasLess reports whether another Middleware has set Remaining to less than
// remaining.
func hasLess(h http.Header, remaining int) bool {
	if len(h[xRemainingField]) == 0 {
		return false
	}
	other, err := strconv.Atoi(h[xRemainingField][0])
	return err == nil && other < remaining
}

func (s report) set(h http.Header) {
	values := &[...]string{strconv.Itoa(s.limit), strconv.Itoa(s.remaining), strconv.FormatInt(unixCeil(time.Now().Add(s.window)), 10)}
	for i, field := range [...]string{xLimitField, xRemainingField, xResetField} {
		h[field] = values[i : i+1 : i+1] // parts of one allocation
	}
}

// unixCeil returns the Unix time of t, rounded up as seconds does.
func unixCeil(t time.Time) int64 {
	return t.Unix() + seconds(time.Duration(t.Nanosecond()))
}
