// Package redisstore keeps the records of a throttler in Redis or Valkey: a single
// server, a primary that Sentinel watches, or a Cluster.
//
//	store, err := redisstore.Open("redis://10.0.0.1:6379")
//	if err != nil {
//		return err // the URL is malformed
//	}
//	defer store.Close()
//	t := throttler.New(store)
//
// A [Store] is an exchange.Exchanger: it writes a record and reads it back in one
// round trip, by a script, or by SET if the record is new. What callers ask while an exchange is under way goes out
// together in the next one. A lone caller sends its exchange by itself.
//
// # By task
//
//   - Connect: [Open], or [New] with a client of your own; [Store.Close], [Store.TLSConfig].
//   - Share a server with other programs: [Store.Prefix].
//   - Choose timeouts: [Store.Timeout], [Store.QueueTimeout].
//   - Notice outages and lost records: [Store.StateChanged], [Store.Forgot], [Store.Watch],
//     [Store.Check], [Store.Stats].
//   - Look at the server: [Store.Info], [Store.Keys].
//   - Tell errors apart: throttler.ErrUnavailable and ErrOverloaded; [pool.ErrClosed],
//     [exchange.KeyError], [exchange.MaybeDoneError].
//
// # What is stored
//
// A record is one key, so that no rule meets CROSSSLOT. Its value is a write number
// of 8 bytes and the record. Each write draws a new number, and compares the number
// that it replaces. So a record that was seen once may be compared over any
// connection, after a restart and after a failover. A write whose answer was lost is
// recognized by its number: sent twice, it takes effect once. A delete has no number:
// sent twice, it may remove what was stored in between. A throttler deletes in a Reset
// only. A value without a number (shorter, or of eight zero bytes) counts as none, and
// is replaced.
//
// Every key has an expiry.
//
// # Errors
//
// An [Error] matches throttler.ErrUnavailable if the server does not answer, loads its
// data, is no primary, or its Cluster is down. Other errors that a server reports
// (no memory, no permission, another type at a key) say what to do. They match
// neither that nor throttler.ErrOverloaded.
//
// The package needs the commands EVALSHA, EVAL, GET, MGET, SET and DEL, and SELECT for a
// database other than 0. For Cluster it needs CLUSTER SLOTS, ASKING while slots move, and
// for servers of version 8 or later CLUSTER SHARDS; behind Sentinel, ROLE. [Store.Check]
// needs INFO, and [Store.Keys] SCAN.
package redisstore

import (
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/redis/rueidis"
)

// What the zero values of the options stand for.
const (
	defaultTimeout         = 250 * time.Millisecond
	defaultQueueTimeout    = time.Second
	defaultBreakerFailures = 5
	defaultBreakerPause    = 250 * time.Millisecond
)

// A Store keeps records in Redis or Valkey. Its fields are options, to be set before
// the first call. Its methods may be called by many goroutines at once.
//
// A call takes at most Timeout, or twice that if the connection is lost in between. If
// the server answers too slowly for all its callers, it takes QueueTimeout more.
type Store struct {
	// Prefix is put before each key. Default: none. The parameter prefix of
	// Open's URL sets it.
	Prefix string

	// Timeout is how long the server may take to answer, and how long a
	// connection may take to be made. Default: 250 ms.
	Timeout time.Duration

	// QueueTimeout is how long a request waits for its turn while the server
	// answers others. It then fails with an error that matches
	// throttler.ErrOverloaded. Default: 1 s.
	QueueTimeout time.Duration

	// BreakerFailures is how many calls in a row must fail before the server is
	// taken to be down, so that calls fail at once. Default: 5.
	BreakerFailures int

	// BreakerPause is how long a server that is down is left alone between two
	// probes that find out whether it is back. A server that replies with an error
	// to a new connection, or that is a replica, is connected to again after as
	// long. Default: 250 ms.
	BreakerPause time.Duration

	// TLSConfig replaces that of a URL with rediss. Default: TLS 1.2 or later,
	// with the system's certificates. Without Open it has no effect.
	TLSConfig *tls.Config

	// StateChanged is called when a server is taken to be down, with the
	// reason, and when it is back, or is no primary of its Cluster any more. The
	// calls are made one after the other, on a goroutine of their own: it may use
	// the Store. Default: none.
	StateChanged func(server string, down bool, err error)

	// Forgot is called when Check has noticed that a server forgot records. It may
	// be called on several goroutines at once. Default: none.
	Forgot func(server string, loss pool.Loss)

	link   link
	routes atomic.Pointer[routes]
	start  sync.Once
	news   upstream.News

	batches fanout.Batches[request]
	sets    atomic.Uint32 // what is known of SET with NX and GET: setsWork …

	refreshing atomic.Bool // Sentinel or a Cluster is being asked for the primaries
	doubts     doubts
	routing    sync.Mutex // held while routes change

	mu      sync.Mutex // guards what follows
	closed  bool
	over    chan struct{}  // closed by Close
	working sync.WaitGroup // goroutines that no call waits for
}

