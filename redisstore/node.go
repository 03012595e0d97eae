package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/adaptivethrottler/throttler/internal/losses"
	"github.com/adaptivethrottler/throttler/internal/outage"
	"github.com/adaptivethrottler/throttler/internal/turns"
	"github.com/redis/rueidis"
)

// maxBundle is how many requests go out together at most. A server does nothing else
// while it carries out a script.
const maxBundle = 128

// A second bundle goes out while one is under way if so many requests wait: then the
// server has work while this process deals with the answers. With fewer, they are better
// off together.
const (
	maxUnderWay = 2
	worthIt     = 16
)

// A node is one server, or one primary of a Cluster: the requests that wait for it, and
// its breaker. A goroutine that leads sends what is queued and hands out the answers. A
// lone caller leads by itself.
type node struct {
	store  *Store
	name   string
	client atomic.Pointer[rueidis.Client] // of a Cluster's node; nil: the store's
	gone   chan struct{}                  // closed when the node has left the Cluster

	mu      sync.Mutex // guards what follows
	queue   []*request // first come, first served
	leaders int        // goroutines that lead
	sent    int        // requests under way

	crowded atomic.Bool // several requests went out together when they last did

	down     atomic.Pointer[Error] // why the server is left alone, or nil; see turn
	turning  sync.Mutex            // held while down changes
	outage   outage.Server
	failures atomic.Int64          // calls that have failed since the last answer
	last     atomic.Pointer[error] // the last failure

	counts counts
	memory losses.Memory
}

// counts count the calls of a node, see ServerStats.
type counts struct {
	calls, failures, refusals, retries, overloads atomic.Uint64
}

func newNode(s *Store, name string) *node {
	return &node{store: s, name: name, gone: make(chan struct{}), outage: outage.Server{Name: name, News: &s.news}}
}

// admit returns why no request may be made, or nil.
func (n *node) admit() error {
	n.counts.calls.Add(1)
	if down := n.down.Load(); down != nil {
		n.counts.refusals.Add(1)
		return down
	}
	return nil
}

// submit queues requests. It reports whether the caller must lead.
func (n *node) submit(requests []*request) (lead bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range requests {
		r.queued = now
	}
	n.queue = append(n.queue, requests...)
	return n.joinLocked()
}

// joinLocked reports whether one goroutine more is to lead, and counts it.
func (n *node) joinLocked() bool {
	if len(n.queue) == 0 || n.leaders == maxUnderWay || n.leaders > 0 && len(n.queue) < worthIt {
		return false
	}
	n.leaders++
	return true
}

// lead carries out what is queued until own is open. Without own it does as long as
// there is something for it to do.
func (n *node) lead(own *fanout.Latch) {
	var b bundle
	for n.next(&b, own) {
		if len(b.late) > 0 {
			n.end(b.late, errOverloaded)
		}
		if len(b.requests) > 0 {
			n.carryOut(b.requests)
		}
	}
}

// A bundle is what a goroutine that leads takes from the queue at a time. Its memory is
// used again for the next one.
type bundle struct {
	requests []*request // to be sent
	late     []*request // have waited for too long
}

// next takes the next bundle, when the one before has ended. If it reports false, the
// caller does not lead any more.
func (n *node) next(b *bundle, own *fanout.Latch) bool {
	if n.crowded.Load() && !own.Open() {
		runtime.Gosched() // callers that are about to ask come along
	}
	oldest := n.oldest()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent -= len(b.requests)
	n.leaders--
	switch {
	case own.Open():
		if n.joinLocked() {
			go n.lead(nil)
		}
		return false
	case !n.joinLocked():
		return false
	}
	n.takeLocked(b, oldest)
	if n.joinLocked() {
		go n.lead(nil)
	}
	return true
}

// oldest returns when the oldest request may have been queued: an older one has waited too
// long for its turn. But if this process is short of processor time, it has waited for this
// process, not for the server.
func (n *node) oldest() time.Time {
	now, limit := time.Now(), n.store.queueTimeout()
	n.mu.Lock()
	overdue := len(n.queue) > 0 && n.queue[0].queued.Before(now.Add(-limit))
	n.mu.Unlock()
	if overdue && turns.Short() {
		limit <<= maxLate
	}
	return now.Add(-limit)
}

// takeLocked fills b from the queue. What was queued before oldest has waited too long.
func (n *node) takeLocked(b *bundle, oldest time.Time) {
	late := 0
	for late < len(n.queue) && n.queue[late].queued.Before(oldest) {
		late++
	}
	b.late = n.dequeueLocked(b.late, late)
	count := len(n.queue)
	if n.leaders == 1 && count >= 2*worthIt {
		count = (count + 1) / 2 // the other half goes out at the same time
	}
	b.requests = n.dequeueLocked(b.requests, min(count, maxBundle))
	n.sent += len(b.requests)
	n.crowded.Store(len(b.requests) > 1)
}

