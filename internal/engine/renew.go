package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// ErrLeaseLost is that of package throttler.
var ErrLeaseLost = errors.New("throttler: the lease is lost: it was not renewed in time, or was given back or reset")

// A Lease keeps the in-flight hits of a receipt, which are renewed while work is under way.
type Lease struct {
	engine  *Engine // renews them; nil: there are none
	by      *Engine // which was asked to hold them: the same, or another one over the same records
	receipt *Receipt
	ctx     leaseContext
	cancel  context.CancelCauseFunc
	unwatch func() bool // stops watching for the end of Hold's ctx; nil: nothing watches
	firm    bool        // is never lost

	until atomic.Pointer[end] // when it is lost unless it is renewed; nil: never

	held  []*held     // guarded by holds.mu
	timer *time.Timer // checks the lease at until; guarded by holds.mu
}

// A leaseContext is the context of a Lease. It knows by the clocks when the lease is lost, so
// a process that was stopped is told at once, before its timers run.
type leaseContext struct {
	context.Context
	lease *Lease
}

func (c *leaseContext) Err() error {
	c.check()
	return c.Context.Err()
}

func (c *leaseContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *leaseContext) check() {
	if until := c.lease.until.Load(); until != nil && until.passed(time.Now()) {
		c.lease.engine.holds.check(c.lease)
	}
}

// A parent is Hold's ctx, whose Done is not called again when the context of a Lease ends, while
// the lock of holds is held: it may be that of another Lease, which takes the lock too.
type parent struct {
	context.Context
	done <-chan struct{}
}

func (p parent) Done() <-chan struct{} { return p.done }

// An end is when a lease ends for its holder: by the wall clock, as it is stored, or by the
// monotonic one, whichever comes first. So the holder never relies on a clock that was set
// back, nor on one that stood still while the machine slept.
type end struct {
	wall record.Instant
	mono time.Time
}

// endOf returns the end of a lease that ends at wall, as is known since at.
func endOf(wall record.Instant, at time.Time) end {
	return end{wall, at.Add(wall.Since(record.InstantOf(at)))}
}

// earlier returns e so much earlier.
func (e end) earlier(d time.Duration) end { return end{e.wall - record.Instant(d), e.mono.Add(-d)} }

// left returns how long it is until e.
func (e end) left(now time.Time) time.Duration {
	return min(e.wall.Since(record.InstantOf(now)), max(e.mono.Sub(now), 0))
}

func (e end) passed(now time.Time) bool { return e.left(now) == 0 }

// holds are the leases that an Engine renews. The zero holds are none.
type holds struct {
	mu       sync.Mutex // guards what follows, and all in it; not held during I/O
	byRecord map[recordID]*renewer
}

// A renewer renews the leases of one record together.
type renewer struct {
	recordID
	held    []*held
	timer   *time.Timer // for the next renewal
	busy    bool        // a renewal is under way
	resting time.Time   // after a renewal that failed, no other one before that
}

// A held is a lease in one record, as one Lease holds it.
type held struct {
	lease *Lease
	by    *renewer
	id    uint64
	end   end
	ttl   time.Duration
}

const (
	renewals  = 3           // in one TTL
	marginsIn = 10          // of one TTL: how long before its end a lease is lost, and how long after a failure it is renewed again
	maxSleep  = time.Second // between two looks at the wall clock, which the timers do not follow
)

// due returns when s is to be renewed.
func (s *held) due() end { return s.end.earlier(s.ttl - s.ttl/renewals) }

// lostAt returns when s must not be relied on any more.
func (s *held) lostAt() end { return s.end.earlier(s.ttl / marginsIn) }

// add renews leases for l from now on.
func (h *holds) add(l *Lease, leases []lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byRecord == nil {
		h.byRecord = make(map[recordID]*renewer)
	}
	now := time.Now()
	for _, of := range leases {
		r := h.byRecord[of.recordID]
		if r == nil {
			r = &renewer{recordID: of.recordID}
			h.byRecord[of.recordID] = r
		}
		s := &held{lease: l, by: r, id: of.hit.ID, end: endOf(of.hit.Expiry, now), ttl: time.Duration(of.hit.TTL)}
		r.held, l.held = append(r.held, s), append(l.held, s)
	}
	for _, s := range l.held {
		h.schedule(s.by)
	}
	h.extend(l)
}

// drop stops all renewals of l, which is not lost by that.
func (h *holds) drop(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stop(l)
}

