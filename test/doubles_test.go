package throttler_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// The test doubles of Client: servers that fail, hang, are far away or are overtaken,
// each over a memstore or a real client.

// faulty is a client that a test can make fail, hang, lose its answers or be
// overtaken. Its operations are called get, multi, add, cas and delete.
type faulty struct {
	throttler.Client
	before func(op string, keys ...string) error // if it returns an error, that is the operation's
	after  func(op string, err error) error      // returns what is answered for err; nil: err itself

	mu  sync.Mutex
	ops []string
}

func newFaulty() *faulty { return over(memstore.New()) }

// over returns a client that is faultless until a test says how it fails, and that
// has the five methods of client alone.
func over(client throttler.Client) *faulty {
	return &faulty{Client: client, before: func(string, ...string) error { return nil }}
}

func (f *faulty) call(op string, keys ...string) error {
	f.mu.Lock()
	f.ops = append(f.ops, op)
	f.mu.Unlock()
	return f.before(op, keys...)
}

func (f *faulty) answer(op string, err error) error {
	if f.after == nil {
		return err
	}
	return f.after(op, err)
}

// took returns the operations since the last time it was called.
func (f *faulty) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := f.ops
	f.ops = nil
	return ops
}

func (f *faulty) Get(key string) (*memcache.Item, error) {
	if err := f.call("get", key); err != nil {
		return nil, err
	}
	item, err := f.Client.Get(key)
	return item, f.answer("get", err)
}

func (f *faulty) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if err := f.call("multi", keys...); err != nil {
		return nil, err
	}
	items, err := f.Client.GetMulti(keys)
	return items, f.answer("multi", err)
}

func (f *faulty) Add(item *memcache.Item) error {
	if err := f.call("add", item.Key); err != nil {
		return err
	}
	return f.answer("add", f.Client.Add(item))
}

func (f *faulty) CompareAndSwap(item *memcache.Item) error {
	if err := f.call("cas", item.Key); err != nil {
		return err
	}
	return f.answer("cas", f.Client.CompareAndSwap(item))
}

func (f *faulty) Delete(key string) error {
	if err := f.call("delete", key); err != nil {
		return err
	}
	return f.answer("delete", f.Client.Delete(key))
}

// failing returns a before that fails the given operations with err, for keys
// that hold part.
func failing(err error, part string, ops ...string) func(string, ...string) error {
	return func(op string, keys ...string) error {
		if slices.Contains(ops, op) && slices.ContainsFunc(keys, func(key string) bool { return key == part || part == "" }) {
			return err
		}
		return nil
	}
}

var errDown = errors.New("server is down")

// partial fails as gomemcache does when one of several servers is dead: items
// of the others, and one error for all.
type partial struct {
	*faulty
	dead string // the key on that server
	err  error
}

func (p *partial) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	items, _ := p.faulty.GetMulti(slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == p.dead }))
	return items, p.err
}

// keyed is an error that knows which keys it concerns.
type keyed struct{ dead string }

func (keyed) Error() string { return "one of the servers is down" }

func (k keyed) KeyError(key string) error {
	if key == k.dead {
		return errDown
	}
	return nil
}

// torn answers each read with another token, and refuses them all, as a proxy
// may that has several copies of each record.
type torn struct {
	*faulty
	token uint64
}

func (r *torn) Get(key string) (*memcache.Item, error) {
	item, err := r.faulty.Get(key)
	if err == nil {
		r.token++
		item.CasID += r.token << 32
	}
	return item, err
}

// maybeDone is the error of a client that has repeated a write whose answer was
// lost, and does not know whether it was itself that was faster.
type maybeDone struct{ error }

func (maybeDone) MaybeDone() bool { return true }

func (m maybeDone) Unwrap() error { return m.error }

