package pool

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/cespare/xxhash/v2"
)

// A server is one memcached: its connections and its breaker.
type server struct {
	*upstream.Server
	addr address

	// Options, set by init.
	options
	links []*link

	isMemcached atomic.Bool // it has given its version once
	noMetaSets  atomic.Bool // it has refused one
	dismissal   *time.Timer // of one that is leaving; guarded by Pool.changing
}

// options are a Pool's, with the defaults put in.
type options struct {
	timeout, dialTimeout, queueTimeout time.Duration
	user, password                     string
	proxy                              bool
	dialContext                        func(ctx context.Context, network, address string) (net.Conn, error)
}

func newServer(addr address) *server {
	return &server{Server: upstream.New(upstream.Config{
		Name: addr.text,
		Wrap: func(err error) error { return serverError(addr.text, err) },
	}), addr: addr}
}

func (s *server) init(p *Pool) {
	s.options = options{
		timeout:      upstream.Positive(p.Timeout, defaultTimeout),
		dialTimeout:  upstream.Positive(p.DialTimeout, defaultDialTimeout),
		queueTimeout: upstream.Positive(p.QueueTimeout, defaultQueueTimeout),
		user:         p.User,
		password:     p.Password,
		proxy:        p.Proxy,
		dialContext:  p.DialContext,
	}
	if s.dialContext == nil {
		s.dialContext = s.dialer().DialContext
	}
	for range upstream.Positive(p.Conns, defaultConns) {
		s.links = append(s.links, newLink(s))
	}
	s.Failures = upstream.Positive(p.BreakerFailures, defaultBreakerFailures)
	s.Pause = upstream.Positive(p.BreakerPause, defaultBreakerPause)
	s.Probe, s.Opened = s.probe, func() { s.cut(errCut) }
	s.News, s.Changed = &p.news, p.StateChanged
}

// dialer returns what connects to s by default. It tries IPv4 early enough if IPv6 leads nowhere.
func (s *server) dialer() *net.Dialer { return &net.Dialer{FallbackDelay: s.dialTimeout / 4} }

// link returns the link of key, always the same: what one exchange of a key learns,
// the token above all, the next one can use.
func (s *server) link(key string) *link {
	if len(s.links) == 1 {
		return s.links[0]
	}
	return s.links[xxhash.Sum64String(key)%uint64(len(s.links))]
}
