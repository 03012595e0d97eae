package pool

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/losses"
	"github.com/adaptivethrottler/throttler/internal/outage"
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

	isMemcached atomic.Bool // it has given its version once
	noMetaSets  atomic.Bool // it has refused one

	outage outage.Server
	probes probes
	memory losses.Memory
}

// options are a Pool's, with the defaults put in.
type options struct {
	timeout, dialTimeout, queueTimeout time.Duration
	breakerPause                       time.Duration
	maxValue                           int
	user, password                     string
	proxy                              bool
	dialContext                        func(ctx context.Context, network, address string) (net.Conn, error)
	stateChanged                       func(server string, down bool, err error)
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
		stateChanged: p.StateChanged,
	}
	if s.dialContext == nil {
		s.dialContext = s.dialer().DialContext
	}
	s.outage = outage.Server{Name: s.name, News: &p.news}
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

// dialer returns what connects to s by default. It tries IPv4 early enough if IPv6 leads nowhere.
func (s *server) dialer() *net.Dialer { return &net.Dialer{FallbackDelay: s.dialTimeout / 4} }

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
