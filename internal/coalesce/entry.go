package coalesce

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// An Entry is a Change on its way through its record. It is used once.
type Entry struct {
	// Set by the caller, before [Table.Ask].
	Key      string // of the record
	Change   Change
	Patience int  // races that it may lose beyond those that no sound backend loses
	Cached   bool // a record on which the change stands goes into the Blocks
	Precedes bool // another Entry follows on the same record, see Follow

	// The result. The caller may read it when the Entry has ended, that is unless it
	// was left, or when Wait has returned true.
	Err       error // why it failed; nil: it was carried out, or stands
	Note      error // what failed all the same
	Unknown   bool  // it failed, and may have been carried out
	LostRaces int   // how often it was decided anew as another process was faster

	// Set by Ask if ctx ended before the Entry had.
	Left   error // the error of ctx
	Unsent bool  // it was never sent, and never will be

	coalescer *coalescer
	round     *Round
	ended     bool // its result is known; guarded by coalescer.mu

	// Of the exchange under way, or the last one.
	record  record.Record // as Apply has left it
	store   bool          // what Apply has returned
	decided record.Instant

	lostAt    time.Time     // when it lost its last race
	contended time.Duration // how long it has been losing races, see racesInTimeout
	arriving  bool          // an earlier write of it was lost, and may still arrive
	doubted   bool          // an earlier write of it may have been carried out
	hopeless  bool          // then it is not to be tried again
	refused   bool          // its last write was refused, and will not be carried out

	assessed sighting // the record that it was decided on, or that the Entry before it was
}

// Follow makes e, which is not asked for yet, the next one after first, which has
// preceded it and has ended. If nobody has changed the record since, e needs no read.
func (e *Entry) Follow(first *Entry) {
	e.LostRaces, e.assessed = first.LostRaces, first.assessed
}

// Failed returns why e was not carried out, or nil.
func (e *Entry) Failed() error {
	if e.Left != nil {
		return e.Left
	}
	return e.Err
}

// Tried reports whether a write of e may have been carried out.
func (e *Entry) Tried() bool { return e.store && !e.refused }

// Unsure reports whether e, which has ended, may have been carried out though it failed, or
// carried out twice unless that changes nothing.
func (e *Entry) Unsure() bool { return e.Unknown || e.doubted || e.Err != nil && e.arriving }

// Wait returns true when e, which was left, has ended, or false when ctx ends.
func (e *Entry) Wait(ctx context.Context) bool { return e.round.wait(ctx) }

// Idle reports whether no other goroutine uses e any more.
func (e *Entry) Idle() bool {
	return e.Left == nil && (e.round == nil || e.round.Idle())
}

// apply decides e on r, which stays as it is.
func (e *Entry) apply(now record.Instant, r *record.Record) {
	e.record, e.decided = *r, now
	e.store = e.Change.Apply(now, &e.record)
}

// doubt notes that an earlier write of e may have been carried out.
func (e *Entry) doubt() {
	if !e.doubted {
		e.doubted = true
		again, twice := e.Change.Doubt()
		e.hopeless = !again
		if twice {
			e.Note = ErrLostAnswer
		}
	}
}

// A Round is a number of Entries that are sent together and waited for.
type Round struct {
	Entries []*Entry // while they are asked about
	Firm    bool     // is carried out even if the caller leaves
	Scratch *Scratch // for what Ask takes; nil: none

	pending atomic.Int32                  // how many entries have not ended, and 1 more until that is told
	done    atomic.Pointer[chan struct{}] // closed when there are none
}

// Scratch is the memory that asking takes besides Entries and Round. It may be used
// again when its Round is idle.
type Scratch struct{ led []exchange.Exchange }

// Clear drops what s refers to.
func (s *Scratch) Clear() {
	if cap(s.led) > maxLed {
		s.led = nil
	}
}

// exchanges returns an empty list for n exchanges.
func (s *Scratch) exchanges(n int) []exchange.Exchange {
	if s == nil || n > cap(s.led) {
		return make([]exchange.Exchange, 0, n)
	}
	return s.led[:0]
}

// reuse keeps the memory of led, which is not used any more.
func (s *Scratch) reuse(led []exchange.Exchange) {
	if s != nil {
		clear(led)
		s.led = led
	}
}

// maxLed is how many exchanges a Scratch keeps the memory for.
const maxLed = 64

// ended notes that one entry has ended.
func (r *Round) ended() {
	if r.pending.Add(-1) > 1 {
		return
	}
	if done := r.done.Load(); done != nil {
		close(*done)
	}
	r.pending.Add(-1)
}

// begin has the round wait for n entries.
func (r *Round) begin(n int) { r.pending.Store(int32(n) + 1) }

// over reports whether all entries have ended.
func (r *Round) over() bool { return r.pending.Load() <= 1 }

// Idle reports whether no other goroutine touches r any more.
func (r *Round) Idle() bool { return r.pending.Load() == 0 }

// wait returns true when all entries have ended, or false when ctx is done.
func (r *Round) wait(ctx context.Context) bool {
	if r.over() {
		return true
	}
	if r.done.Load() == nil {
		done := make(chan struct{})
		r.done.CompareAndSwap(nil, &done)
	}
	if r.over() {
		return true // the last may have ended too early to see the channel
	}
	select {
	case <-*r.done.Load():
		return true
	case <-ctx.Done():
		return r.over()
	}
}
