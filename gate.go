package throttler

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxUnderWay is the number of operations of a plain client that may be under way at
// once. Each has a connection of its own. By default memcached takes 1,024
// connections, from all processes together.
const maxUnderWay = 64

// A gate bounds the operations of a client that are under way. Further callers queue
// first-in, first-out. They wait for limit at most, and only while the server answers.
type gate struct {
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
	answers uint64     // gate.answers when the caller came
}

// enter returns nil when the caller may begin an operation. The caller ends it with
// leave. The error matches ErrOverloaded, or is that of an operation that was not
// answered while the caller waited.
func (g *gate) enter() error {
	g.mu.Lock()
	if g.take() {
		g.mu.Unlock()
		return nil
	}
	w := &arrival{pass: make(chan error, 1), answers: g.answers}
	place := g.waiting.PushBack(w)
	g.mu.Unlock()

	timer := time.NewTimer(g.limit)
	defer timer.Stop()
	select {
	case err := <-w.pass:
		return err
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-w.pass: // it came together with the timer
		return err
	default:
		g.waiting.Remove(place)
		return fmt.Errorf("%w: no turn within %v (QueueTimeout)", ErrOverloaded, g.limit)
	}
}

// tryEnter is enter for a caller that does not wait. It reports whether the caller may
// begin.
func (g *gate) tryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.take()
}

// take takes a place, if there is one. The caller holds g.mu.
func (g *gate) take() bool {
	if g.underWay == g.places {
		return false
	}
	g.underWay++
	return true
}

// leave ends an operation. err is its error, or nil. If it matches ErrUnavailable,
// callers that came since the last answer fail with it.
func (g *gate) leave(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(err, ErrUnavailable):
		g.turnAway(err)
	case !errors.Is(err, ErrOverloaded) && !isRefused(err):
		g.answers++
	}
	g.next()
}

// vacate is leave for a caller that has made no operation.
func (g *gate) vacate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next()
}

// next gives a place that has become free to the first who waits. The caller holds g.mu.
func (g *gate) next() {
	if first := g.waiting.Front(); first != nil {
		g.waiting.Remove(first)
		first.Value.(*arrival).pass <- nil
		return
	}
	g.underWay--
}

// answered returns how many operations were answered so far.
func (g *gate) answered() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answers
}

// turnAway fails all callers that came since the last answer, with err.
func (g *gate) turnAway(err error) {
	for at := g.waiting.Back(); at != nil; {
		w := at.Value.(*arrival)
		if w.answers != g.answers {
			return // all before w came earlier
		}
		earlier := at.Prev()
		g.waiting.Remove(at)
		w.pass <- err
		at = earlier
	}
}
