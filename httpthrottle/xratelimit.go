package httpthrottle

import (
	"net/http"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// XRateLimit selects the header fields X-RateLimit-Limit, X-RateLimit-Remaining
// and X-RateLimit-Reset. No standard describes them. Many clients read them,
// and disagree on the meaning of Reset.
type XRateLimit int

const (
	NoXRateLimit      XRateLimit = iota // the fields are not set
	XRateLimitSeconds                   // Reset is in seconds from now
	XRateLimitEpoch                     // Reset is a Unix time in seconds
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
// tightest of Either, which blocks first, or the loosest of All, which blocks
// last. Reset is when a full condition takes a hit, and otherwise when it is
// empty.
func (x XRateLimit) publishX(h http.Header, public publicNames, rule *throttler.Rule, d *throttler.Decision) {
	var told report
	found := false
	for c, o := range public.of(rule, d) {
		if !decided(o, d) {
			continue
		}
		s := reportOf(c, o)
		if !found || s.tighter(told) == (len(rule.Either) > 0) {
			told, found = s, true
		}
	}
	if found && (d.Status == throttler.Blocked || !tellsLess(h, told.remaining)) {
		x.set(h, told)
	}
}

// tellsLess reports whether another Middleware has set Remaining to less than
// remaining.
func tellsLess(h http.Header, remaining int) bool {
	if len(h[xRemainingField]) == 0 {
		return false
	}
	other, err := strconv.Atoi(h[xRemainingField][0])
	return err == nil && other < remaining
}

func (x XRateLimit) set(h http.Header, s report) {
	reset := retrySeconds(s.window)
	if x == XRateLimitEpoch {
		reset = unixCeil(time.Now().Add(s.window))
	}
	h.Set(xLimitField, strconv.Itoa(s.limit))
	h.Set(xRemainingField, strconv.Itoa(s.remaining))
	h.Set(xResetField, strconv.FormatInt(reset, 10))
}

// unixCeil returns the Unix time of t, rounded up as seconds does.
func unixCeil(t time.Time) int64 {
	return t.Unix() + seconds(time.Duration(t.Nanosecond()))
}
