package throttler

import (
	"container/list"
	"fmt"
	"sync"
	"time"
)

// maxUnderWay is how many operations of a plain client are under way at once.
// Each has a connection to itself, of which memcached takes 1,024 by default,
// from all processes together.
const maxUnderWay = 64

// A gate bounds how many operations of a client are under way. What exceeds that
// waits in order, for as long as others are answered.
type gate struct {
	places int           // how many may be under way
	limit  time.Duration // how long one waits at most

	mu       sync.Mutex // guards what follows
	underWay int
	waiting  list.List // of *arrival, first come first served
	answers  uint64    // how many operations were answered
}

// An arrival is a caller that waits.
type arrival struct {
	pass    chan error // takes one value: nil to pass, or why not
	answers uint64     // of the gate, when it came
}

// enter returns nil when the caller may begin an operation, which it ends with
// leave. Otherwise the error says why not: it matches ErrOverloaded, or is that
// of an operation which was not answered while the caller waited.
func (g *gate) enter() error {
	g.mu.Lock()
	if g.underWay < g.places {
		g.underWay++
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
	case err := <-w.pass: // in the same moment
		return err
	default:
		g.waiting.Remove(place)
		return fmt.Errorf("%w: no turn within %v", ErrOverloaded, g.limit)
	}
}

// leave ends an operation. unanswered is its error if the server did not answer. Then
// it is also the error of all callers that came since the server last answered.
func (g *gate) leave(unanswered error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if unanswered == nil {
		g.answers++
	} else {
		g.turnAway(unanswered)
	}
	if first := g.waiting.Front(); first != nil {
		g.waiting.Remove(first)
		first.Value.(*arrival).pass <- nil
		return
	}
	g.underWay--
}

// turnAway ends the waiting of all callers that came since the server last answered.
func (g *gate) turnAway(err error) {
	for at := g.waiting.Back(); at != nil; {
		w := at.Value.(*arrival)
		if w.answers != g.answers {
			return // and all before came earlier still
		}
		earlier := at.Prev()
		g.waiting.Remove(at)
		w.pass <- err
		at = earlier
	}
}
