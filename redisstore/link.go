package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/pool"
	"github.com/redis/rueidis"
)

// A link is the way to the servers: the client that New was given, or the one that is
// made when it is first needed.
type link struct {
	store  *Store
	option rueidis.ClientOption // of Open; has no address if New was given a client
	watch  *sentinels           // nil: no Sentinel

	client atomic.Pointer[rueidis.Client] // nil: not connected

	asking sync.Mutex // held while Sentinel is asked, and followed

	mu       sync.Mutex // guards what follows
	making   *making
	primary  string                    // that Sentinel has named last
	conns    map[*tracked]struct{}     // that are open
	over     bool                      // no more of them are to be made
	own      map[string]rueidis.Client // of single nodes that the Cluster's does not know; nil: being made
	renewed  time.Time                 // when a client was last dropped
	refusals map[string]refusal        // the last of each node of a Cluster, or of any server: ""
}

// A refusal is the error that a server replied with to a new connection.
type refusal struct {
	err error // a *complaint
	at  time.Time
}

// A making is a client that is being made.
type making struct {
	done   chan struct{} // closed when the rest is set
	client rueidis.Client
	err    error
}

// owned reports whether the client is made here.
func (l *link) owned() bool { return len(l.option.InitAddress) > 0 }

// name returns how the servers are called as long as they are one.
func (l *link) name() string {
	if l.owned() {
		return address(l.option)
	}
	nodes := slices.Sorted(maps.Keys((*l.client.Load()).Nodes()))
	return strings.Join(nodes, ",")
}

