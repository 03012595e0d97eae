package pool

import (
	"context"
	"errors"
	"fmt"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/adaptivethrottler/throttler/internal/upstream"
)

// ended notes how a request has ended, and returns its error as callers see it.
func (s *server) ended(err error, probe bool) error {
	switch {
	case probe: // of no call
		if isFailure(err) {
			s.Blame(err)
		}
		return err
	case err == nil:
		s.Answered()
		return nil
	case errors.Is(err, ErrClosed):
		return ErrClosed
	case errors.Is(err, failure.ErrOverloaded):
		s.Counts.Overloads.Add(1)
	case errors.Is(err, errCut):
		s.Counts.Failures.Add(1)
		return s.downOr(err)
	default:
		s.Counts.Failures.Add(1)
		if isComplaint(err) {
			s.Answered()
		}
	}
	return s.Wrap(err)
}

// downOr returns why the server is taken to be down. If it is back already, it is
// err.
func (s *server) downOr(err error) error {
	if down := s.Down(); down != nil {
		return down
	}
	return s.Wrap(fmt.Errorf("%w: %w", upstream.ErrDown, err))
}

// failed counts failures that have the same cause, and ends all other calls if they are too
// many: those that began later would wait for their own timeouts although it is known by now
// that no answer will come. No lock is held.
func (s *server) failed(failures int, err error) {
	if isFailure(err) {
		s.Failed(failures, err)
	}
}

// isFailure reports whether err is one of the server: it has not answered, and the call was not
// cut off by another failure.
func isFailure(err error) bool {
	return err != nil && !isExcluded(err) && !isComplaint(err) && !errors.Is(err, errCut)
}

// cut ends all calls that are under way, with their connections. What comes after
// gets new ones.
func (s *server) cut(reason error) {
	for _, l := range s.links {
		l.cut(reason)
	}
}

// close ends all calls that are under way, and the probes.
func (s *server) close() {
	s.Leave(false)
	s.cut(ErrClosed)
}

// probeKey is read to find out whether a server answers. It holds nothing.
const probeKey = "throttler#probe"

// probe reads a key from s as a call would, and reports whether it has answered. A new
// connection has been asked for its version before.
func (s *server) probe() bool {
	var latch fanout.Latch
	latch.Hold(1)
	r := &request{latch: &latch, key: probeKey, reads: true, link: s.link(probeKey), probe: true}
	if err := r.link.submit([]*request{r}); err != nil {
		r.finish(err)
	}
	latch.Wait(context.Background())
	return r.err == nil || isComplaint(r.err) || errors.Is(r.err, failure.ErrNoCAS)
}
