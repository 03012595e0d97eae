package throttler

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// MaxInFlight is the largest [Condition.Max] of an [InFlight] condition. A record takes 28
// bytes for each lease, so a full one has 280 kB.
const MaxInFlight = record.MaxLeases

// ErrLeaseLost is the cause with which [Lease.Context] ends if the lease was not renewed in
// time, was taken back by Cancel or Settle, or was reset. [Throttler.Renew] returns it then,
// and after [Lease.Release].
var ErrLeaseLost = errors.New("throttler: the lease is lost: it was not renewed in time, or was given back or reset")

// A Lease keeps the in-flight hits of a Decision while work is under way: [Throttler.Hold]
// returns it. Its methods are safe for concurrent use.
type Lease struct {
	t       *Throttler // made the Decision
	by      *Throttler // holds it: the same, or another one over the same records
	receipt *receipt   // nil: nothing is held
	ctx     leaseContext
	cancel  context.CancelCauseFunc
	forget  func() bool // has the end of Hold's ctx no longer stop renewals; nil: nothing to stop
	firm    bool        // is never lost

	until atomic.Int64 // the Instant at which it is lost unless it is renewed; 0: never

	stakes []*stake    // guarded by holds.mu
	timer  *time.Timer // checks l at until; guarded by holds.mu
}

// Hold renews the in-flight hits of d while work is under way, so that they count until
// [Lease.Release]. All leases
// of this Throttler on one record are renewed together, at a third of their TTL. When ctx
// ends, renewals end, and the hits count for the rest of their TTL unless Release gives them
// back before.
//
// A lease is lost if it could not be renewed in time, as in an outage or after the process
// was stopped; if Cancel takes back its hit; and, from the next renewal on, if its record
// was reset or lost. It is then never renewed again. The Lease of a Decision without stored
// in-flight hits, or with all of them given back, is never lost, nor is that of a rule with
// [Rule.Shadow].
//
// To hold a Decision of [Throttler.Redeem], renew it first by [Throttler.Renew].
func (t *Throttler) Hold(ctx context.Context, d Decision) *Lease {
	t.check(ctx)
	l := &Lease{t: t, by: t, receipt: d.receipt}
	l.ctx.lease = l
	l.ctx.Context, l.cancel = context.WithCancelCause(ctx)
	if d.receipt == nil {
		return l
	}
	hits, shadow := d.receipt.inFlight()
	if len(hits) == 0 {
		return l
	}
	l.firm = shadow
	l.t = hits[0].backend.t // which made d, and is told when its hits are given back
	l.t.holds.add(l, hits)
	l.forget = context.AfterFunc(ctx, func() { l.t.holds.drop(l) })
	return l
}

// Context returns the ctx for the work to hold, a child of Hold's ctx. It ends with the
// cause [ErrLeaseLost] when the lease is lost: a tenth of its TTL before others may count
// in its record, so their clocks may be that far ahead. Work that stops when it ends never
// overlaps with more than Max others. After Release it ends with [context.Canceled].
func (l *Lease) Context() context.Context { return &l.ctx }

// Release gives the in-flight hits back, and wakes a call that waits for one. Other hits of
// the Decision stay. The second call, or one after a Cancel, does nothing. The error is that
// of [Throttler.Cancel]. Hits that could not be given back end within their TTL. Release gives
// back although ctx has ended, and returns after 2 s at the latest.
func (l *Lease) Release(ctx context.Context) error {
	l.by.check(ctx)
	l.t.holds.drop(l)
	if l.forget != nil {
		l.forget()
	}
	l.cancel(nil)
	if l.receipt == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	return l.receipt.takeBack(ctx, l.by, flying)
}

