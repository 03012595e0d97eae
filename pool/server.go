package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/cespare/xxhash/v2"
	"github.com/sony/gobreaker/v2"
)

// A server is one memcached: its connections and its breaker.
type server struct {
	name string
	addr address

	// Options, set by init.
	options
	lanes []*lane

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	down    atomic.Pointer[ServerError] // the error while the breaker is not closed, and nil while it is
	tripped atomic.Bool                 // the breaker has opened and cut is still to be called
	failing atomic.Bool                 // there was a failure, and no success since
	last    atomic.Pointer[ServerError] // the last failure that the breaker counted

	calls, failures, refusals, overloads, retries atomic.Uint64

	outages outages
	probes  probes
	memory  memory
}

// options are a Pool's, with the defaults put in.
type options struct {
	timeout, dialTimeout, queueTimeout time.Duration
	breakerPause                       time.Duration
	maxValue                           int
	user, password                     string
	proxy                              bool
	dialContext                        func(ctx context.Context, network, address string) (net.Conn, error)
}

func newServer(addr address) *server {
	return &server{name: addr.text, addr: addr, probes: probes{gone: make(chan struct{})}}
}

func (s *server) init(p *Pool) {
	s.options = options{
		timeout:      positive(p.Timeout, DefaultTimeout),
		dialTimeout:  positive(p.DialTimeout, DefaultDialTimeout),
		queueTimeout: positive(p.QueueTimeout, DefaultQueueTimeout),
		breakerPause: positive(p.BreakerPause, DefaultBreakerPause),
		maxValue:     positive(p.MaxValue, DefaultMaxValue),
		user:         p.User,
		password:     p.Password,
		proxy:        p.Proxy,
		dialContext:  p.DialContext,
	}
	if s.dialContext == nil {
		s.dialContext = new(net.Dialer).DialContext
	}
	s.outages.changed = p.StateChanged
	for range positive(p.Conns, DefaultConns) {
		s.lanes = append(s.lanes, newLane(s))
	}
	failures := uint32(positive(p.BreakerFailures, DefaultBreakerFailures))
	s.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,
		Timeout:       max(s.breakerPause-1, 1), // over when the probe comes
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		IsSuccessful:  func(err error) bool { return err == nil || isComplaint(err) || errors.Is(err, ErrNoCAS) },
		IsExcluded:    isExcluded,
		OnStateChange: s.changed,
	})
}

// positive returns option, or its default if it is zero or less.
func positive[T cmp.Ordered](option, byDefault T) T {
	var zero T
	if option > zero {
		return option
	}
	return byDefault
}

// lane returns the lane of key, always the same: what one exchange of a key learns,
// the token above all, the next one can use.
func (s *server) lane(key string) *lane {
	if len(s.lanes) == 1 {
		return s.lanes[0]
	}
	return s.lanes[xxhash.Sum64String(key)%uint64(len(s.lanes))]
}

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
	case errors.Is(err, throttler.ErrOverloaded):
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
	if isExcluded(err) || isComplaint(err) || errors.Is(err, errCut) {
		return
	}
	s.blame(err)
	s.failing.Store(true)
	for range failures {
		s.report(err)
	}
	s.announce()
}

// blame notes err as the last failure, if it is one.
func (s *server) blame(err error) {
	if err != nil && !isExcluded(err) && !isComplaint(err) && !errors.Is(err, errCut) {
		s.last.Store(&ServerError{Server: s.name, Err: err})
	}
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
		s.outages.note(down)
		s.down.Store(down)
		s.tripped.Store(true)
	case gobreaker.StateClosed:
		s.outages.note(nil)
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
	s.outages.tell(s.name)
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

// outages tells of the beginnings and ends of outages, each once and in order.
type outages struct {
	changed func(server string, down bool, err error)

	mu      sync.Mutex
	down    bool
	news    []error // nil for an end
	telling bool
}

// note notes that the server is down, because of err, or that it is back.
func (o *outages) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil && o.down != (err != nil) {
		o.down = err != nil
		o.news = append(o.news, err)
	}
}

// tell reports the news, unless another goroutine does. No lock is held while it
// does.
func (o *outages) tell(server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.telling {
		return
	}
	o.telling = true
	defer func() { o.telling = false }()
	for len(o.news) > 0 {
		err := o.news[0]
		o.news = o.news[1:]
		o.tellOne(server, err)
	}
}

// tellOne reports err without the lock, which it takes again even if that panics.
func (o *outages) tellOne(server string, err error) {
	o.mu.Unlock()
	defer o.mu.Lock()
	o.changed(server, err != nil, err)
}
