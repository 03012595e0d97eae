package adapter

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/turns"
)

// maxUnderWay is the number of operations of a plain client that may be under way at
// once. Each has a connection of its own. By default memcached takes 1,024
// connections, from all processes together.
const maxUnderWay = 64

// turnsToEnter is how many turns of this process a caller waits in addition. In a process
// that is short of processor time, operations take turns rather than time: one to send and
// read, three if they dial, and those of some hundred callers come first.
const turnsToEnter = 200

// A turnstile bounds the operations of a client that are under way. Further callers queue
// first-in, first-out. They wait for limit at most, and only while the server answers.
type turnstile struct {
	places int           // the largest number of operations under way
	limit  time.Duration // the longest wait

	mu       sync.Mutex // guards what follows
	underWay int
	waiting  list.List // of *arrival, first-in, first-out
	answers  uint64    // the number of answered operations
}

// An arrival is a waiting caller.
type arrival struct {
	pass    chan error // takes one value: nil if the caller may begin, or an error
	answers uint64     // turnstile.answers when the caller came
}

// enter returns nil when the caller may begin an operation. The caller ends it with
// leave. The error matches failure.ErrOverloaded, or is that of an operation that was not
// answered while the caller waited.
func (ts *turnstile) enter() error {
	ts.mu.Lock()
	if ts.take() {
		ts.mu.Unlock()
		return nil
	}
	w := &arrival{pass: make(chan error, 1), answers: ts.answers}
	place := ts.waiting.PushBack(w)
	ts.mu.Unlock()

	timer := time.NewTimer(ts.limit)
	defer timer.Stop()
	select {
	case err := <-w.pass:
		return err
	case <-timer.C:
	}
	for turn := 0; turn < turnsToEnter && len(w.pass) == 0; turn++ {
		turns.Pass(1)
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	select {
	case err := <-w.pass: // it came after the timer
		return err
	default:
		ts.waiting.Remove(place)
		return fmt.Errorf("%w: no turn within %v (QueueTimeout)", failure.ErrOverloaded, ts.limit)
	}
}

// tryEnter is enter for a caller that does not wait. It reports whether the caller may
// begin.
func (ts *turnstile) tryEnter() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.take()
}

// take takes a place, if there is one. The caller holds ts.mu.
func (ts *turnstile) take() bool {
	if ts.underWay == ts.places {
		return false
	}
	ts.underWay++
	return true
}

// leave ends an operation. err is its error, or nil. If it matches failure.ErrUnavailable,
// callers that came since the last answer fail with it.
func (ts *turnstile) leave(err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	switch {
	case errors.Is(err, failure.ErrUnavailable):
		ts.turnAway(err)
	case !errors.Is(err, failure.ErrOverloaded) && !isRefused(err):
		ts.answers++
	}
	ts.next()
}

// vacate is leave for a caller that has made no operation.
func (ts *turnstile) vacate() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.next()
}

// next gives a place that has become free to the first who waits. The caller holds ts.mu.
func (ts *turnstile) next() {
	if first := ts.waiting.Front(); first != nil {
		ts.waiting.Remove(first)
		first.Value.(*arrival).pass <- nil
		return
	}
	ts.underWay--
}

// answered returns how many operations were answered so far.
func (ts *turnstile) answered() uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.answers
}

// turnAway fails all callers that came since the last answer, with err.
func (ts *turnstile) turnAway(err error) {
	for at := ts.waiting.Back(); at != nil; {
		w := at.Value.(*arrival)
		if w.answers != ts.answers {
			return // all before w came earlier
		}
		earlier := at.Prev()
		ts.waiting.Remove(at)
		w.pass <- err
		at = earlier
	}
}