// check ends l if it has not been renewed in time. Otherwise it waits for the rest.
func (h *holds) check(l *Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.extend(l)
}

// lose ends whatever holds the lease of that ID, which is about to be taken back.
func (h *holds) lose(at recordID, id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.byRecord[at]; r != nil {
		h.note(r, map[uint64]record.Instant{id: 0}, time.Now())
	}
}

// end ends the context of l, unless it is never lost, and all its renewals. The caller
// holds h.mu, here and below.
func (h *holds) end(l *Lease) {
	h.stop(l)
	if !l.firm {
		l.cancel(ErrLeaseLost)
	}
}

// stop stops all renewals of l.
func (h *holds) stop(l *Lease) {
	l.until.Store(nil)
	if l.timer != nil {
		l.timer.Stop()
	}
	for _, s := range l.held {
		s.by.remove(s)
		h.schedule(s.by)
	}
	l.held = nil
}

// extend ends l when the first of its leases does, unless it is never lost.
func (h *holds) extend(l *Lease) {
	if l.firm || len(l.held) == 0 {
		return
	}
	now := time.Now()
	until := l.held[0].lostAt()
	for _, s := range l.held[1:] {
		at := s.lostAt()
		until.wall = min(until.wall, at.wall)
		if at.mono.Before(until.mono) {
			until.mono = at.mono
		}
	}
	l.until.Store(&until)
	left := until.left(now)
	switch sleep := min(left, maxSleep); {
	case left == 0:
		h.end(l)
	case l.timer == nil:
		l.timer = time.AfterFunc(sleep, func() { h.check(l) })
	default:
		l.timer.Reset(sleep)
	}
}

// remove takes s out of r.
func (r *renewer) remove(s *held) {
	for i := range r.held {
		if r.held[i] == s {
			r.held = append(r.held[:i:i], r.held[i+1:]...)
			return
		}
	}
}

// schedule sets the time of the next renewal of r.
func (h *holds) schedule(r *renewer) {
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.busy {
		return
	}
	if len(r.held) == 0 {
		if h.byRecord[r.recordID] == r {
			delete(h.byRecord, r.recordID)
		}
		return
	}
	now := time.Now()
	wait := r.held[0].due().left(now)
	for _, s := range r.held[1:] {
		wait = min(wait, s.due().left(now))
	}
	wait = max(wait, r.resting.Sub(now))
	r.timer = time.AfterFunc(wait, func() { h.renew(r) })
}

// renew renews all leases of r in one exchange.
func (h *holds) renew(r *renewer) {
	ends, ttl := h.begin(r)
	if ends == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl/renewals)
	defer cancel()
	at := time.Now()
	e := renewal(r.backend, r.key, ends)
	askAll(ctx, []*entry{e}, false)
	h.mu.Lock()
	defer h.mu.Unlock()
	r.busy = false
	if e.Failed() == nil {
		h.note(r, ends, at)
	} else {
		r.resting = time.Now().Add(ttl / marginsIn)
	}
	h.schedule(r)
}

// renewal returns the entry that renews the leases of a record that are in ends.
func renewal(b *backend, key string, ends map[uint64]record.Instant) *entry {
	e := &entry{change: change{ends: ends}}
	e.begin(b, opRenew, key)
	return e
}

// begin returns the leases that r is to renew, and the shortest of their TTLs. It returns
// nil if a renewal is under way, or there are none.
func (h *holds) begin(r *renewer) (ends map[uint64]record.Instant, ttl time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.busy || len(r.held) == 0 {
		return nil, 0
	}
	r.busy = true
	ends, ttl = make(map[uint64]record.Instant, len(r.held)), r.held[0].ttl
	for _, s := range r.held {
		ends[s.id], ttl = 0, min(ttl, s.ttl)
	}
	return ends, ttl
}

// note notes the ends of leases of r that were renewed by an exchange which began at a time, 0
// for those that are lost.
func (h *holds) note(r *renewer, ends map[uint64]record.Instant, began time.Time) {
	for _, s := range append([]*held(nil), r.held...) {
		wall, ok := ends[s.id]
		switch {
		case !ok || s.lease.held == nil: // it came, or was lost, meanwhile
		case wall == 0:
			h.end(s.lease)
		default:
			s.end = end{wall, began.Add(s.ttl)}
			s.lease.receipt.renewed(s.id, wall) // for another Hold, or for a Receipt
			h.extend(s.lease)
		}
	}
}