// get returns the client. It makes one if there is none.
func (l *link) get(ctx context.Context) (rueidis.Client, error) {
	if c := l.client.Load(); c != nil {
		return *c, nil
	}
	l.mu.Lock()
	if c := l.client.Load(); c != nil {
		l.mu.Unlock()
		return *c, nil
	}
	m := l.makingLocked()
	l.mu.Unlock()
	select {
	case <-m.done:
		return m.client, m.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// makingLocked returns the client that is being made. It begins to make one unless a server has
// refused that just now.
func (l *link) makingLocked() *making {
	if l.making != nil {
		return l.making
	}
	m := &making{done: make(chan struct{})}
	if m.err = l.refusalLocked(""); l.store.isClosed() {
		m.err = pool.ErrClosed
	}
	if m.err != nil {
		close(m.done)
		return m
	}
	l.making = m
	go l.make(m)
	return m
}

// refuse notes that a server has refused a connection with err, a complaint: that at address
// or, if that is "", any.
func (l *link) refuse(address string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuseLocked(address, err)
}

func (l *link) refuseLocked(address string, err error) {
	if err == l.refusals[address].err {
		return // no server was asked again
	}
	if l.refusals == nil {
		l.refusals = make(map[string]refusal)
	}
	l.refusals[address] = refusal{err, time.Now()}
}

// refusalLocked returns the refusal of the server at address within the last BreakerPause, or
// nil. So long it is not connected to: calls come fast, and each try takes a port for a minute.
func (l *link) refusalLocked(address string) error {
	if r := l.refusals[address]; l.isRecent(r.at) {
		return r.err
	}
	return nil
}

// refusal returns why the server at address is not to be connected to now, or nil.
func (l *link) refusal(address string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refusalLocked(""); err != nil {
		return err
	}
	return l.refusalLocked(address)
}

// isRecent reports whether t is within the last BreakerPause.
func (l *link) isRecent(t time.Time) bool { return time.Since(t) < l.store.breakerPause() }

// make makes a client. It may take longer than anybody waits for: each address has a
// timeout of its own.
func (l *link) make(m *making) {
	var primary string
	m.client, primary, m.err = l.newClient()
	if m.err == nil && m.client.Mode() == rueidis.ClientModeCluster {
		l.store.drawMap(m.client)
	}
	l.mu.Lock()
	l.making = nil
	switch {
	case m.err != nil:
		if err := classify(m.err); isComplaint(err) { // the breaker counts others
			m.err = err
			l.refuseLocked("", err)
		}
	case l.store.isClosed():
		m.client.Close()
		m.client, m.err = nil, pool.ErrClosed
	case primary != l.primary:
		go m.client.Close()
		m.client, m.err = nil, errFailover
	default:
		l.client.Store(&m.client)
	}
	l.mu.Unlock()
	close(m.done)
}

// errFailover is the error of a client whose server is no primary any more when it is made.
var errFailover = errors.New("another primary has taken over meanwhile")

// newClient connects to the servers, or to the primary that Sentinel names.
func (l *link) newClient() (c rueidis.Client, primary string, err error) {
	o := l.options()
	if l.watch == nil {
		c, err = rueidis.NewClient(o)
		return c, "", err
	}
	if primary, err = l.ask(); err != nil {
		return nil, "", err
	}
	o.InitAddress, o.ForceSingleClient, o.Sentinel = []string{primary}, true, rueidis.SentinelOption{}
	if c, err = rueidis.NewClient(o); err != nil {
		return nil, "", err
	}
	if err = isPrimary(c, o.ConnWriteTimeout); err != nil {
		c.Close()
		return nil, "", err
	}
	return c, primary, nil
}

// isPrimary returns an error if the server of c says that it is a replica.
func isPrimary(c rueidis.Client, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	role, err := c.Do(ctx, c.B().Role().Build()).ToArray()
	if err != nil {
		return err
	}
	if name, _ := role[0].ToString(); name != "master" {
		return &complaint{text: "READONLY it is a " + name + ", though Sentinel names it as the primary", passing: true}
	}
	return nil
}

// ask asks Sentinel for the primary, and follows it.
func (l *link) ask() (primary string, err error) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if primary, err = l.watch.primary(); err == nil {
		l.follow(primary)
	}
	return primary, err
}

// follow notes the primary that Sentinel names. If it is another one than before, the
// connections to that end, with all that waits for its answers: it may hang.
func (l *link) follow(primary string) {
	l.mu.Lock()
	before := l.primary
	l.primary = primary
	old := l.client.Load()
	if before != primary && old != nil {
		l.client.Store(nil)
	}
	l.mu.Unlock()
	if before == "" || before == primary {
		return
	}
	l.cut(func(t *tracked) bool { return t.address == before })
	if old != nil {
		go (*old).Close()
	}
}

// connectTo returns a client of the node of a Cluster at address. It returns nil if another
// goroutine is connecting to that, or it cannot be connected to.
func (l *link) connectTo(address string) rueidis.Client {
	l.mu.Lock()
	client, known := l.own[address]
	if !known {
		l.own[address] = nil
	}
	l.mu.Unlock()
	if known {
		return client
	}
	o := l.options()
	o.InitAddress, o.ForceSingleClient = []string{address}, true
	client, err := rueidis.NewClient(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || l.over {
		delete(l.own, address)
		if err == nil {
			go client.Close()
		}
		return nil
	}
	l.own[address] = client
	return client
}

// disconnect closes the clients of single nodes, but for those to keep.
func (l *link) disconnect(keep func(address string, client rueidis.Client) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for address, client := range l.own {
		if client != nil && !keep(address, client) {
			delete(l.own, address)
			go client.Close()
		}
	}
}

// A tracked is a connection of the link.
type tracked struct {
	net.Conn
	link    *link
	address string
}

// errCut is the error of a connection that is made when the link is closed already.
var errCut = &net.OpError{Op: "dial", Err: pool.ErrClosed}

// track notes a connection to address, which ends when it is cut.
func (l *link) track(nc net.Conn, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		nc.Close()
		return nil, errCut
	}
	t := &tracked{nc, l, address}
	l.conns[t] = struct{}{}
	return t, nil
}

func (t *tracked) Close() error {
	t.link.mu.Lock()
	delete(t.link.conns, t)
	t.link.mu.Unlock()
	return t.Conn.Close()
}

// cut closes connections.
func (l *link) cut(which func(*tracked) bool) {
	l.mu.Lock()
	var cut []*tracked
	for t := range l.conns {
		if which(t) {
			cut = append(cut, t)
		}
	}
	l.mu.Unlock()
	for _, t := range cut {
		t.Close()
	}
}

// options returns the options of a client.
func (l *link) options() rueidis.ClientOption {
	o := l.option
	o.InitAddress = slices.Clone(o.InitAddress)
	o.DialCtxFn = l.dial
	// A connection has its timeout in dial, and a request in its ctx. These are for a
	// process that is short of processor time.
	o.Dialer.Timeout = l.store.timeout() << maxLate
	o.ConnWriteTimeout = l.store.timeout() << maxLate
	if o.TLSConfig != nil && l.store.TLSConfig != nil {
		o.TLSConfig = l.store.TLSConfig
	}
	return o
}

// sentinelOptions returns those of a client of one Sentinel.
func (l *link) sentinelOptions(address string) rueidis.ClientOption {
	o := l.options()
	o.InitAddress, o.ForceSingleClient, o.SelectDB = []string{address}, true, 0
	o.Username, o.Password, o.Sentinel = o.Sentinel.Username, o.Sentinel.Password, rueidis.SentinelOption{}
	o.Dialer.Timeout, o.ConnWriteTimeout = l.store.timeout(), l.store.timeout()
	return o
}

// dial connects to a server.
func (l *link) dial(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	if err := l.refusal(address); err != nil {
		return nil, err
	}
	dialer = bounded(dialer, l.store.timeout())
	var p patience
	for {
		nc, err := l.connect(ctx, address, dialer, config)
		if err == nil {
			return l.track(nc, address)
		}
		if !isTimeout(err) || ctx.Err() != nil || !p.wasLate() {
			return nil, err
		}
	}
}

// bounded returns dialer with that timeout. If a name has addresses of IPv6 that lead nowhere,
// those of IPv4 are tried while there is time left. By default, they would be after 300 ms.
func bounded(dialer *net.Dialer, timeout time.Duration) *net.Dialer {
	d := *dialer
	d.Timeout = timeout
	d.FallbackDelay = timeout / 4
	return &d
}

// connect is what rueidis does by itself.
func (l *link) connect(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	switch {
	case l.option.DialCtxFn != nil: // of a socket
		return l.option.DialCtxFn(ctx, address, dialer, config)
	case config != nil:
		return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
	}
	return dialer.DialContext(ctx, "tcp", address)
}

// renew drops old, whose server is no primary any more, so that the next call finds
// the new one. It reports whether to ask again. If a client was dropped within the last
// BreakerPause, the one that came after it is kept: it may have found the same server.
func (l *link) renew(old rueidis.Client) bool {
	if !l.owned() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.client.Load(); c == nil || *c != old {
		return true
	}
	if l.isRecent(l.renewed) {
		return false
	}
	l.renewed = time.Now()
	l.client.Store(nil)
	go old.Close() // it waits for what is under way
	return true
}

// close closes the client if it was made here, and lets calls under way have their answers. No
// connection is made any more.
func (l *link) close() {
	if !l.owned() {
		return
	}
	l.mu.Lock()
	l.over = true
	m := l.making
	l.mu.Unlock()
	if m != nil {
		<-m.done // it closes its client
	}
	if c := l.client.Load(); c != nil {
		(*c).Close()
	}
	if l.watch != nil {
		l.watch.close()
	}
	l.disconnect(func(string, rueidis.Client) bool { return false })
}