// dequeueLocked takes the first of the queue into the memory of taken.
func (n *node) dequeueLocked(taken []*request, count int) []*request {
	taken = append(taken[:0], n.queue[:count]...)
	left := copy(n.queue, n.queue[count:])
	clear(n.queue[left:])
	n.queue = n.queue[:left]
	return taken
}

// maxTries is how often a request is sent if connections are lost. Each bundle that is
// under way has one, and all may be lost at once.
const maxTries = 1 + maxUnderWay

// carryOut sends a bundle and ends its requests. What is lost with a connection is sent
// again: a write takes effect once. A delete may take effect twice.
func (n *node) carryOut(bundle []*request) {
	now := time.Now()
	for _, r := range bundle {
		r.propose(now)
	}
	t := trying{tries: maxTries}
	for len(bundle) > 0 {
		c := n.ask(bundle, t.late)
		bundle = n.settle(c, bundle, &t)
		n.counts.retries.Add(uint64(len(bundle)))
	}
}

// A trying is how often a bundle may still be sent.
type trying struct {
	tries    int // left
	patience patience
	late     bool // the last failure was a timeout of this process
}

// again reports whether a request that failed with err may be sent again.
func (t *trying) again(err error) bool {
	switch {
	case isTimeout(err):
		t.late = t.late || t.patience.wasLate()
		return t.late
	case isUnsent(err):
		return false
	}
	return t.tries > 0
}

// ask gives each request of a bundle its answer, or an error, within the timeout. It
// returns the client that was used, or nil if nothing was sent for want of one.
func (n *node) ask(bundle []*request, patient bool) rueidis.Client {
	ctx := newDeadline(n.store.timeout(), patient)
	defer ctx.release()
	c, err := n.store.link.get(ctx)
	switch {
	case err != nil:
		for _, r := range bundle {
			r.err = err
		}
		return nil
	case c.Mode() != rueidis.ClientModeCluster:
		n.store.ask(ctx, c, n.store.groups(bundle, false), true)
	default:
		n.askCluster(ctx, c, bundle)
	}
	return c
}

// askCluster asks the node, by its own client: a Cluster's may still take another one for the
// primary of the node's slots. What another node has by now goes through c, which follows it
// there.
func (n *node) askCluster(ctx context.Context, c rueidis.Client, bundle []*request) {
	to := n.own(c)
	elsewhere := n.store.ask(ctx, to, n.store.groups(bundle, true), to != c)
	for _, r := range bundle {
		if to != c && isClosed(r.err) {
			n.drop(to)
			r.lost = r.lost || r.writes() // it may have been sent just before
			elsewhere = append(elsewhere, r)
		}
	}
	if len(elsewhere) > 0 {
		n.store.ask(ctx, c, n.store.groups(elsewhere, true), false)
		n.store.refreshTopology()
	}
}

// own returns the node's own client, or else c, the store's.
func (n *node) own(c rueidis.Client) rueidis.Client {
	if own := n.client.Load(); own != nil {
		return *own
	}
	return c
}

// drop has n use client no more, its own one that is closed: rueidis does that if it does not
// know the node for a moment. The map is drawn again, which gives n the next one.
func (n *node) drop(client rueidis.Client) {
	if own := n.client.Load(); own != nil && *own == client && n.client.CompareAndSwap(own, nil) {
		n.store.refreshTopology()
	}
}

func isClosed(err error) bool { return errors.Is(err, rueidis.ErrClosing) }

// errNoClient is the error of what only n's server can answer, while its Cluster's client does
// not know it.
var errNoClient = errors.New("not connected to this node of the Cluster")

// lacksClient reports whether n has no client of its own and c, the store's, is a Cluster's:
// c asks any node for what is about no key.
func (n *node) lacksClient(c rueidis.Client) bool {
	return c.Mode() == rueidis.ClientModeCluster && n.client.Load() == nil
}

// settle ends the requests that have their answers or have failed, and returns those to
// be sent again. It uses the memory of bundle.
func (n *node) settle(c rueidis.Client, bundle []*request, t *trying) (again []*request) {
	t.tries, t.late = t.tries-1, false
	answered := bundle[:0]
	var failed []*request
	var failure error
	for _, r := range bundle {
		if r.err != nil {
			r.err = classify(r.err)
		}
		switch {
		case r.err == nil:
			answered = append(answered, r)
		case t.tries > 0 && isDemoted(r.err) && n.store.link.renew(c):
			again = append(again, r)
		case isComplaint(r.err):
			answered = append(answered, r)
		case t.again(r.err):
			r.lost = r.lost || c != nil && r.writes() && !isUnsent(r.err)
			again = append(again, r)
		default:
			r.lost = r.lost || c != nil && r.writes() && !isUnsent(r.err)
			failed, failure = append(failed, r), r.err
		}
	}
	if len(answered) > 0 {
		n.answers()
	}
	if failure != nil {
		n.fails(n.weigh(&failed, failure), failure)
	}
	for _, r := range answered {
		if r.err != nil {
			n.counts.failures.Add(1)
			n.complains(r.err)
			r.fail(&Error{n.name, r.err})
		} else if r.end() {
			again = append(again, r)
		}
	}
	n.end(failed, failure)
	return again
}

