// Package pool is a client for one or many memcached servers that goes on when
// one of them dies, hangs, restarts or is joined by another.
//
//	servers, err := pool.New("10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.3:11211")
//	if err != nil {
//		return err // a name that does not resolve
//	}
//	defer servers.Close()
//	t := throttler.New(servers)
//
// A [Pool] has the methods of [memcache.Client] that a throttler needs, with the
// same meaning, and speaks to each server through a memcache.Client of its own.
// What it adds:
//
//   - Placement: each key belongs to one server, by rendezvous hashing of the
//     servers' names. A server more takes its share from all the others and
//     moves nothing else; a server less gives its keys to all the others.
//   - Each key's own error: in [Pool.GetMulti] a dead server costs its own keys
//     and no others; see [MultiError].
//   - A circuit breaker per server: after [Pool.BreakerFailures] failures in a row
//     its calls fail at once with [ErrDown], and every [Pool.BreakerPause] one
//     call is let through to find out whether it is back. Calls that already hang
//     when the breaker opens are ended with it.
//   - Lost connections: a request whose connection broke is sent once more, over a
//     new one. So a restarted server costs no calls, however many connections
//     to it were idle.
//   - A bound on every call: a request and all of its answer have [Pool.Timeout],
//     however the server spreads it.
//   - Names are resolved at every dial, not once for all.
//
// # Writes whose answer was lost
//
// If a connection breaks between a write and its answer, nobody can tell whether
// the server had carried it out. Pool sends the write again over a new connection.
// That is safe: add, cas and delete never take effect twice. But the second
// answer may be about the first write, so any answer but success then comes as a
// [LostAnswerError]: what Add found stored, or what CompareAndSwap was in
// conflict with, may be this very write.
//
// Who answers that as any conflict, by reading again and deciding again, counts a
// hit twice at worst: a throttler may admit one call less than it could, and
// never one more. It would be wrong to read the record and take it for one's own
// because it is equal: another caller may have written the same bytes, and then
// one record would stand for two. And who takes something back, rather than adding
// it, must not do so twice, and stops at a LostAnswerError.
//
// # CAS tokens
//
// CompareAndSwap needs the token that Get or GetMulti put into the item. An item
// without one (CasID 0), as from a server that was started with -C, is refused
// with [ErrNoCAS]: such a server answers every compare-and-swap with "conflict",
// for ever.
//
// Tokens are a server's own and begin anew when it restarts. An item that was read
// before a restart and is swapped after it meets the same token under the
// same key by chance only; nothing in the protocol could tell.
package pool

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// What the zero values of the options stand for. docs/operations.md says why.
const (
	DefaultTimeout         = 250 * time.Millisecond
	DefaultDialTimeout     = 250 * time.Millisecond
	DefaultQueueTimeout    = time.Second
	DefaultConns           = 1
	DefaultMaxValue        = 1 << 20
	DefaultBreakerFailures = 5
	DefaultBreakerPause    = time.Second
)

// A Pool is a client for the servers that were given to [New]. Its fields are
// options, to be set before the first call; a value of zero or less stands for the
// default. Its methods may be called by many goroutines at once.
//
// The longest that a call takes is DialTimeout and Timeout, and that twice if
// the connection was lost in between.
type Pool struct {
	// Timeout is for one request and all of its answer, on a connection that is
	// there. Zero: DefaultTimeout.
	Timeout time.Duration

	// DialTimeout is for making a connection: resolving the server's name,
	// connecting, and whatever else DialContext does. Zero: DefaultDialTimeout.
	DialTimeout time.Duration

	// QueueTimeout is how long a request waits for its turn while its server
	// answers others. It then fails with an error that matches
	// throttler.ErrOverloaded. Default: 1 s.
	QueueTimeout time.Duration

	// Conns is how many connections are made to each server. All callers share
	// them. Default: 1.
	Conns int

	// MaxValue is the largest value that is read, in bytes. A server that
	// announces a larger one is not believed. Default: 1 MiB, as memcached's own.
	MaxValue int

	// User and Password are sent when a connection is made, for a memcached that
	// was started with -Y. Default: none.
	User, Password string

	// Proxy says that the servers are proxies, which keep their connections when
	// a server behind them restarts. Each record is then read before it is
	// written. A proxy that gives its name when it is asked for its version
	// (mcrouter) is recognized without it; twemproxy is not.
	Proxy bool

	// StateChanged is called when a server is taken to be down, with the reason,
	// and when it is back. The calls are made one after the other. Default: none.
	StateChanged func(server string, down bool, err error)

	// BreakerFailures is how many calls to a server must fail in a row for it to
	// be taken to be down. Zero: DefaultBreakerFailures.
	BreakerFailures int

	// BreakerPause is how long a server that is down is left alone between two
	// calls that find out whether it is back. Zero: DefaultBreakerPause.
	BreakerPause time.Duration

	// DialContext makes the connections, for TLS with the DialContext of a
	// tls.Dialer. It is given "tcp" or "unix" and the server as it was given to
	// New, so that a certificate is checked against the name. It must return
	// when ctx ends. Nil: a net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)

	servers *placement
	start   sync.Once
	closed  chan struct{} // closed by Close
	end     sync.Once
}

