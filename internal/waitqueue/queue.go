package waitqueue

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"
)

const (
	// MaxWaiting is the number of calls that may wait for one record.
	MaxWaiting = 10_000

	// maxNap is the longest sleep of a waiter that is first in line before it
	// tries again: another process may have opened the limit early.
	maxNap = time.Minute

	// maxSoonerNap is maxNap where hits are given back as a rule.
	maxSoonerNap = time.Second

	// minNap is its shortest sleep, after a refusal without a RetryAfter.
	minNap = time.Millisecond

	// patience is the number of turns that a waiter misses, because another of
	// its records is full, before it holds its position in all its lines.
	patience = 3
)

// ErrFull matches, by errors.Is, the error of a call that comes when MaxWaiting others wait
// for the same record.
var ErrFull = errors.New("the line is full")

// A Want is what a call wants of one record.
type Want struct {
	Key      string        // of the record
	Name     string        // of the condition, for errors
	Needed   int           // hits for which it waits, 1 or more
	Cost     int           // hits that it takes at most
	Max      int           // hits that the record holds
	Leaks    bool          // room comes back hit by hit, one every Interval; else all of it after TTL
	Interval time.Duration // of what leaks: TTL/Max
	TTL      time.Duration // how long a hit takes up its room
	Longest  time.Duration // if it may be longer; 0: TTL
	Sooner   bool          // a hit may be given back at any time before, also by other processes
}

// lifetime returns how long a call takes up its room.
func (w *Want) lifetime() time.Duration {
	if w.Leaks {
		return times(w.Cost, w.Interval)
	}
	return max(w.TTL, w.Longest)
}

// share returns in how much time there is room for a call at an even rate: as much of the time
// that a hit takes up its room as its hits are of Max.
func (w *Want) share() time.Duration {
	high, low := bits.Mul64(uint64(max(w.TTL, w.Longest)), uint64(w.Cost))
	d, rest := bits.Div64(high, low, uint64(w.Max))
	return time.Duration(d + min(rest, 1))
}

// A Seen is what a try has found of one record.
type Seen struct {
	Unasked    bool // it has not come to this record: nothing else is set
	Blocked    bool
	Failed     bool // nothing is known: neither the backend nor a fallback has decided
	Remaining  int
	RetryAfter time.Duration // until there is room for another hit, or for the call if it was blocked
}

// A Queue holds the waiting calls of one program, in a line for each record that calls
// wait for. It starts no goroutine. Each waiter sleeps on its own goroutine, asks
// [Queue.Next] what to do, tries, and says in [Queue.Report] what it has found.
//
// A waiter of any record stands in one line at a time: that of the record that opens last,
// as far as is known. A waiter for one of several stands in all its lines. In every line,
// lower tickets come first.
//
// The zero Queue is empty.
type Queue struct {
	mu     sync.Mutex       // guards what follows, and all lines and waiters except Waiter.signals
	ticket uint64           // the last one given
	wakes  uint64           // counts the calls of Wake
	lines  map[string]*line // by the key of the record

	openings openings // of records that were full when last seen
}

// A line is the queue for one record.
type line struct {
	key      string
	wanted   int       // waiters that want the record, in whichever line they stand; at 0 the line is removed
	standing []*Waiter // by ticket
	hits     sum       // what all of standing need together

	opening           // by the last try of a waiter
	ask     time.Time // when the first waiter tries: when it opens, or after maxNap
	woken   uint64    // Queue.wakes at the last Wake of this line
}

// A Waiter is one call that may have to wait.
type Waiter struct {
	wants  []Want
	oneOf  bool // room in one record is enough
	always bool // goes through whatever its tries find

	ticket    uint64
	tried     bool          // it has tried once, as a new call
	positions []position    // one for each want; nil until it has to wait
	signals   chan struct{} // holds a token if it must ask Next again
	wakes     uint64        // Queue.wakes when it last asked Next

	missed int       // turns at which another record was full
	hold   *line     // the line in which it is first and waits; nil if it is not first
	until  time.Time // when hold opens
}

// Signals returns the channel that gets a value when the waiter must ask Next again.
func (w *Waiter) Signals() <-chan struct{} { return w.signals }

// A position is that of a waiter in one line.
type position struct {
	line    *line
	want    *Want
	stands  bool
	unasked bool // the last try has not come to it
}

// Arrive returns a waiter for a new call. With oneOf, room in one of the records is
// enough for it, otherwise it needs all. With always it never waits.
func (q *Queue) Arrive(wants []Want, oneOf, always bool) *Waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ticket++
	return &Waiter{ticket: q.ticket, wants: wants, oneOf: oneOf, always: always}
}

// Next tells w what to do. If nap is 0, try. If it is positive, sleep for that long or
// until signaled. If it is negative, sleep until signaled. With an error, give up: the
// deadline is too early, or too many calls wait.
func (q *Queue) Next(ctx context.Context, w *Waiter) (nap time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	w.wakes = q.wakes
	if w.always || !w.tried && w.positions == nil && q.free(w, now) {
		w.tried = true
		return 0, nil
	}
	if err := q.enter(w); err != nil {
		return 0, err
	}
	nap = w.stand(now)
	if deadline, ok := ctx.Deadline(); ok && nap != 0 {
		if opens := w.opens(now); !opens.Before(deadline) && !w.maySooner() {
			return 0, tooLate(opens, now)
		}
	}
	return nap, nil
}

