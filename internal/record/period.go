package record

import (
	"math"
	"time"
)

// A Unit is the length of a calendar period.
type Unit uint8

const (
	Day Unit = iota
	Week
	Month
)

// Bounds are when a period begins, and when the next one does.
type Bounds struct{ Start, End Instant }

// Near are the period of a time, and the next one. They are looked up before a call waits for its
// record, so that no time zone, which the program has made, is read under the lock of that.
type Near [2]Bounds

// A Period says where the periods of a calendar limit begin. The zero Period is days in
// UTC.
type Period struct {
	Unit     Unit
	Anchor   uint8          // the day of the week (1 is Monday) or month that a period begins on; 0: 1
	Location *time.Location // nil: UTC
}

// Around returns the bounds of the period that contains t.
func (p Period) Around(t Instant) Bounds {
	y, m, d := time.Unix(0, int64(t)).In(p.location()).Date()
	// Where a clock goes back across midnight, the date is one of the day before again.
	// That is part of the day that has begun, so one of these may have to be passed.
	for i := p.index(y, m, d); ; i++ {
		if b := (Bounds{p.start(i), p.start(i + 1)}); t < b.End || b.End == math.MaxInt64 {
			return b
		}
	}
}

// Near returns what the Period of a calendar comes to at now.
func (p *Period) Near(now Instant) *Near {
	if p == nil {
		p = new(Period)
	}
	this := p.Around(now)
	return &Near{this, p.Around(this.End)}
}

// index returns which period a date is in. Days and weeks are counted from a Monday in
// 1969, months from the year 0.
func (p Period) index(y int, m time.Month, d int) int {
	const beforeEpoch = 3 // the Monday before 1970 began was that many days earlier
	days := int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()/secondsOfDay) + beforeEpoch
	switch p.Unit {
	case Week:
		return floor(days-p.offset(), 7)
	case Month:
		i := 12*y + int(m) - 1
		if d < p.dayIn(y, m) {
			i--
		}
		return i
	}
	return days
}

// start returns when the period of that index begins.
func (p Period) start(i int) Instant {
	switch p.Unit {
	case Week:
		return p.firstInstant(1969, time.December, 29+7*i+p.offset())
	case Month:
		y, m := floor(i, 12), time.Month(i-12*floor(i, 12)+1)
		return p.firstInstant(y, m, p.dayIn(y, m))
	}
	return p.firstInstant(1969, time.December, 29+i)
}

const secondsOfDay = 24 * 60 * 60

// firstInstant returns the first instant of a day, which is not always at 00:00: that may
// be skipped, or come twice, where clocks are changed.
func (p Period) firstInstant(y int, m time.Month, d int) Instant {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()
	for t := time.Unix(midnight-secondsOfDay, 0).In(p.location()); ; {
		// Between two changes of the clock each day has one midnight.
		from, to := t.ZoneBounds()
		_, offset := t.Zone()
		first := time.Unix(midnight-int64(offset), 0)
		if first.Before(from) { // false for the zero Time
			first = from
		}
		// Go takes the last day of a leap year for one after its zone's last change, which
		// then is not after t: https://go.dev/issue/81583.
		if to.IsZero() || first.Before(to) || !to.After(t) {
			return instantOf(first.Unix())
		}
		t = to
	}
}

// instantOf returns the instant of a Unix time, or the closest one there is.
func instantOf(seconds int64) Instant {
	const second, last = int64(time.Second), math.MaxInt64 / int64(time.Second)
	switch {
	case seconds > last:
		return math.MaxInt64
	case seconds < -last:
		return math.MinInt64
	}
	return Instant(seconds * second)
}

// dayIn returns the anchor day of a month, which is its last one if it is too short.
func (p Period) dayIn(y int, m time.Month) int {
	lastDay := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return min(p.offset()+1, lastDay)
}

// offset returns how many days after the first one of a week or month a period begins.
func (p Period) offset() int { return int(max(p.Anchor, 1)) - 1 }

func (p Period) location() *time.Location {
	if p.Location == nil {
		return time.UTC
	}
	return p.Location
}

// Length returns the shortest and the longest time that a period may take, with an hour
// for a change of the clock.
func (p Period) Length() (shortest, longest time.Duration) {
	const day = 24 * time.Hour
	switch p.Unit {
	case Week:
		return 7*day - time.Hour, 7*day + time.Hour
	case Month:
		return 28*day - time.Hour, 31*day + time.Hour
	}
	return day - time.Hour, day + time.Hour
}

// floor returns a/b, rounded down.
func floor(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
