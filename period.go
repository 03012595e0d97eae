package throttler

import (
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Period says where the periods of a [Calendar] begin. The zero Period is a day in UTC.
type Period struct {
	// Unit is how long a period is. Default: [Day].
	Unit Unit

	// Anchor is the day on which a period begins: of the month (1 to 31, or the last
	// day of a shorter month), or of the week (1 is Monday, 7 is Sunday). Default: 1.
	Anchor int

	// Location is the time zone. A period begins at the first instant of its anchor
	// day there. This is midnight, or what comes instead if midnight is skipped or
	// repeated when clocks are changed. Default: UTC.
	Location *time.Location
}

// Unit is the length of a [Period]: [Day], [Week] or [Month].
type Unit int

const (
	Day Unit = iota
	Week
	Month
)

// String returns "day", "week" or "month".
func (u Unit) String() string {
	switch u {
	case Day:
		return "day"
	case Week:
		return "week"
	case Month:
		return "month"
	}
	return fmt.Sprintf("Unit(%d)", int(u))
}

// String describes p, as in "a month from day 15, Europe/Berlin".
func (p Period) String() string {
	zone := time.UTC
	if p.Location != nil {
		zone = p.Location
	}
	if p.Unit == Day {
		return fmt.Sprintf("a day, %v", zone)
	}
	return fmt.Sprintf("a %v from day %d, %v", p.Unit, max(p.Anchor, 1), zone)
}

// Bounds returns when the period that contains t begins, and when the next one does, to
// show it to users. p
// must be valid, and t before the year 2262.
func (p Period) Bounds(t time.Time) (start, end time.Time) {
	b := p.record().Around(record.InstantOf(t))
	zone := p.Location
	if zone == nil {
		zone = time.UTC
	}
	return time.Unix(0, int64(b.Start)).In(zone), time.Unix(0, int64(b.End)).In(zone)
}

// record returns p as records know it.
func (p Period) record() record.Period {
	return record.Period{Unit: record.Unit(p.Unit), Anchor: uint8(p.Anchor), Location: p.Location}
}

// lastAnchor returns the largest Anchor that p may have.
func (p Period) lastAnchor() int {
	switch p.Unit {
	case Week:
		return 7
	case Month:
		return 31
	}
	return 1
}