// free reports whether w, a new call, may try before any waiter.
func (q *Queue) free(w *Waiter, now time.Time) bool {
	if len(q.lines) == 0 {
		return true
	}
	for i := range w.wants {
		want := &w.wants[i]
		l := q.lines[want.Key]
		if free := l == nil || l.free(w, want, now); free == w.oneOf {
			return free
		}
	}
	return !w.oneOf
}

// enter gives w a position in the lines of its records, unless it has them.
func (q *Queue) enter(w *Waiter) error {
	if w.positions != nil {
		return nil
	}
	positions := make([]position, len(w.wants))
	for i := range positions {
		want := &w.wants[i]
		l := q.lines[want.Key]
		if l == nil {
			l = &line{key: want.Key, woken: q.wakes} // perhaps by one of the wakes since w began to try
		} else if l.wanted >= MaxWaiting {
			return fmt.Errorf("%w: %d calls already wait for %q, try again later", ErrFull, l.wanted, want.Name)
		}
		positions[i] = position{line: l, want: want}
	}
	if q.lines == nil {
		q.lines = make(map[string]*line)
	}
	for i := range positions {
		l := positions[i].line
		q.lines[l.key] = l
		l.wanted++
	}
	w.positions, w.signals = positions, make(chan struct{}, 1)
	return nil
}

// Leave takes w out of all lines. It may be called again.
func (q *Queue) Leave(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(w)
}

func (q *Queue) remove(w *Waiter) {
	for i := range w.positions {
		p := &w.positions[i]
		w.quit(p)
		if p.line.wanted--; p.line.wanted == 0 {
			delete(q.lines, p.line.key)
		}
	}
	w.positions = nil
}

// Wake has the first waiters for the records with these keys try at once, because this
// process has changed the records: it has taken back hits, or set or lifted bans.
func (q *Queue) Wake(keys ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.wakes++
	for _, key := range keys {
		q.openings.forget(key)
		if l := q.lines[key]; l != nil {
			l.woken = q.wakes
			l.told(opening{now, 1, false}, now)
			l.signal(nil)
		}
	}
}

// Report takes what a try of w has found, one Seen for each want, and whether it was
// authorized. It reports whether w may go, and is out of all lines. If it may not although
// it was authorized, the limits failed open too early.
func (q *Queue) Report(w *Waiter, authorized bool, seen []Seen) (through bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.always {
		return true
	}
	now := time.Now()
	through = authorized && q.pace(w, seen, now)
	if through {
		q.remove(w)
	} else if q.enter(w) != nil {
		return false // Next returns this error too
	}
	for i := range w.positions {
		w.positions[i].unasked = seen[i].Unasked
	}
	for i := range seen {
		if !seen[i].Unasked {
			q.learn(w, &w.wants[i], &seen[i], now)
		}
	}
	return through
}

// learn notes what w has seen of the record that it wants, for the waiters in that line.
func (q *Queue) learn(w *Waiter, want *Want, seen *Seen, now time.Time) {
	if seen.RetryAfter == 0 && len(q.lines) == 0 && q.openings.none() {
		return // the usual case
	}
	l := q.lines[want.Key]
	stale := l != nil && l.woken > w.wakes // what was seen may be older than the change
	at := openingOf(seen, want, now)
	if seen.Failed {
		at = opening{q.openings.of(want.Key), want.Needed, want.Sooner}
	} else if !stale {
		q.openings.remember(want.Key, at.opens, now)
	}
	if l == nil {
		return
	}
	switch {
	case stale:
		l.told(opening{now, 1, false}, now)
	case w.positions == nil || l.free(w, want, now): // else a waiter before w may take more hits
		l.told(at, now)
	}
	l.signal(w)
}

// Outlook returns how long each record of w is closed to it, by the lines alone: 0 if
// nothing is known against it. retry is how long w has to wait at least if it stands in a
// line, and negative if it does not.
func (q *Queue) Outlook(w *Waiter) (closed []time.Duration, retry time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	closed = make([]time.Duration, len(w.wants))
	for i := range closed {
		want := &w.wants[i]
		l := q.lines[want.Key]
		if l == nil || l.wanted < MaxWaiting && l.free(w, want, now) && !l.ask.After(now) {
			continue
		}
		closed[i] = max(l.earliest(w, want, now).Sub(now), 1)
	}
	if w.positions == nil {
		return closed, -1
	}
	return closed, w.opens(now).Sub(now)
}

// Len returns the number of lines.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines)
}

// tooLate returns the error of a call whose deadline is before opens.
func tooLate(opens, now time.Time) error {
	return fmt.Errorf("throttler: the limit opens in %v at the earliest, after the deadline of ctx: %w", opens.Sub(now), context.DeadlineExceeded)
}
