// Package pool is a client for one or many memcached servers that keeps working
// when one of them dies, hangs or restarts, or when another one is added.
//
//	servers, err := pool.New("10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.3:11211")
//	if err != nil {
//		return err // a server given twice, no name that resolves
//	}
//	defer servers.Close()
//	t := throttler.New(servers)
//
// A [Pool] has the methods of [memcache.Client] that a throttler needs, with the
// same meaning, items and errors, and [Pool.Exchange], which writes a record and
// reads it back in one round trip. It has connections of its own:
//
//   - Pipelining: all callers share one connection to each server. Requests that
//     come at the same time go out together, and share a command that reads. A
//     lone caller writes and reads on its own goroutine. Commands are
//     those of memcached 1.2.5. A connection of which nearly all writes were stored
//     also uses the meta set of memcached 1.6, if the server knows it.
//   - Placement: each key belongs to one server, by rendezvous hashing of the
//     servers' names. Adding a server moves only the keys that it takes over.
//   - Errors by key: in [Pool.GetMulti] a dead server costs its own keys
//     and no others: its error is an [exchange.KeyError].
//   - A circuit breaker per server: after [Pool.BreakerFailures] failures in a row
//     its calls fail at once. The pool itself finds out, every
//     [Pool.BreakerPause], whether it is back: no caller waits for that. Calls that
//     already hang when the breaker opens are ended with it.
//   - Lost connections: a request whose connection broke is sent once more, over a
//     new one. So a restart costs no calls if the server answers again when the
//     connection is made, at once. A call while its port is closed fails. A connection
//     that was idle for 50 ms is looked at before it is used, so that a write is not
//     lost on one that the server has closed (on Windows, Solaris and AIX it is not).
//   - A bound on every call: a connection that owes an answer for [Pool.Timeout]
//     is given up, with all calls on it. If a part of the answer has come, the
//     server is there: then its call alone fails, and the others are sent once more.
//   - A bound on what is under way: a server that answers, but not fast enough, is
//     waited for in turn, for [Pool.QueueTimeout]. That is no outage: the error
//     matches throttler.ErrOverloaded, and the breaker stays closed.
//   - Names are resolved at every dial, not once for all.
//   - Servers may come and go while calls are made: see [Pool.SetServers].
//   - Restarts, flushes and evictions, by which a server forgets records, are
//     noticed by [Pool.Watch].
//
// # By task
//
//   - Connect: [New], [Pool.Close]; with TLS [Pool.DialContext]; with a password
//     [Pool.User].
//   - Choose timeouts: [Pool.Timeout], [Pool.DialTimeout], [Pool.QueueTimeout].
//   - Change the servers: [Pool.SetServers], [Pool.ClusterServers].
//   - Reach them through a proxy: [Pool.Proxy].
//   - Notice outages and lost records: [Pool.StateChanged], [Pool.Forgot], [Pool.Watch],
//     [Pool.Check], [Pool.Stats].
//   - Tell errors apart: throttler.ErrUnavailable, ErrOverloaded and ErrNoCAS; [ErrClosed],
//     [exchange.KeyError], [exchange.MaybeDoneError].
//
// # What counts as a failure
//
// The breaker counts what suggests that the server is not there. A connection that
// is lost or stalls is one failure, however many calls shared it. A connection
// that cannot be made is a failure of each call that waited for it. An error that
// the server reports (SERVER_ERROR) is an answer.
//
// # Writes whose answer was lost
//
// If a connection breaks between a write and its answer, it is not known whether
// the server carried it out. Pool sends the write again over a new connection.
// An add or a cas never takes effect twice. But the second answer may be about the
// first write, so any answer but success then comes as an [exchange.MaybeDoneError]: what
// Add found stored, or what CompareAndSwap was in conflict with, may be this very
// write. A delete may take effect twice, and then removes what was stored in
// between: a throttler deletes in a Reset only.
//
// A caller that treats it as a conflict (read and decide again) counts one hit
// twice at worst: a throttler may admit one call less than it could, and never
// one more. Do not compare the record and take it for your own because it is equal:
// another caller may have written the same bytes. A caller that takes something
// back must not do so twice, and stops at such an error.
//
// An exchange is proposed anew on the new connection, see [exchange.Exchange].
//
// # CAS tokens
//
// CompareAndSwap needs the token that Get or GetMulti put into the item. An item
// without one (CasID 0), as from a server that was started with -C, is refused
// with throttler.ErrNoCAS: such a server answers every compare-and-swap with "conflict".
//
// A server's tokens begin anew when it restarts. An exchange is told which
// connection it is sent on, so that a token of before never meets a record of
// after. CompareAndSwap does not check this: an item that was read before a restart
// and is swapped after it could meet the same token, by chance.
//
// Behind a proxy the connection outlives the server. There, an exchange reads the
// record before anything is proposed, in two round trips; see [Pool.Proxy].
//
// # What a connection costs
//
// A file descriptor, 16 KiB for answers, and while it is busy up to 128 KiB for requests.
// At most 1,024 requests and about 256 KiB are in flight on it; others wait first-in,
// first-out. In a burst of 3,000 calls each takes 16 to 19 KiB, its goroutine included.
//
// A large value delays the calls behind it for as long as its bytes take, up to Timeout. If
// it takes longer, or is larger than 1 MiB, its own call fails and the connection is closed:
// one failure for the breaker. The calls behind it are sent again, once, on a new connection,
// and end within twice DialTimeout + Timeout. A key always uses the same connection of several.
package pool

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/adaptivethrottler/throttler/internal/legal"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/bradfitz/gomemcache/memcache"
)