// weigh returns how many failures there are. A connection that is lost is one, however
// many requests shared it. If the server does not answer, or cannot be reached, it is one
// for each request: those that are queued fail, too, for each would wait for as long.
func (n *node) weigh(failed *[]*request, failure error) int {
	if !isTimeout(failure) && !isUnsent(failure) {
		return 1
	}
	*failed = append(*failed, n.takeAll()...)
	return len(*failed)
}

// end ends requests with an error.
func (n *node) end(requests []*request, err error) {
	if len(requests) == 0 {
		return
	}
	switch {
	case errors.Is(err, ErrClosed):
		err = ErrClosed
	case errors.Is(err, errOverloaded):
		n.counts.overloads.Add(uint64(len(requests)))
		err = &Error{n.name, err}
	default:
		n.counts.failures.Add(uint64(len(requests)))
		err = &Error{n.name, err}
	}
	for _, r := range requests {
		r.fail(err)
	}
}

// cut ends the requests that wait for their turn.
func (n *node) cut(reason error) { n.end(n.takeAll(), reason) }

// takeAll empties the queue.
func (n *node) takeAll() []*request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dequeueLocked(nil, len(n.queue))
}

// answers notes that the server answers.
func (n *node) answers() {
	n.failures.Store(0)
	if n.down.Load() != nil && n.turn(nil) {
		n.tell()
	}
}

// leave ends n, which has left its Cluster, and its outage.
func (n *node) leave() {
	close(n.gone)
	if n.turn(nil) {
		n.tell()
	}
}

// isGone reports whether n has left its Cluster.
func (n *node) isGone() bool {
	select {
	case <-n.gone:
		return true
	default:
		return false
	}
}

// turn notes that the server is down, or with nil that it is not, and reports whether that is
// new. A node that has left is not down again for what is still under way.
func (n *node) turn(down *Error) bool {
	n.turning.Lock()
	defer n.turning.Unlock()
	if (n.down.Load() == nil) == (down == nil) || down != nil && n.isGone() {
		return false
	}
	n.down.Store(down)
	if down == nil {
		n.outage.Note(nil)
	} else {
		n.outage.Note(down)
	}
	return true
}

// tell calls StateChanged.
func (n *node) tell() { n.store.news.Tell(n.store.StateChanged) }

// complains notes an error that the server reported. While it cannot answer, another node of
// its Cluster may have its slots. While it lets no connection in, none is to be made.
func (n *node) complains(err error) {
	var c *complaint
	if !errors.As(err, &c) {
		return
	}
	if c.passing {
		n.store.complained(n)
	}
	switch r := n.store.routes.Load(); {
	case !c.refused:
	case n != r.first:
		n.store.link.refuse(n.name, c)
	case len(r.nodes) == 0: // otherwise it may have been any of them
		n.store.link.refuse("", c)
	}
}

// fails notes that calls have failed. If they are too many in a row, the server is left
// alone, but for probes.
func (n *node) fails(calls int, err error) {
	if errors.Is(err, ErrClosed) {
		return
	}
	n.last.Store(&err)
	n.store.refreshTopology()
	if n.failures.Add(int64(calls)) < int64(n.store.breakerFailures()) {
		return
	}
	down := &Error{n.name, fmt.Errorf("%w, the last failure: %v", ErrDown, err)}
	if n.turn(down) {
		n.store.work(n.probe)
		n.tell()
	}
}

// probe finds out when the server is back, so that no caller has to wait for that. It
// returns then, or when nobody needs the server any more.
func (n *node) probe() {
	pause := time.NewTicker(n.store.breakerPause())
	defer pause.Stop()
	for n.down.Load() != nil {
		select {
		case <-pause.C:
		case <-n.gone:
			return
		case <-n.store.over:
			return
		}
		n.store.refreshTopology()
		if n.isBack() {
			n.answers()
		}
	}
}

// isBack reports whether the server answers.
func (n *node) isBack() bool {
	var p patience
	err := n.ping(false)
	for isTimeout(err) && p.wasLate() {
		err = n.ping(true)
	}
	var reported *complaint
	return err == nil || errors.As(err, &reported) && !reported.passing
}

// ping returns nil if the server answers, over a connection as the calls have: that which
// rueidis keeps for all may be cut, and it takes long to notice.
func (n *node) ping(patient bool) error {
	ctx := newDeadline(n.store.timeout(), patient)
	defer ctx.release()
	c, err := n.store.link.get(ctx)
	if err != nil {
		return classify(err)
	}
	if n.lacksClient(c) && n != n.store.routes.Load().first {
		return errNoClient
	}
	own, ping := n.own(c), c.B().Arbitrary("PING")
	if own == c && c.Mode() == rueidis.ClientModeCluster {
		err = c.Do(ctx, ping.Build()).Error()
	} else {
		err = own.Do(ctx, ping.Blocking()).Error()
	}
	if isClosed(err) {
		n.drop(own)
	}
	return classify(err)
}