// Renew renews the in-flight hits of d once, for another TTL: use it instead of
// [Throttler.Hold] for a Decision of [Throttler.Redeem], or to renew at a pace of your own.
// The error matches [ErrLeaseLost] if the lease of a condition has ended, or all its hits
// were given back through d. Otherwise it is the backend's. After a Settle to a smaller
// total, what is left is renewed. Renew does nothing, without an error, if d never had
// in-flight hits, or comes from a receipt that was written after all were given back.
func (t *Throttler) Renew(ctx context.Context, d Decision) error {
	t.check(ctx)
	if d.receipt == nil {
		return nil
	}
	hits, _ := d.receipt.inFlight()
	entries := make([]*entry, len(hits))
	for i, h := range hits {
		entries[i] = renewal(h.backend, h.key, map[uint64]record.Instant{h.hit.ID: 0})
	}
	askAll(ctx, entries, false)
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = e.Failed(); errs[i] != nil {
			continue
		}
		end := e.ends[hits[i].hit.ID]
		if end == 0 {
			errs[i] = ErrLeaseLost
			continue
		}
		d.receipt.renewed(hits[i].hit.ID, end)
	}
	if d.receipt.endedLeases() {
		errs = append(errs, ErrLeaseLost)
	}
	return join(errs...)
}

// renewal returns the entry that renews the leases of a record that are in ends.
func renewal(b *backend, key string, ends map[uint64]record.Instant) *entry {
	e := &entry{ends: ends}
	e.begin(b, opRenew, key)
	return e
}

// A leaseContext is the context of a Lease. It knows by the clock when the lease is lost, so
// a process that was stopped is told at once, before its timers run.
type leaseContext struct {
	context.Context
	lease *Lease
}

func (c *leaseContext) Err() error {
	if until := c.lease.until.Load(); until != 0 && int64(record.InstantOf(time.Now())) >= until {
		c.lease.t.holds.check(c.lease)
	}
	return c.Context.Err()
}

// holds are the leases that a Throttler renews. The zero holds are none.
type holds struct {
	mu       sync.Mutex // guards what follows, and all in it; not held during I/O
	byRecord map[recordID]*group
}

// A recordID is a record in a backend.
type recordID struct {
	backend *backend
	key     string
}

// A group is the leases of one record, which are renewed together.
type group struct {
	recordID
	stakes  []*stake
	timer   *time.Timer // for the next renewal
	busy    bool        // a renewal is under way
	resting time.Time   // after a renewal that failed, no other one before that
}

// A stake is a lease in one record, as one Lease holds it.
type stake struct {
	lease *Lease
	group *group
	id    uint64
	end   record.Instant // as stored
	ttl   time.Duration
}

const (
	renewals  = 3  // in one TTL
	marginsIn = 10 // of one TTL: how long before its end a lease is lost, and how long after a failure it is renewed again
)

// due returns when s is to be renewed.
func (s *stake) due() record.Instant { return s.end - record.Instant(s.ttl-s.ttl/renewals) }

// add renews hits for l from now on.
func (h *holds) add(l *Lease, hits []held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byRecord == nil {
		h.byRecord = make(map[recordID]*group)
	}
	for _, c := range hits {
		at := c.recordID
		g := h.byRecord[at]
		if g == nil {
			g = &group{recordID: at}
			h.byRecord[at] = g
		}
		s := &stake{lease: l, group: g, id: c.hit.ID, end: c.hit.Expiry, ttl: time.Duration(c.hit.TTL)}
		g.stakes, l.stakes = append(g.stakes, s), append(l.stakes, s)
	}
	for _, s := range l.stakes {
		h.schedule(s.group)
	}
	h.extend(l)
}

// drop stops all renewals of l, which is not lost by that.
func (h *holds) drop(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(l)
}

// check loses l if it has not been renewed in time. Otherwise it waits for the rest: the clock
// may have gone back since the timer was set.
func (h *holds) check(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.extend(l)
}

// lost loses whatever holds the lease of that ID, which is about to be taken back.
func (h *holds) lost(at recordID, id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g := h.byRecord[at]; g != nil {
		g.takeEnds(h, map[uint64]record.Instant{id: 0})
	}
}

