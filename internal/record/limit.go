package record

import "time"

// An Algorithm is a way to count hits.
type Algorithm int

const (
	Window   Algorithm = iota // a sliding window, see window.go
	Bucket                    // a leaky bucket, see bucket.go
	Leases                    // hits that are in flight, see leases.go
	Calendar                  // a count of each period of a calendar, see calendar.go
)

// A Limit is what one condition allows, and how much one call takes of it.
type Limit struct {
	Algorithm Algorithm
	Max       int           // hits that a window holds, or the largest burst of a bucket
	TTL       time.Duration // how long a hit counts, or a full bucket takes to leak empty
	Cost      int           // hits that the call takes; 0: 1
	Least     int           // hits that it makes do with; 0: all of them
	Period    *Period       // of a calendar, instead of TTL; nil: days in UTC
	ID        uint64        // of the call, for its lease

	interval Instant // of a bucket, if it is prepared
}

// Prepare makes decisions by l faster.
func (l *Limit) Prepare() {
	if l.Algorithm == Bucket && l.Max > 0 {
		l.interval = l.Interval()
	}
}

// period returns the Period of a calendar.
func (l *Limit) period() Period {
	if l.Period == nil {
		return Period{}
	}
	return *l.Period
}

// Hits returns how many hits a call takes.
func (l *Limit) Hits() int {
	return max(l.Cost, 1)
}

// Needed returns for how many hits there must be room, or else a call is refused.
func (l *Limit) Needed() int {
	if l.Least > 0 {
		return l.Least
	}
	return l.Hits()
}

// Interval returns in how much time a hit leaks out of a bucket.
func (l *Limit) Interval() Instant {
	if l.interval != 0 {
		return l.interval
	}
	return (Instant(l.TTL)-1)/Instant(l.Max) + 1
}

// bucketSize returns how long a full bucket takes to leak empty.
func (l *Limit) bucketSize() Instant {
	return l.Interval() * Instant(l.Max)
}

// leftBehind returns how much longer than it should a bucket may stay closed to a call
// because of hits that were given back, see [bucket.without]: what leaks in the time
// that a call takes, with a margin.
func (l *Limit) leftBehind() time.Duration {
	others := l.Interval() * Instant(l.Needed()-1)
	return time.Duration(others + min(l.Interval()/2, Instant(time.Second)))
}
