package record

import (
	"math"
	"time"
)

// A list is what [expiries] and [cells] have in common: stored hits, oldest first. Its times
// are whole units, rounded up, so that no hit ends early by it.
type list struct {
	unit    Instant // of last: the length of a cell; of expiries it is 0, for 1 ns
	ttl     Instant // the longest time that one of the hits was counted for
	last    uint64  // when the last of the hits expires
	entries []byte  // the low bytes of each time; or how many hits each cell has
}

// ticks returns t in a unit, rounded up.
func ticks(t, unit Instant) uint64 {
	if t = max(t, 0); unit <= 1 {
		return uint64(t)
	}
	return uint64(min(t, math.MaxInt64-unit)+unit-1) / uint64(unit)
}

// up returns t in the unit of l, rounded up.
func (l *list) up(t Instant) uint64 { return ticks(t, l.unit) }

// instant returns when a time in the unit of l is.
func (l *list) instant(t uint64) Instant { return Instant(t) * max(l.unit, 1) }

// latest returns when a hit that is counted at now to expire at expiry does so, as stored in l.
// A cell may be shorter than those of l: one of the hit's own TTL.
func (l *list) latest(now, expiry Instant) Instant {
	if l.unit == 0 {
		return expiry
	}
	unit := min(l.unit, cellFor(expiry-now))
	return Instant(ticks(expiry, unit)) * unit
}

// honest returns whether a hit that expires at t may be of a clock that is no later than now:
// one of l was counted for as long. A unit more is what rounding up may add.
func (l *list) honest(t, now Instant) bool {
	return t <= now.Add(time.Duration(l.ttl)).Add(time.Duration(max(l.unit, 1)))
}

// reach returns how far the last hit may be ahead of the time at which it was counted.
func (l *list) reach() uint64 { return l.up(l.ttl) + 1 }