// What the zero values of the options stand for.
const (
	defaultTimeout         = 250 * time.Millisecond
	defaultDialTimeout     = 250 * time.Millisecond
	defaultQueueTimeout    = time.Second
	defaultConns           = 1
	defaultBreakerFailures = 5
	defaultBreakerPause    = time.Second
)

// A Pool is a client for the servers that were given to [New]. Its fields are
// options, to be set before the first call. Zero or less means the default. Its
// methods may be called by many goroutines at once.
//
// A call takes at most DialTimeout and Timeout. If the connection is lost in between,
// it takes twice that. If the server answers too slowly for all its callers, it takes
// QueueTimeout more. An answer may take Timeout for each of its parts: for a rule of n
// conditions on one server, 2n+1. So a server that sends each part just in time holds a
// call for 2n+1 times Timeout, and for twice that if it then stops. In a process that is
// short of processor time, calls take longer and do not fail: a server is given up only
// when nothing is left to be read from it.
type Pool struct {
	// Timeout is how long a connection may owe an answer: since the oldest
	// request was sent or, if other answers came first, since the last of them. A lost
	// packet is sent again after 200 ms or more: with less, it fails a call. Raise it
	// if the servers are in another region. Default: 250 ms.
	Timeout time.Duration

	// DialTimeout is for making a connection: resolving the server's name,
	// connecting, whatever else DialContext does, and the login. Default: 250 ms.
	DialTimeout time.Duration

	// QueueTimeout is how long a request waits for its turn while its server
	// answers others. It then fails with an error that matches
	// throttler.ErrOverloaded. Default: 1 s.
	QueueTimeout time.Duration

	// Conns is how many connections are made to each server. All callers share
	// them. More of them help only with large values or lost packets. Default: 1.
	Conns int

	// User and Password are sent when a connection is made, for a memcached that
	// was started with -Y. Default: none.
	User, Password string

	// Proxy says that the servers are proxies, which keep their connections when
	// a server behind them restarts. Each record is then read before it is
	// written. A proxy that gives its name when it is asked for its version
	// (mcrouter) is recognized without it; twemproxy is not.
	//
	// A proxy that cannot reach a server answers SERVER_ERROR, after a timeout of its
	// own. That does not open the breaker, because other keys are still there. So give
	// the proxy a timeout below [Pool.Timeout]: twemproxy waits forever by default. The
	// server may carry out a write later that the proxy gave up: then a hit counts
	// although its call failed open. twemproxy's hash fnv1a_64 tends to put keys that
	// differ in their last characters on one server.
	Proxy bool

	// StateChanged is called when a server is taken to be down, with the reason,
	// and when it is back. The calls are made one after the other, on a goroutine
	// of their own: it may use the Pool. Default: none.
	StateChanged func(server string, down bool, err error)

	// Forgot is called when Check has noticed that a server forgot records. It may
	// be called on several goroutines at once. Default: none.
	Forgot func(server string, loss Loss)

	// BreakerFailures is how many failures in a row mean that a server is down.
	// Default: 5.
	BreakerFailures int

	// BreakerPause is how long a server that is down is left alone between two
	// probes that find out whether it is back. Default: 1 s.
	BreakerPause time.Duration

	// DialContext makes the connections, for TLS with the DialContext of a
	// tls.Dialer. It is given "tcp" or "unix" and the server as it was given to
	// New, so that a certificate is checked against the name. It must return
	// when ctx ends. Default: a net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)

	servers atomic.Pointer[placement]
	news    upstream.News
	start   sync.Once
	closed  chan struct{} // closed by Close
	end     sync.Once
	batches fanout.Batches[request]
	cluster cluster // see ClusterServers

	// What resolves the names that SetServers adds, and for how long, in tests. Zero:
	// net.DefaultResolver and resolveFor.
	resolver   *net.Resolver
	resolveFor time.Duration

	changing sync.Mutex         // held while servers come and go
	leaving  map[string]*server // get no further calls; guarded by changing
	changes  atomic.Uint64
}