// overtaken returns a client like client, except that before its first write of
// a narrow condition's record, somebody else is faster.
func overtaken(client throttler.Client, faster func()) throttler.Client {
	var once sync.Once
	f := over(client)
	f.before = func(op string, keys ...string) error {
		if op == "add" && strings.HasPrefix(keys[0], throttler.RecordKey("test", "narrow", "")) {
			once.Do(faster)
		}
		return nil
	}
	return f
}

// overPool returns a client over a real server whose operations a test can
// overtake.
func overPool(t *testing.T, server *servertest.Memcached) *faulty {
	t.Helper()
	p, _ := onWire(t, server)
	return over(p)
}

// An outlet is a backend that can be switched off, for the records whose keys hold
// part. Every operation on one of them then fails with errDown.
type outlet struct {
	*faulty
	part string
	off  atomic.Bool
}

func newOutlet() *outlet {
	o := &outlet{faulty: newFaulty()}
	o.before = func(_ string, keys ...string) error {
		if o.off.Load() && strings.Contains(strings.Join(keys, " "), o.part) {
			return errDown
		}
		return nil
	}
	return o
}

// hanging returns a client each of whose operations fails after hungTimeout, and
// how many of them are under way.
func hanging() (client *faulty, active *atomic.Int64) {
	client, active = newFaulty(), new(atomic.Int64)
	client.before = func(string, ...string) error {
		active.Add(1)
		defer active.Add(-1)
		time.Sleep(hungTimeout)
		return errDown
	}
	return client, active
}

// A tokenless client is one of memcached -C.
type tokenless struct{ throttler.Client }

func (c tokenless) Get(key string) (*memcache.Item, error) {
	item, err := c.Client.Get(key)
	if err == nil {
		item.CasID = 0
	}
	return item, err
}

// A racyClient overwrites what others have stored since it read.
type racyClient struct{ *memcache.Client }

func (c racyClient) Add(item *memcache.Item) error { return c.Set(item) }

func (c racyClient) CompareAndSwap(item *memcache.Item) error { return c.Set(item) }

// roundTrip is how far away the servers of the doubles below are. In a bubble of
// synctest time passes for nothing else, so the time that a call takes is the number
// of its round trips, whatever it does at the same time.
const roundTrip = 20 * time.Millisecond

// A distantClient takes a round trip for each operation, and counts them.
type distantClient struct {
	*faulty
	ops atomic.Int64
}

func newDistant() *distantClient {
	c := &distantClient{faulty: newFaulty()}
	c.before = func(string, ...string) error {
		c.ops.Add(1)
		time.Sleep(roundTrip)
		return nil
	}
	return c
}

// slowReader returns a client like client, but that takes a round trip to hand out a
// record that it has read.
func slowReader(client throttler.Client) *faulty {
	f := over(client)
	f.after = func(op string, err error) error {
		if op == "get" {
			time.Sleep(roundTrip)
		}
		return err
	}
	return f
}

// meet returns a client like client, but whose first readers go on when all of them
// have read.
func meet(client throttler.Client, readers int) *faulty {
	var missing atomic.Int64
	var all sync.WaitGroup
	missing.Store(int64(readers))
	all.Add(readers)
	f := over(client)
	f.after = func(op string, err error) error {
		if (op == "get" || op == "multi") && missing.Add(-1) >= 0 {
			all.Done()
			all.Wait()
		}
		return err
	}
	return f
}

// A recorder is a Client that keeps the values which it has stored.
type recorder struct {
	throttler.Client

	mu     sync.Mutex // guards stored, while there are calls
	stored [][]byte
}

func (r *recorder) Add(item *memcache.Item) error {
	return r.keep(item, r.Client.Add(item))
}

func (r *recorder) CompareAndSwap(item *memcache.Item) error {
	return r.keep(item, r.Client.CompareAndSwap(item))
}

func (r *recorder) keep(item *memcache.Item, err error) error {
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stored = append(r.stored, item.Value)
	}
	return err
}

