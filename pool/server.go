package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/sony/gobreaker/v2"
)

// A server is one memcached: its client, its connections and its breaker.
type server struct {
	name string
	addr address

	// Options, set by init.
	timeout, dialTimeout time.Duration
	maxIdleConns         int
	dialContext          func(ctx context.Context, network, address string) (net.Conn, error)

	client  *memcache.Client
	breaker *gobreaker.CircuitBreaker[struct{}]
	down    atomic.Pointer[ServerError] // the error while the breaker is open; never nil then
	tripped atomic.Bool                 // the breaker has opened and cut is still to be called
	last    atomic.Pointer[ServerError] // the last failure that the breaker counted

	generation atomic.Uint64 // counts purges, so that one restart causes one

	calls, failures, refusals, retries atomic.Uint64

	closing    context.Context // ended by close
	endClosing context.CancelCauseFunc

	mu      sync.Mutex
	life    context.Context // ended by cut, and replaced; guarded by mu
	endLife context.CancelCauseFunc
	conns   map[*conn]struct{} // all that are open; guarded by mu
}

func (s *server) init(p *Pool) {
	s.timeout = positive(p.Timeout, DefaultTimeout)
	s.dialTimeout = positive(p.DialTimeout, DefaultDialTimeout)
	s.maxIdleConns = positive(p.MaxIdleConns, DefaultMaxIdleConns)
	s.dialContext = p.DialContext
	if s.dialContext == nil {
		s.dialContext = new(net.Dialer).DialContext
	}
	s.conns = make(map[*conn]struct{})
	s.closing, s.endClosing = context.WithCancelCause(context.Background())
	s.life, s.endLife = context.WithCancelCause(s.closing)
	s.client = s.newClient()

	failures := uint32(positive(p.BreakerFailures, DefaultBreakerFailures))
	s.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,
		Timeout:       positive(p.BreakerPause, DefaultBreakerPause),
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		IsSuccessful:  s.answered,
		IsExcluded:    func(err error) bool { return errors.Is(err, ErrClosed) },
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

func (s *server) newClient() *memcache.Client {
	c := memcache.NewFromSelector(s.addr)
	c.Timeout = s.timeout
	c.MaxIdleConns = s.maxIdleConns
	c.DialContext = s.dial
	return c
}

// read makes one call of the server that changes nothing.
func (s *server) read(op func(*memcache.Client) error) error {
	return s.call(func() error {
		_, err := s.try(op)
		return err
	})
}

// write makes one call of the server that changes what it has.
func (s *server) write(op func(*memcache.Client) error) error {
	return s.call(func() error {
		again, err := s.try(op)
		if again && isAnswer(err) {
			return &LostAnswerError{err}
		}
		return err
	})
}

// call runs try unless the server is taken to be down.
func (s *server) call(try func() error) error {
	s.calls.Add(1)
	_, err := s.breaker.Execute(func() (struct{}, error) { return struct{}{}, try() })
	if err == nil || isAnswer(err) {
		return err
	}
	return s.failure(err)
}

// try runs op, and once more if the connection was lost on the way. again says
// that the server may have carried out the first op too.
//
// Whatever op is, it is safe to repeat; see the package's notes on lost answers.
// A connection may be lost in use as well as while it was idle: to fail then
// would lose a hit that is perhaps stored, or have a caller fail open. But a
// server that did not answer in time is not asked again, which would only make
// the caller wait twice.
func (s *server) try(op func(*memcache.Client) error) (again bool, err error) {
	err = op(s.client)
	var lost *lostError
	if err == nil || isAnswer(err) || !errors.As(err, &lost) {
		return false, err
	}
	s.purge(lost.generation)
	s.retries.Add(1)
	// A client of its own, since s.client may have another connection that is
	// lost too: one that was in use during the purge.
	fresh := s.newClient()
	defer fresh.Close()
	return lost.sent, op(fresh)
}

// isAnswer reports whether err is memcached's ordinary answer. Such errors are
// not wrapped in a ServerError: they are none, and often compared by ==.
func isAnswer(err error) bool {
	switch err {
	case memcache.ErrCacheMiss, memcache.ErrNotStored, memcache.ErrCASConflict:
		return true
	}
	_, again := err.(*LostAnswerError)
	return again
}

// answered reports whether the server is there, as far as err tells: whether it
// is an answer in memcached's language. An error that the server reports is one: a
// value too large or a full memory is no reason to leave the server alone, which
// still has bans to tell; and a proxy reports so what befell one of the servers
// behind it, while the others answer.
//
// The breaker calls it under its lock with each error that it counts.
func (s *server) answered(err error) bool {
	if err == nil || isAnswer(err) || isComplaint(err) {
		return true
	}
	s.last.Store(&ServerError{Server: s.name, Err: err})
	return false
}

// isComplaint reports whether err is an error that the server reported, of which
// memcache.Client quotes the line at the end of its own.
func isComplaint(err error) bool {
	text, unexpected := strings.CutPrefix(err.Error(), "memcache: unexpected ")
	if !unexpected {
		return false
	}
	_, line, _ := strings.Cut(text, `: "`)
	for _, start := range []string{"SERVER_ERROR", "CLIENT_ERROR", "ERROR"} {
		if strings.HasPrefix(line, start) {
			return true
		}
	}
	return false
}

// changed is called by the breaker, under its lock.
func (s *server) changed(_ string, _, to gobreaker.State) {
	if to == gobreaker.StateOpen {
		s.down.Store(&ServerError{Server: s.name, Err: fmt.Errorf("%w, the last failure: %v", ErrDown, s.last.Load().Err)})
		s.tripped.Store(true)
	}
}

// errCut is why calls end that hang while the breaker opens.
var errCut = errors.New("cut")

// failure returns the error of a call that failed.
func (s *server) failure(err error) error {
	switch {
	case errors.Is(err, ErrClosed):
		return ErrClosed
	case err == gobreaker.ErrOpenState, err == gobreaker.ErrTooManyRequests:
		s.refusals.Add(1)
		return s.down.Load()
	case errors.Is(err, errCut):
		s.failures.Add(1)
		return s.down.Load()
	}
	s.failures.Add(1)
	if s.tripped.CompareAndSwap(true, false) {
		// Calls that began later than those that failed would wait for their own
		// timeout although it is known by now that nobody will answer.
		s.cut(errCut)
	}
	return &ServerError{Server: s.name, Err: err}
}

// get is Get for a key of this server.
func (s *server) get(key string) (*memcache.Item, error) {
	var item *memcache.Item
	err := s.read(func(c *memcache.Client) (err error) {
		item, err = c.Get(key)
		if err == nil && item.Key != key {
			return s.strayed(item.Key)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return item, nil
}

// strayed returns the error of an answer to another question. The connection it
// came from is idle again, and would answer the next request as wrongly: it is
// as good as lost.
func (s *server) strayed(key string) error {
	return &lostError{otherKey(key), s.generation.Load(), true}
}

func (s *server) close() {
	s.endClosing(ErrClosed)
	s.cut(ErrClosed)
}
