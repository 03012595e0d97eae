package throttler

import (
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/slots"
)

const (
	MaxStalls = slots.MaxStalls
	MaxLosses = slots.MaxLosses
)

var (
	ErrStalled = slots.ErrStalled
	CutShort   = cutShort
)

// WaitLines returns how many lines there are of calls that wait for th.
func WaitLines(th *Throttler) int { return th.queue.Len() }

// Queued returns how many entries wait for the next exchange of key.
func Queued(th *Throttler, key string) int { return th.backend().Queued(key) }

// Slots returns how many records th has slots for, and how many of them are of
// records that are asked about.
func Slots(th *Throttler) (all, used int) { return th.backend().Size() }

// Records returns the number of records that s keeps.
func Records(s *Simulation) int { return len(s.records) }

// SetBack has l find what a clock that is set back by d would: all of its times are that much
// later than they were. Its timers go on.
func SetBack(l *Lease, d time.Duration) {
	l.t.holds.mu.Lock()
	defer l.t.holds.mu.Unlock()
	for _, s := range l.stakes {
		s.end += record.Instant(d)
	}
	l.until.Add(int64(d))
}