// A counter is a server that takes a given time for each operation, and counts
// how many it serves at once.
type counter struct {
	*memstore.Store
	serves func(op string, keys ...string) time.Duration
	fails  func(op string) error // nil: nothing does

	underWay, most, served atomic.Int64
}

func (c *counter) serve(op string, keys ...string) error {
	n := c.underWay.Add(1)
	defer c.underWay.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); {
		most = c.most.Load()
	}
	time.Sleep(c.serves(op, keys...))
	c.served.Add(1)
	if c.fails == nil {
		return nil
	}
	return c.fails(op)
}

// plainly returns c as a client that has the five methods alone.
func (c *counter) plainly() *faulty {
	f := over(c.Store)
	f.before = c.serve
	return f
}

// always returns how long each operation takes, whichever it is.
func always(d time.Duration) func(string, ...string) time.Duration {
	return func(string, ...string) time.Duration { return d }
}

// A remote is an Exchanger whose server is roundTrip away.
type remote struct {
	throttler.Client // the store, for tests that ask it directly
	store            *memstore.Store

	mu     sync.Mutex    // guards what follows
	conn   uint64        // of the connection
	lose   loss          // what becomes of the next exchange
	then   loss          // what becomes of it when it is sent again
	err    error         // fails all exchanges
	full   error         // fails all writes, and no reads
	torn   bool          // refuses all writes, as if the record had changed
	proxy  bool          // may keep its connection when the server restarts: a record is read before it is written
	busy   time.Duration // how long an exchange waits for its turn
	noTurn atomic.Int64  // how many of the next exchanges are not sent in time
	faster func()        // comes before each write of a record, and changes it; nil: nobody does
	trips  atomic.Int64
}

// A loss says what becomes of an exchange whose connection breaks.
type loss int

const (
	nothingLost loss = iota
	answerLost       // the write was carried out
	requestLost      // it was not
	notSent          // nor can it be, as the exchange is told; another write came meanwhile
	covered          // it was carried out, and another write came after it
	arrivesLate      // it is carried out, after the record was read anew
)

func newRemote() *remote { return remoteOf(memstore.New()) }

// kindsOfClient are in process memory, plain, and one to which each exchange is a round trip.
var kindsOfClient = map[string]func() throttler.Client{
	"memstore": func() throttler.Client { return memstore.New() },
	"plain":    func() throttler.Client { return newFaulty() },
	"one trip": func() throttler.Client { return newRemote() },
}

func remoteOf(store *memstore.Store) *remote {
	return &remote{Client: store, store: store, conn: 1}
}

// restart empties the server, whose tokens then begin anew, and ends its connections.
func (r *remote) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	store := memstore.New()
	r.Client, r.store = store, store
	r.conn++
}

// beBusy has each exchange wait so long for its turn, while others may be under way.
func (r *remote) beBusy(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = d
}

func (r *remote) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	var all sync.WaitGroup
	done := make(chan struct{})
	for _, x := range xs {
		all.Go(func() { r.exchange(x, false) })
	}
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (r *remote) Start(xs ...exchange.Exchange) { go r.Exchange(context.Background(), xs...) }

