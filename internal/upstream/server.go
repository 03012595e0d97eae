// Package upstream is what a client of record servers knows of each of them, whatever it
// speaks with them: whether the server answers, how calls of it have ended, and what it has
// forgotten.
package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Server is one server, with a circuit breaker. It is made by [New].
type Server struct {
	Config
	Counts Counts
	Memory Memory

	failures atomic.Int64 // in a row
	last     atomic.Pointer[error]
	down     atomic.Pointer[error] // why it is left alone; nil: it is not
	gone     chan struct{}         // closed by Leave

	mu      sync.Mutex // held while down changes; guards what follows
	probing bool
	left    bool
}

// A Config is what a Server is made of.
type Config struct {
	Name     string
	Failures int                       // in a row mean that it is down
	Pause    time.Duration             // between two probes
	Wrap     func(error) error         // makes an error that names the server
	Probe    func() (answered bool)    // asks it, while it is down
	Opened   func()                    // is called when it is taken to be down; nil: nothing is
	Go       func(func())              // starts a goroutine; nil: go does
	News     *News                     // to which outages are added
	Changed  func(string, bool, error) // is told of them
}

// ErrDown is wrapped in the error of a call while its server is left alone.
var ErrDown = errors.New("taken to be down")

// Counts count how calls have ended.
type Counts struct {
	Calls, Failures, Refusals, Retries, Overloads atomic.Uint64
}

// Positive returns option, or its default if it is zero or less.
func Positive[T cmp.Ordered](option, byDefault T) T {
	var zero T
	if option > zero {
		return option
	}
	return byDefault
}

// New returns a Server that is not down.
func New(c Config) *Server { return &Server{Config: c, gone: make(chan struct{})} }

// Inside returns s, also of what s is embedded in.
func (s *Server) Inside() *Server { return s }

// Admit counts a call, and returns why none may be made, or nil.
func (s *Server) Admit() error {
	s.Counts.Calls.Add(1)
	if down := s.Down(); down != nil {
		s.Counts.Refusals.Add(1)
		return down
	}
	return nil
}

// Down returns why the server is left alone, or nil.
func (s *Server) Down() error {
	if down := s.down.Load(); down != nil {
		return *down
	}
	return nil
}

// Last returns the last failure, or nil.
func (s *Server) Last() error {
	if last := s.last.Load(); last != nil {
		return *last
	}
	return nil
}

// Answered notes that the server answers, which ends an outage.
func (s *Server) Answered() {
	if s.failures.Load() == 0 && s.down.Load() == nil {
		return
	}
	s.failures.Store(0)
	s.turn(nil)
}

// Failed notes so many failures, of which err is the reason. If there are too many in a row,
// the server is left alone, but for probes. No lock may be held.
func (s *Server) Failed(failures int, err error) {
	s.Blame(err)
	if s.failures.Add(int64(failures)) >= int64(s.Failures) {
		s.turn(s.Wrap(fmt.Errorf("%w, the last failure: %v", ErrDown, err)))
	}
}

// Blame notes err as the last failure.
func (s *Server) Blame(err error) { s.last.Store(&err) }

// turn notes that the server is down or, with nil, that it is not.
func (s *Server) turn(down error) {
	if !s.turned(down) {
		return
	}
	if down != nil && s.Opened != nil {
		s.Opened()
	}
	s.News.Tell(s.Changed)
}

// turned is turn, and reports whether that is new. A server that has left is not down again
// for what is still under way.
func (s *Server) turned(down error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.down.Load() == nil) == (down == nil) || down != nil && s.left {
		return false
	}
	s.News.Note(s.Name, down)
	if down == nil {
		s.down.Store(nil)
		return true
	}
	s.down.Store(&down)
	if !s.probing {
		s.probing = true
		s.start(s.probe)
	}
	return true
}

func (s *Server) start(f func()) {
	if s.Go == nil {
		go f()
		return
	}
	s.Go(f)
}

// probe finds out when the server is back, so that no caller has to wait for that. It returns
// then, or when nobody needs the server any more.
func (s *Server) probe() {
	pause := time.NewTimer(s.Pause)
	defer pause.Stop()
	for s.wanted() {
		select {
		case <-pause.C:
		case <-s.gone:
			continue
		}
		if s.Probe() {
			s.Answered()
		}
		pause.Reset(s.Pause)
	}
}

// wanted reports whether there is anything left to find out. If not, the next outage starts
// another probe.
func (s *Server) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = s.down.Load() != nil && !s.left
	return s.probing
}

// Leave ends the probes and, if the program is to be told so, the outage. The server is not
// taken to be down any more.
func (s *Server) Leave(tell bool) {
	s.mu.Lock()
	left := s.left
	s.left = true
	s.mu.Unlock()
	if !left {
		close(s.gone)
	}
	if tell {
		s.turn(nil)
	}
}