// New returns a Pool for the given servers: "host:port", "[::1]:11211", or the path
// of a socket, with or without "unix:" before it. It connects to none of them.
//
// New fails if there is no server, if one is malformed or given twice, or if no
// name resolves within 10 s. If only some names do not resolve, the Pool works: the
// calls of their servers fail until they do, and LastError in [Pool.Stats] contains
// the reason.
//
// A server is identified by the exact string passed to New, which also determines
// key placement: all programs that share servers must pass the same strings, in
// any order. [Pool.SetServers] changes the list later.
//
// A name stands for one server. A name with several addresses, as of a
// round-robin DNS entry, spreads one key's records over several servers.
func New(servers ...string) (*Pool, error) {
	all, err := parseServers(servers)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveFor)
	defer cancel()
	if err := resolveAll(ctx, net.DefaultResolver, all, nil); err != nil {
		return nil, err
	}
	p := &Pool{closed: make(chan struct{}), leaving: make(map[string]*server)}
	p.servers.Store(place(all))
	return p, nil
}

// Close ends the pool: it closes all connections, so that calls under way end
// at once, with ErrClosed as all calls from then on. Its error is always nil.
func (p *Pool) Close() error {
	p.end.Do(func() {
		p.init()
		p.changing.Lock()
		close(p.closed)
		for _, s := range p.leaving {
			s.dismissal.Stop()
		}
		all := slices.AppendSeq(slices.Clone(p.servers.Load().all), maps.Values(p.leaving))
		p.changing.Unlock()
		for _, s := range all {
			s.close()
		}
	})
	return nil
}

// init reads the options, at the first call.
func (p *Pool) init() {
	p.start.Do(func() {
		for _, s := range p.servers.Load().all {
			s.init(p)
		}
	})
}

// server returns where key belongs, or an error if no server is to be asked.
func (p *Pool) server(key string) (*server, error) {
	// memcache.Client sends the empty key, and dials before it looks at that of a write.
	// Here nothing is sent.
	if !legal.Key(key) {
		return nil, memcache.ErrMalformedKey
	}
	if p.isClosed() {
		return nil, ErrClosed
	}
	p.init()
	return p.servers.Load().of(key), nil
}

func (p *Pool) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

// Get returns the item at key, or memcache.ErrCacheMiss.
func (p *Pool) Get(key string) (*memcache.Item, error) {
	answer, _, err := p.call(none, key, nil)
	if err != nil {
		return nil, err
	}
	if answer.found == nil {
		return nil, memcache.ErrCacheMiss
	}
	return answer.found, nil
}

// write writes item, or deletes key, and returns what the server answers.
func (p *Pool) write(v verb, key string, item *memcache.Item) error {
	answer, maybe, err := p.call(v, key, item)
	if err != nil {
		return err
	}
	err = answer.status.err()
	if err != nil && maybe {
		return &failure.LostAnswerError{Err: err}
	}
	return err
}

// Add stores item if there is none at its key. If there is one, the error is
// memcache.ErrNotStored, or an [exchange.MaybeDoneError] of that.
func (p *Pool) Add(item *memcache.Item) error { return p.write(add, item.Key, item) }

// CompareAndSwap stores item if the item at its key has not changed since Get or
// GetMulti returned it. If it has changed, the error is memcache.ErrCASConflict. If
// there is none any more, it is memcache.ErrCacheMiss. Either may come as an
// [exchange.MaybeDoneError].
func (p *Pool) CompareAndSwap(item *memcache.Item) error {
	s, err := p.server(item.Key)
	if err != nil {
		return err
	}
	if item.CasID == 0 {
		return serverError(s.Name, fmt.Errorf("item without a CAS token: %w", failure.ErrNoCAS))
	}
	return p.write(cas, item.Key, item)
}

// Delete deletes the item at key. If there is none it returns
// memcache.ErrCacheMiss or an [exchange.MaybeDoneError] of that.
func (p *Pool) Delete(key string) error { return p.write(del, key, nil) }
