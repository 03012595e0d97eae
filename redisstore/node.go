package redisstore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/adaptivethrottler/throttler/internal/turns"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
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
	*upstream.Server
	store  *Store
	client atomic.Pointer[rueidis.Client] // of a Cluster's node; nil: the store's

	mu      sync.Mutex // guards what follows
	queue   upstream.Queue[*request]
	leaders int // goroutines that lead
	sent    int // requests under way

	crowded atomic.Bool // several requests went out together when they last did
}

func newNode(s *Store, name string) *node {
	n := &node{store: s}
	n.Server = upstream.New(upstream.Config{
		Name: name, Failures: s.breakerFailures(), Pause: s.breakerPause(),
		Wrap:  func(err error) error { return serverError(name, err) },
		Probe: n.isBack, Go: s.work, News: &s.news, Changed: s.StateChanged,
	})
	return n
}

// submit queues requests. It reports whether the caller must lead.
func (n *node) submit(requests []*request) (lead bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range requests {
		r.queued = now
		n.queue.Push(r)
	}
	return n.joinLocked()
}

// joinLocked reports whether one goroutine more is to lead, and counts it.
func (n *node) joinLocked() bool {
	if n.queue.Len() == 0 || n.leaders == maxUnderWay || n.leaders > 0 && n.queue.Len() < worthIt {
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
			n.failAll(b.late, errOverloaded)
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
	overdue := n.queue.Len() > 0 && n.queue.All()[0].queued.Before(now.Add(-limit))
	n.mu.Unlock()
	if overdue && turns.Short() {
		limit <<= maxLate
	}
	return now.Add(-limit)
}

// takeLocked fills b from the queue. What was queued before oldest has waited too long.
func (n *node) takeLocked(b *bundle, oldest time.Time) {
	b.late = n.queue.TakeWhile(b.late[:0], func(r *request) bool { return r.queued.Before(oldest) })
	count := n.queue.Len()
	if n.leaders == 1 && count >= 2*worthIt {
		count = (count + 1) / 2 // the other half goes out at the same time
	}
	b.requests = n.queue.Take(b.requests[:0], min(count, maxBundle))
	n.sent += len(b.requests)
	n.crowded.Store(len(b.requests) > 1)
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
		n.Counts.Retries.Add(uint64(len(bundle)))
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
		n.Answered()
	}
	if failure != nil {
		n.fails(n.weigh(&failed, failure), failure)
	}
	for _, r := range answered {
		if r.err != nil {
			n.Counts.Failures.Add(1)
			n.complains(r.err)
			r.fail(serverError(n.Name, r.err))
		} else if r.finish() {
			again = append(again, r)
		}
	}
	n.failAll(failed, failure)
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

// failAll ends requests with an error.
func (n *node) failAll(requests []*request, err error) {
	if len(requests) == 0 {
		return
	}
	switch {
	case errors.Is(err, pool.ErrClosed):
		err = pool.ErrClosed
	case errors.Is(err, errOverloaded):
		n.Counts.Overloads.Add(uint64(len(requests)))
		err = serverError(n.Name, err)
	default:
		n.Counts.Failures.Add(uint64(len(requests)))
		err = serverError(n.Name, err)
	}
	for _, r := range requests {
		r.fail(err)
	}
}

// cut ends the requests that wait for their turn.
func (n *node) cut(reason error) { n.failAll(n.takeAll(), reason) }

// takeAll empties the queue.
func (n *node) takeAll() []*request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.queue.Take(nil, n.queue.Len())
}

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
		n.store.link.refuse(n.Name, c)
	case len(r.nodes) == 0: // otherwise it may have been any of them
		n.store.link.refuse("", c)
	}
}

// fails notes that calls have failed.
func (n *node) fails(calls int, err error) {
	if errors.Is(err, pool.ErrClosed) {
		return
	}
	n.store.refreshTopology()
	n.Failed(calls, err)
}

// isBack reports whether the server answers.
func (n *node) isBack() bool {
	n.store.refreshTopology()
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