// New returns a Store over a client, which Close does not close. The client must not
// send commands to replicas. It follows a failover as rueidis does: if a machine hangs
// instead of dying, that takes longer than with [Open].
func New(client rueidis.Client) *Store {
	s := newStore()
	s.link.client.Store(&client)
	return s
}

// Open returns a Store for the servers of a URL:
//
//	redis://user:password@host:6379/0
//	rediss://host:6379                                       by TLS
//	unix:///run/redis/redis.sock?db=0
//	redis://host1:6379?addr=host2:6379&addr=host3:6379        a Cluster
//	redis://sentinel1:26379?addr=sentinel2:26379&master_set=mymaster
//
// Schemes valkey and valkeys are the same as redis and rediss. The other parameters
// are prefix, client_name, protocol=2, skip_verify, sentinel_username and
// sentinel_password.
//
// Open connects to no server, so that none needs to be up. The first call does.
func Open(url string) (*Store, error) {
	option, prefix, err := parse(url)
	if err != nil {
		return nil, err
	}
	s := newStore()
	s.Prefix = prefix
	s.link.option = option
	s.link.conns, s.link.own = make(map[*tracked]struct{}), make(map[string]rueidis.Client)
	if option.Sentinel.MasterSet != "" {
		s.link.watch = newSentinels(&s.link)
	}
	return s, nil
}

func newStore() *Store {
	s := &Store{over: make(chan struct{})}
	s.link.store = s
	return s
}

// init reads the options, at the first call.
func (s *Store) init() {
	s.start.Do(func() {
		s.routes.Store(&routes{first: newNode(s, s.link.name())})
		if s.link.watch != nil {
			s.work(s.watchSentinels)
		}
		if c := s.link.client.Load(); c != nil && (*c).Mode() == rueidis.ClientModeCluster {
			s.work(func() { s.drawMap(*c) })
		}
	})
}

// Close ends the store: calls under way fail within Timeout, and all later ones
// at once, with [pool.ErrClosed]. If Open has made the client, Close closes it. It waits for no
// server longer than Timeout or a second. Its error is always nil.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.over)
	s.mu.Unlock()
	s.init()
	for _, n := range s.routes.Load().all() {
		n.Leave(false)
		n.cut(pool.ErrClosed)
	}
	hung := time.AfterFunc(min(s.timeout(), patienceToClose), func() {
		s.link.cut(func(*tracked) bool { return true })
	})
	defer hung.Stop()
	s.link.close()
	s.working.Wait()
	return nil
}

// patienceToClose is how long Close waits for servers at most.
const patienceToClose = time.Second

func (s *Store) isClosed() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// work runs f on a goroutine, which Close waits for. It does nothing after Close.
func (s *Store) work(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.working.Go(f)
	}
}

func (s *Store) timeout() time.Duration { return upstream.Positive(s.Timeout, defaultTimeout) }
func (s *Store) queueTimeout() time.Duration {
	return upstream.Positive(s.QueueTimeout, defaultQueueTimeout)
}
func (s *Store) breakerPause() time.Duration {
	return upstream.Positive(s.BreakerPause, defaultBreakerPause)
}
func (s *Store) breakerFailures() int {
	return upstream.Positive(s.BreakerFailures, defaultBreakerFailures)
}

var _ exchange.Exchanger = (*Store)(nil)