// exchange carries x out. notStored is what x is told of an earlier try.
func (r *remote) exchange(x exchange.Exchange, notStored bool) {
	r.mu.Lock()
	busy := r.busy
	r.mu.Unlock()
	time.Sleep(busy)
	if r.noTurn.Add(-1) >= 0 {
		x.Done(exchange.Result{Err: throttler.ErrOverloaded})
		return
	}
	r.mu.Lock()
	conn, lose, err := r.conn, r.lose, r.err
	r.lose, r.then = r.then, nothingLost
	r.mu.Unlock()
	if r.proxy {
		x.Done(r.readAndServe(x))
		return
	}
	item := x.Propose(exchange.Turn{Conn: conn, NotStored: notStored})
	r.trips.Add(1)
	time.Sleep(roundTrip / 2)
	if err != nil {
		time.Sleep(roundTrip / 2)
		x.Done(exchange.Result{Conn: conn, Err: err, Unknown: item != nil})
		return
	}
	if lose == nothingLost {
		result := r.serve(x.Key(), item)
		result.Conn = conn
		time.Sleep(roundTrip / 2)
		x.Done(result)
		return
	}
	if lose != requestLost && lose != notSent && lose != arrivesLate {
		r.serve(x.Key(), item)
	}
	if lose == covered || lose == notSent {
		found, _ := r.store.Get(x.Key())
		found.Flags++
		_ = r.store.CompareAndSwap(found)
	}
	r.mu.Lock()
	r.conn++
	r.mu.Unlock()
	if lose == arrivesLate {
		time.AfterFunc(roundTrip/2+1, func() { r.serve(x.Key(), item) })
	}
	r.exchange(x, lose == notSent)
}

// readAndServe reads the record of x, and then stores what x proposes.
func (r *remote) readAndServe(x exchange.Exchange) exchange.Result {
	read := r.serve(x.Key(), nil)
	r.trips.Add(1)
	time.Sleep(roundTrip)
	item := x.Propose(exchange.Turn{Known: true, Found: read.Found})
	if item == nil {
		return read
	}
	r.trips.Add(1)
	time.Sleep(roundTrip)
	return r.serve(x.Key(), item)
}

// serve stores item, if there is one, and reads the record.
func (r *remote) serve(key string, item *memcache.Item) exchange.Result {
	var err, failed error
	if r.faster != nil {
		r.faster()
	}
	switch {
	case item == nil || r.torn:
		err = memcache.ErrNotStored
	case r.full != nil:
		err, failed = r.full, r.full
	case item.CasID == 0:
		err = r.store.Add(item)
	default:
		err = r.store.CompareAndSwap(item)
	}
	found, missing := r.store.Get(key)
	if errors.Is(missing, memcache.ErrCacheMiss) {
		found = nil
	}
	return exchange.Result{Stored: err == nil, Read: true, Found: found, Err: failed}
}

// A late is a memstore whose answers are overtaken by what then does.
type late struct {
	*memstore.Store
	then func()
}

func (l *late) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	l.Store.Exchange(ctx, xs...)
	if then := l.then; then != nil {
		l.then = nil
		then()
	}
}

// patientPool returns a pool whose timeouts no busy machine reaches.
func patientPool(t *testing.T, addr string) *pool.Pool {
	t.Helper()
	p, err := pool.New(addr)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	bePatient(p)
	return p
}

func bePatient(p *pool.Pool) {
	p.Timeout, p.DialTimeout, p.QueueTimeout = 20*time.Second, 20*time.Second, 20*time.Second
}

// A client of a server that hangs, as gomemcache is: each operation ends after the
// client's timeout.
func hungAfter(d time.Duration) *counter {
	return &counter{Store: memstore.New(), serves: always(d), fails: func(string) error { return os.ErrDeadlineExceeded }}
}

// A strayClient answers with what somebody else has asked for.
type strayClient struct {
	throttler.Client
	one   *memcache.Item
	items map[string]*memcache.Item
}

func (c strayClient) Get(string) (*memcache.Item, error) { return c.one, nil }

func (c strayClient) GetMulti([]string) (map[string]*memcache.Item, error) {
	return c.items, nil
}

// A breaking client loses the first write, which arrives just before the next one.
type breaking struct {
	throttler.Client
	lost    *memcache.Item
	arrived bool
}

func (c *breaking) Add(item *memcache.Item) error {
	if c.lost == nil {
		c.lost = &memcache.Item{Key: item.Key, Value: item.Value, Flags: item.Flags, Expiration: item.Expiration}
		return io.EOF
	}
	if !c.arrived {
		c.arrived = true
		_ = c.Client.Add(c.lost)
	}
	return c.Client.Add(item)
}
