package record

import (
	"math"
	"time"
)

// The units that the times of a window are stored in, and how many hits it may
// take in the finer one, which needs 5 bytes a hit where the coarser needs 3
// (in 5 minutes). A time is rounded up, so that no hit ends early by it.
const (
	fine   = Instant(time.Nanosecond)
	coarse = Instant(100 * time.Microsecond)

	maxFine = 32
)

// unitFor returns the unit for a window of max hits.
func unitFor(max int) Instant {
	if max <= maxFine {
		return fine
	}
	return coarse
}

// A list is what [expiries] and [cells] have in common: stored hits, oldest first.
type list struct {
	unit    Instant // of last: fine, coarse, or the length of a cell
	ttl     uint64  // the longest TTL that one of the hits was counted under, in ticks
	last    uint64  // when the last of the hits expires
	entries []byte  // the low bytes of each time; or how many hits each cell has
}

// tick returns the unit of ttl, and of the times that a [Hit] is found by. It is no longer
// than coarse: a cell has the hits of many calls.
func (l *list) tick() Instant { return min(l.unit, coarse) }

// ticks returns t in a unit, rounded up.
func ticks(t, unit Instant) uint64 {
	t = max(t, 0)
	switch {
	case unit == fine:
		return uint64(t)
	case unit > coarse:
		return uint64(min(t, math.MaxInt64-unit)+unit-1) / uint64(unit)
	}
	return uint64(min(t, math.MaxInt64-coarse)+coarse-1) / uint64(coarse) // a constant needs no division
}

// up returns t in the unit of l, rounded up.
func (l *list) up(t Instant) uint64 { return ticks(t, l.unit) }

// rounded returns t as it would be stored in l.
func (l *list) rounded(t Instant) Instant {
	return Instant(l.up(t)) * l.unit
}

// latest returns when a hit that is counted at now to expire at expiry does so, as stored in l.
// A cell may be shorter than those of l: one of the hit's own TTL.
func (l *list) latest(now, expiry Instant) Instant {
	unit := l.unit
	if unit > coarse {
		unit = min(unit, cellFor(ticks(expiry-now, coarse)))
	}
	return Instant(ticks(expiry, unit)) * unit
}

// named returns what a [Hit] calls a hit of l that expires at t.
func (l *list) named(t Instant) Instant {
	return Instant(ticks(t, l.tick())) * l.tick()
}

// longest returns the longest TTL that one of the hits was counted under.
func (l *list) longest() Instant {
	return Instant(l.ttl) * l.tick()
}

// reach returns how far the last hit may be ahead of the time at which it was counted.
func (l *list) reach() uint64 { return l.up(l.longest()) + 1 }
