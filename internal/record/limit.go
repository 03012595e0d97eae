package record

import (
	"math/bits"
	"time"
)

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

	interval span // of a bucket, if it is prepared
}

// Prepare makes decisions by l faster.
func (l *Limit) Prepare() {
	if l.Algorithm == Bucket && l.Max > 0 {
		l.interval = l.exact()
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

// Interval returns in how much time a hit leaks out of a bucket, rounded up.
func (l *Limit) Interval() Instant { return l.exact().up() }

// parts returns how many parts a nanosecond has in a bucket.
func (l *Limit) parts() parts { return parts(min(uint64(l.Max), 1<<32)) }

// exact returns in how much time a hit leaks out of a bucket.
func (l *Limit) exact() span {
	if l.interval.Instant != 0 {
		return l.interval
	}
	ttl, n := uint64(l.TTL), uint64(l.Max)
	rest := ttl % n
	if n <= 1<<32 {
		return span{Instant(ttl / n), uint32(rest)}
	}
	part, left := bits.Div64(rest>>32, rest<<32, n)
	if left > 0 {
		part++
	}
	return span{Instant(ttl/n + part>>32), uint32(part)}
}

// rate returns the interval as a bucket stores it.
func (l *Limit) rate() float32 { return float32(l.float(l.exact())) }

// float returns a in nanoseconds.
func (l *Limit) float(a span) float64 {
	return float64(a.Instant) + float64(a.part)/float64(l.parts())
}

// amount returns in how much time n hits leak out of a bucket.
func (l *Limit) amount(n int) span {
	i := l.exact()
	if n == 1 || i.part == 0 {
		return span{i.Instant * Instant(n), i.part}
	}
	high, low := bits.Mul64(uint64(i.part), uint64(n))
	whole, part := bits.Div64(high, low, uint64(l.parts()))
	return span{i.Instant*Instant(n) + Instant(whole), uint32(part)}
}

// bucketSize returns how long a full bucket takes to leak empty.
func (l *Limit) bucketSize() span { return l.amount(l.Max) }

// fit returns how many hits fit into the room of a bucket.
func (l *Limit) fit(room span) int {
	i := l.exact()
	switch {
	case room.Instant < 0:
		return 0
	case i.part == 0:
		return int(room.Instant / i.Instant)
	}
	n := int(l.float(room) / l.float(i)) // or a few more or less
	for n > 0 && room.less(l.amount(n)) {
		n--
	}
	for !room.less(l.amount(n + 1)) {
		n++
	}
	return n
}

// leftBehind returns how much longer than it should a bucket may stay closed to a call
// because of hits that were given back, see [bucket.without]: what leaks in the time
// that a call takes, with a margin.
func (l *Limit) leftBehind() time.Duration {
	others := l.amount(l.Needed() - 1).Instant
	return time.Duration(others + min(l.Interval()/2, Instant(time.Second)))
}
