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
	Near      *Near         // what Period comes to at the time of the call; nil: Period is asked
	ID        uint64        // of the call, for its lease

	// Ahead is how long after now the hits of a window or a bucket may be spent if the call
	// takes more than it needs: MostAhead at most. They count until TTL after that.
	Ahead time.Duration

	interval amount // of a bucket, if it is prepared
}

// Prepare makes decisions by l faster.
func (l *Limit) Prepare() {
	if l.Algorithm == Bucket && l.Max > 0 {
		l.interval = l.rate().amount(1)
	}
}

// MostAhead returns the longest Ahead.
func (l *Limit) MostAhead() time.Duration { return min(l.TTL/10, time.Second) }

// farthest returns how far ahead of now the end of what lasts for length is taken for that of
// an honest clock. A ban, a lease or a bucket of such a clock is left as it is: if each caller
// whose clock is behind cut it to its own time, it would open for those whose clock is not.
func farthest(length time.Duration) time.Duration { return max(length, time.Minute) }

// bounds returns those of the period of a calendar that contains now.
func (l *Limit) bounds(now Instant) Bounds {
	if l.Near != nil {
		for _, b := range l.Near {
			if b.Start <= now && now < b.End {
				return b
			}
		}
	}
	return l.period().Around(now)
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

// spent returns when the hits of a call that took cost at now are spent at the latest: later than
// now if it took some ahead.
func (l *Limit) spent(now Instant, cost int) Instant {
	if cost > l.Needed() {
		return now.Add(l.Ahead)
	}
	return now
}

// Interval returns in how much time a hit leaks out of a bucket, rounded up.
func (l *Limit) Interval() Instant { return l.rate().amount(1).up() }

// rate returns the rate of a bucket.
func (l *Limit) rate() rate { return rate{Instant(l.TTL), uint64(l.Max)} }

// amount returns how long so many hits take to leak out of a bucket.
func (l *Limit) amount(hits int) amount {
	if hits == 1 && l.interval != (amount{}) {
		return l.interval
	}
	return l.rate().amount(uint64(hits))
}

// leftBehind returns how much longer than it should a bucket may stay closed to a call
// because of hits that were given back, see [bucket.without]: what leaks in the time
// that a call takes, with a margin.
func (l *Limit) leftBehind() time.Duration {
	others := l.amount(l.Needed() - 1).up()
	return time.Duration(others + min(l.Interval()/2, Instant(time.Second)))
}
