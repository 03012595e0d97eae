package throttler

import (
	"math"
	"time"
)

// An instant is a point in time, in nanoseconds since the Unix epoch, or the
// distance between two.
type instant int64

// instantOf returns t, which must be before the year 2262.
func instantOf(t time.Time) instant {
	return instant(t.UnixNano())
}

// add returns i+d, or the last instant there is if that is later.
func (i instant) add(d time.Duration) instant {
	sum := i + instant(d)
	if sum < i {
		return math.MaxInt64
	}
	return sum
}

// since returns how long i is after now, 0 if it is not.
func (i instant) since(now instant) time.Duration {
	return time.Duration(max(i-now, 0))
}