// lose ends the context of l, unless it is never lost, and all its renewals. The caller
// holds h.mu, here and below.
func (h *holds) lose(l *Lease) {
	h.end(l)
	if !l.firm {
		l.cancel(ErrLeaseLost)
	}
}

// end stops all renewals of l.
func (h *holds) end(l *Lease) {
	l.until.Store(0)
	if l.timer != nil {
		l.timer.Stop()
	}
	for _, s := range l.stakes {
		s.group.remove(s)
		h.schedule(s.group)
	}
	l.stakes = nil
}

// extend has l be lost when the first of its stakes is, unless it is never lost.
func (h *holds) extend(l *Lease) {
	if l.firm || len(l.stakes) == 0 {
		return
	}
	until := l.stakes[0].lostAt()
	for _, s := range l.stakes[1:] {
		until = min(until, s.lostAt())
	}
	l.until.Store(int64(until))
	left := until.Since(record.InstantOf(time.Now()))
	switch {
	case left == 0:
		h.lose(l)
	case l.timer == nil:
		l.timer = time.AfterFunc(left, func() { h.check(l) })
	default:
		l.timer.Reset(left)
	}
}

// lostAt returns when s must not be relied on any more.
func (s *stake) lostAt() record.Instant { return s.end - record.Instant(s.ttl/marginsIn) }

// remove takes s out of g.
func (g *group) remove(s *stake) {
	for i := range g.stakes {
		if g.stakes[i] == s {
			g.stakes = append(g.stakes[:i:i], g.stakes[i+1:]...)
			return
		}
	}
}

// schedule sets the time of the next renewal of g.
func (h *holds) schedule(g *group) {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.busy {
		return
	}
	if len(g.stakes) == 0 {
		if h.byRecord[g.recordID] == g {
			delete(h.byRecord, g.recordID)
		}
		return
	}
	due := g.stakes[0].due()
	for _, s := range g.stakes[1:] {
		due = min(due, s.due())
	}
	wait := max(due.Since(record.InstantOf(time.Now())), time.Until(g.resting), 0)
	g.timer = time.AfterFunc(wait, func() { h.renew(g) })
}

// renew renews all leases of g in one exchange.
func (h *holds) renew(g *group) {
	ends, ttl := h.begin(g)
	if ends == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl/renewals)
	defer cancel()
	e := renewal(g.backend, g.key, ends)
	askAll(ctx, []*entry{e}, false)
	h.mu.Lock()
	defer h.mu.Unlock()
	g.busy = false
	if e.Failed() == nil {
		g.takeEnds(h, ends)
	} else {
		g.resting = time.Now().Add(ttl / marginsIn)
	}
	h.schedule(g)
}

// begin returns the leases that g is to renew, and the shortest of their TTLs. It returns
// nil if a renewal is under way, or there are none.
func (h *holds) begin(g *group) (ends map[uint64]record.Instant, ttl time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.busy || len(g.stakes) == 0 {
		return nil, 0
	}
	g.busy = true
	ends, ttl = make(map[uint64]record.Instant, len(g.stakes)), g.stakes[0].ttl
	for _, s := range g.stakes {
		ends[s.id], ttl = 0, min(ttl, s.ttl)
	}
	return ends, ttl
}

// takeEnds takes the ends of renewed leases, 0 for those that are lost.
func (g *group) takeEnds(h *holds, ends map[uint64]record.Instant) {
	for _, s := range append([]*stake(nil), g.stakes...) {
		end, ok := ends[s.id]
		switch {
		case !ok || s.lease.stakes == nil: // it came, or was lost, meanwhile
		case end == 0:
			h.lose(s.lease)
		default:
			s.end = end
			s.lease.receipt.renewed(s.id, end) // for another Hold, or for a Receipt
			h.extend(s.lease)
		}
	}
}