// New returns a Pool for the given servers: "host:port", "[::1]:11211", or the path
// of a socket, with or without "unix:" before it. It connects to none of them.
//
// It is an error if there is no server, if one is given twice, or if one does not
// resolve. Servers are told apart by the text that was given, which also decides
// what is kept where: all programs that share servers must give the same
// texts, in any order.
//
// A name stands for one server. A name with several addresses, as of a
// round-robin DNS entry, spreads one key's records over several servers.
func New(servers ...string) (*Pool, error) {
	if len(servers) == 0 {
		return nil, errors.New("pool: no servers")
	}
	all := make([]*server, len(servers))
	seen := make(map[address]bool, len(servers))
	for i, name := range servers {
		addr, err := parseAddress(name)
		if err != nil {
			return nil, &ServerError{Server: name, Err: err}
		}
		if seen[addr] {
			return nil, &ServerError{Server: name, Err: errors.New("given twice")}
		}
		seen[addr] = true
		all[i] = &server{name: addr.text, addr: addr}
	}
	return &Pool{servers: place(all), closed: make(chan struct{})}, nil
}

// Close ends the pool: it closes all connections, so that calls under way end
// at once, with ErrClosed as all calls from then on. Its error is always nil.
func (p *Pool) Close() error {
	p.end.Do(func() {
		p.init()
		close(p.closed)
		for _, s := range p.servers.all {
			s.cut(ErrClosed)
		}
	})
	return nil
}

// init reads the options, at the first call.
func (p *Pool) init() {
	p.start.Do(func() {
		for _, s := range p.servers.all {
			s.init(p)
		}
	})
}

// server returns where key belongs, or an error if no server is to be asked.
func (p *Pool) server(key string) (*server, error) {
	if !legal(key) {
		return nil, memcache.ErrMalformedKey
	}
	select {
	case <-p.closed:
		return nil, ErrClosed
	default:
	}
	p.init()
	return p.servers.of(key), nil
}

// legal reports whether key can be sent. What cannot is refused here, not by
// memcache.Client: it sends the empty key, and dials before it looks at the key
// of a write.
func legal(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] == 0x7f {
			return false
		}
	}
	return 0 < len(key) && len(key) <= 250
}

// one makes a request for one key.
func (p *Pool) one(r *request) error {
	if err := p.admit(r); err != nil {
		return err
	}
	p.do(context.Background(), []*request{r})
	return r.err
}

// Get returns the item at key, or memcache.ErrCacheMiss.
func (p *Pool) Get(key string) (*memcache.Item, error) {
	r := &request{key: key, reads: true}
	switch err := p.one(r); {
	case err != nil:
		return nil, err
	case r.reply.found == nil:
		return nil, memcache.ErrCacheMiss
	}
	return r.reply.found, nil
}

// write makes a request that writes, and returns what its server answers.
func (p *Pool) write(r *request) error {
	if err := p.one(r); err != nil {
		return err
	}
	err := r.reply.status.err()
	if err != nil && r.maybe {
		return &LostAnswerError{err}
	}
	return err
}

// Add stores item unless its key has one, in which case it returns
// memcache.ErrNotStored or a [LostAnswerError] of that.
func (p *Pool) Add(item *memcache.Item) error {
	return p.write(&request{key: item.Key, item: item, verb: add})
}

// CompareAndSwap stores item if what its key holds has not changed since Get or
// GetMulti returned item. If it has, it returns memcache.ErrCASConflict, and if
// the key holds nothing any more, memcache.ErrCacheMiss; or a [LostAnswerError] of
// one of them.
func (p *Pool) CompareAndSwap(item *memcache.Item) error {
	s, err := p.server(item.Key)
	if err != nil {
		return err
	}
	if item.CasID == 0 {
		return &ServerError{Server: s.name, Err: ErrNoCAS}
	}
	return p.write(&request{key: item.Key, item: item, verb: cas})
}

// Delete deletes the item at key. If there is none it returns
// memcache.ErrCacheMiss or a [LostAnswerError] of that.
func (p *Pool) Delete(key string) error {
	return p.write(&request{key: key, verb: del})
}
