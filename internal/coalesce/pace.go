package coalesce

import (
	"math/rand/v2"
	"time"
)

// A pace is how a coalescer takes turns with the other processes that write its record. A coalescer
// has one from the first race that it loses until some writes have lost none.
//
// The process that has just written is the first to know the new token. Without a pause it
// would win the next race too, and all others would lose one more exchange each.
type pace struct {
	losses int           // races lost since the last write
	since  time.Time     // when the first of them was lost
	trip   time.Duration // about how long it takes to lose one
	pause  time.Duration // how long, on average, the others are left alone after a write
	until  time.Time     // the end of the last pause
}

const (
	// pausedTrips is how many exchanges long a pause is at most, on average.
	pausedTrips = 8

	// maxPause is how long a pause is at most, on average. Where exchanges take long, or
	// this process is short of processor time, it is shorter than pausedTrips.
	maxPause = 10 * time.Millisecond
)

// raceLost notes that a write was refused, as another process was faster.
func (s *coalescer) raceLost() {
	if s.pace == nil {
		s.pace = new(pace)
	}
	if s.pace.losses++; s.pace.losses == 1 {
		s.pace.since = time.Now()
	}
}

// raceWon notes that a write was stored, and begins a pause if one is due.
func (s *coalescer) raceWon() {
	p := s.pace
	if p == nil {
		return
	}
	now := time.Now()
	if p.losses > 0 {
		p.slow(now)
	} else if p.pause -= p.pause / 4; p.pause <= p.trip/8 {
		s.pace = nil
		return
	}
	if p.pause > 0 {
		p.until = now.Add(p.pause/2 + rand.N(p.pause)) // not all at the same time
	}
}

// slow lengthens the pause by a quarter of an exchange for each race that was lost.
func (p *pace) slow(now time.Time) {
	trip := min(now.Sub(p.since)/time.Duration(p.losses), maxPause)
	if p.trip > 0 {
		trip = min(trip, p.trip+p.trip/4) // it may have been this process that was slow
	}
	p.trip = trip
	p.pause = min(p.pause+trip*time.Duration(p.losses)/4, pausedTrips*trip, maxPause)
	p.losses = 0
}

// pauses reports whether s leaves its record alone for a while. If so, resume is called at
// the end.
func (s *coalescer) pauses() bool {
	if s.pace == nil {
		return false
	}
	left := time.Until(s.pace.until)
	if left <= 0 {
		return false
	}
	time.AfterFunc(left, s.resume)
	return true
}

// resume starts the exchange that a pause has put off, if it is needed still. It forgets the
// record that was assessed before: an Entry may have come after that record was changed.
func (s *coalescer) resume() {
	s.mu.Lock()
	s.assessed = sighting{}
	start := s.startsNext()
	s.mu.Unlock()
	if start {
		s.table.exchanger.Start(s)
		return
	}
	s.release(0) // all have left
}
