package record

import (
	"math"
	"time"
)

// An Instant is a point in time, in nanoseconds since the Unix epoch, or the
// distance between two.
type Instant int64

// InstantOf returns t, which must be before the year 2262.
func InstantOf(t time.Time) Instant {
	return Instant(t.UnixNano())
}

// Add returns i+d, or the last instant there is if that is later.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	if sum < i {
		return math.MaxInt64
	}
	return sum
}

// Since returns how long i is after now, 0 if it is not.
func (i Instant) Since(now Instant) time.Duration {
	return time.Duration(max(i-now, 0))
}
