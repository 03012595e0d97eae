package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/sony/gobreaker/v2"
)

// admit returns nil if a call may be made, and otherwise why the server is left
// alone.
func (s *server) admit() error {
	s.calls.Add(1)
	if down := s.down.Load(); down != nil {
		s.refusals.Add(1)
		return down
	}
	return nil
}

// ended notes how a request has ended, and returns its error as callers see it.
func (s *server) ended(err error, probe func(error)) error {
	if probe != nil { // of no call
		s.blame(err)
		probe(err)
		s.announce()
		return err
	}
	switch {
	case err == nil:
		s.succeeded()
		return nil
	case errors.Is(err, ErrClosed):
		return ErrClosed
	case errors.Is(err, exchange.ErrOverloaded):
		s.overloads.Add(1)
	case errors.Is(err, errCut):
		s.failures.Add(1)
		return s.downOr(err)
	default:
		s.failures.Add(1)
		if isComplaint(err) {
			s.succeeded()
		}
	}
	return &ServerError{Server: s.name, Err: err}
}

// downOr returns why the server is taken to be down. If it is back already, it is
// err.
func (s *server) downOr(err error) error {
	if down := s.down.Load(); down != nil {
		return down
	}
	return &ServerError{Server: s.name, Err: fmt.Errorf("%w: %w", ErrDown, err)}
}

// succeeded tells the breaker that the server has answered.
func (s *server) succeeded() {
	if s.failing.Load() && s.failing.CompareAndSwap(true, false) {
		s.report(nil)
	}
}

// failed tells the breaker of failures that have the same cause, and ends all
// other calls if that opens it. No lock is held.
func (s *server) failed(failures int, err error) {
	if !s.blame(err) {
		return
	}
	s.failing.Store(true)
	for range failures {
		s.report(err)
	}
	s.announce()
}

// blame notes err as the last failure, if it is one of the server: it has not answered, and
// was not cut off by another failure. It reports whether it is.
func (s *server) blame(err error) bool {
	if err == nil || isExcluded(err) || isComplaint(err) || errors.Is(err, errCut) {
		return false
	}
	s.last.Store(&ServerError{Server: s.name, Err: err})
	return true
}

func (s *server) report(err error) {
	if done, refused := s.breaker.Allow(); refused == nil {
		done(err)
	}
}

// changed is called by the breaker, under its lock.
func (s *server) changed(_ string, _, to gobreaker.State) {
	switch to {
	case gobreaker.StateOpen:
		down := &ServerError{Server: s.name, Err: fmt.Errorf("%w, the last failure: %v", ErrDown, s.last.Load().Err)}
		s.outage.Note(down)
		s.down.Store(down)
		s.tripped.Store(true)
	case gobreaker.StateClosed:
		s.outage.Note(nil)
		s.down.Store(nil)
	}
}

// announce does what follows from a change of the breaker's state. Calls that
// began later than those that failed would wait for their own timeouts although
// it is known by now that no answer will come.
func (s *server) announce() {
	if s.tripped.CompareAndSwap(true, false) {
		s.cut(errCut)
		s.probes.begin(s)
	}
	s.outage.News.Tell(s.stateChanged)
}

// cut ends all calls that are under way, with their connections. What comes after
// gets new ones.
func (s *server) cut(reason error) {
	for _, l := range s.lanes {
		l.cut(reason)
	}
}

// close ends all calls that are under way, and the probes. It is called once.
func (s *server) close() {
	close(s.probes.gone)
	s.cut(ErrClosed)
}

// probeKey is read to find out whether a server answers. It holds nothing.
const probeKey = "throttler#probe"

// probes find out whether a server that is down is back, so that no caller has to
// wait for that. Their goroutine runs only while the server is down.
type probes struct {
	gone chan struct{} // closed when the server is not needed any more

	mu      sync.Mutex
	running bool
}

// begin has s probed until it is back, or gone. Its breaker has just opened.
func (ps *probes) begin(s *server) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if !ps.running && !ps.over(s) {
		ps.running = true
		go ps.run(s)
	}
}

func (ps *probes) run(s *server) {
	pause := time.NewTimer(s.breakerPause)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
			s.probe()
			pause.Reset(s.breakerPause)
		case <-ps.gone:
		}
		if ps.end(s) {
			return
		}
	}
}

// end reports whether there is nothing left to find out. If so, a further outage
// needs another begin.
func (ps *probes) end(s *server) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.running = !ps.over(s)
	return !ps.running
}

// over reports whether s is back, or gone.
func (ps *probes) over(s *server) bool {
	select {
	case <-ps.gone:
		return true
	default:
		return s.down.Load() == nil
	}
}

// probe reads a key from s as a call would, and tells the breaker what came of it.
// It returns when that is known. A new connection has been asked for its version
// before.
func (s *server) probe() {
	done, err := s.breaker.Allow()
	if err != nil {
		return
	}
	var latch fanout.Latch
	latch.Hold(1)
	r := &request{latch: &latch, key: probeKey, reads: true, lane: s.lane(probeKey), probe: done}
	if err := r.lane.submit([]*request{r}); err != nil {
		r.end(err)
	}
	latch.Wait(context.Background())
}
