package throttler

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A receipt is what a Decision has cost. All copies of a Decision share it, and so does what
// Settle makes of one.
//
// Most receipts are never used. Until then they only note what the call has counted.
type receipt struct {
	in   atomic.Pointer[contents] // see [receipt.open]
	of   *plan                    // of the call; nil if in was there from the start
	one  [1]counted               // in its condition, of a call of one
	more *[]counted               // in each of its conditions; nil: see one
}

// counted returns what the call has counted in each of its conditions.
func (r *receipt) counted() []counted {
	if r.more != nil {
		return *r.more
	}
	return r.one[:]
}

// A counted is what a call has counted in the record of key.
type counted struct {
	key string
	hit record.Brief
}

// The contents of a receipt are what it holds once it is used.
type contents struct {
	shadow bool           // of a rule with Shadow
	turn   chan struct{}  // holds a token while a call changes reservations; made by the first
	all    []*reservation // stay the same

	mu      sync.Mutex // guards what follows, and the reservations; not held during I/O
	settled bool       // a Settle has had its turn
}

// A reservation is what a Decision has cost in one record, by one condition.
type reservation struct {
	backend            *backend
	key, name, message string
	limit              record.Limit   // of the condition, for any Cost. Its Max is 0 if it is not known
	bounds             *record.Bounds // of a period of a calendar that was redeemed

	total int          // hits that it has cost
	hits  []record.Hit // those that were counted and not given back yet, oldest first
	left  []*entry     // were left by their callers, and may change it still
	busy  bool         // a call is changing it
	ended bool         // its leases were given back, and it has begun no other one

	first [1]record.Hit // memory for hits
}

// open returns the contents of r.
func (r *receipt) open() *contents {
	if in := r.in.Load(); in != nil {
		return in
	}
	in := r.contents()
	if !r.in.CompareAndSwap(nil, in) {
		return r.in.Load()
	}
	return in
}

// contents returns what r has at its first use.
func (r *receipt) contents() *contents {
	in := &contents{all: make([]*reservation, len(r.of.limits)), shadow: r.of.rule.Shadow}
	for i, c := range r.counted() {
		l := &r.of.limits[i]
		in.all[i] = newReservation(r.of.home, c.key, l, c.hit.Hit(&l.Limit))
	}
	return in
}

// newReservation returns that of a condition which has counted h.
func newReservation(b *backend, key string, l *prepared, h record.Hit) *reservation {
	r := &reservation{backend: b, key: key, name: l.name, message: l.message, limit: l.Limit, total: h.Cost}
	if h.Cost > 0 {
		r.first[0] = h
		r.hits = r.first[:]
	}
	return r
}

// empty reports whether r has counted nothing, and has not been used.
func (r *receipt) empty() bool {
	return r.in.Load() == nil && !slices.ContainsFunc(r.counted(), func(c counted) bool { return c.hit.Counted() })
}

// A part is a reservation that a call changes, and what becomes of it.
type part struct {
	*reservation
	entry *entry // nil: it was not asked
	err   error
}

// begin returns the reservations that are chosen, all if chosen is nil. It waits until no
// other call changes any of in. The caller ends its turn by calling end.
func (in *contents) begin(ctx context.Context, chosen choice) (parts []part, end func(), err error) {
	parts = make([]part, 0, len(in.all))
	for _, r := range in.all {
		if chosen == nil || chosen(r) {
			parts = append(parts, part{reservation: r})
		}
	}
	in.mu.Lock()
	if in.turn == nil {
		in.turn = make(chan struct{}, 1)
	}
	turn := in.turn
	in.mu.Unlock()
	select {
	case turn <- struct{}{}: // even if ctx has ended
	default:
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return parts, nil, ctx.Err()
		}
	}
	setBusy := func(busy bool) {
		in.mu.Lock()
		defer in.mu.Unlock()
		for _, p := range parts {
			p.busy = busy
		}
	}
	setBusy(true)
	return parts, func() {
		setBusy(false)
		<-turn
	}, nil
}

// A held is a hit in flight, and where it is.
type held struct {
	recordID
	hit record.Hit
}

// inFlight returns the hits of r that are in flight, and whether their rule has Shadow.
func (r *receipt) inFlight() (hits []held, shadow bool) {
	in := r.in.Load()
	if in == nil {
		return nil, false // only other algorithms are noted
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, of := range in.all {
		for _, h := range of.hits {
			if h.IsLease() {
				hits = append(hits, held{recordID{of.backend, of.key}, h})
			}
		}
	}
	return hits, in.shadow
}

// endedLeases reports whether leases of r were given back by r itself.
func (r *receipt) endedLeases() bool {
	in := r.in.Load()
	if in == nil {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.all, func(of *reservation) bool { return of.ended })
}

// renewed notes the end of a lease that was renewed.
func (r *receipt) renewed(id uint64, end record.Instant) {
	in := r.open()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, of := range in.all {
		i := slices.IndexFunc(of.hits, func(h record.Hit) bool { return h.Kind == record.Leases && h.ID == id })
		if i >= 0 {
			of.hits = slices.Clone(of.hits) // a Settle may be reading them
			of.hits[i].Expiry = end
		}
	}
}

// A kept is what the caller of a call keeps, in one piece of memory if the conditions are one
// or two.
type kept struct {
	*receipt
	outcomes []Outcome
	messages []string // memory for those of the Decision
}

// A keptOne is the memory of a kept for a call of one condition.
type keptOne struct {
	receipt  receipt
	outcomes [1]Outcome
	messages [1]string
}

// keep returns what the caller keeps of a call.
func (p *plan) keep() (k kept) {
	switch n := len(p.limits); n {
	case 1:
		a := new(keptOne)
		k = kept{&a.receipt, a.outcomes[:], a.messages[:]}
	case 2:
		a := new(struct {
			receipt
			more     []counted
			counted  [2]counted
			outcomes [2]Outcome
			messages [2]string
		})
		a.more, a.receipt.more = a.counted[:], &a.more
		k = kept{&a.receipt, a.outcomes[:], a.messages[:]}
	default:
		a := new(struct {
			receipt
			more []counted
		})
		a.more, a.receipt.more = make([]counted, n), &a.more
		k = kept{&a.receipt, make([]Outcome, n), nil}
	}
	k.of = p
	return k
}

// note notes what the call has counted in condition i.
func (k *kept) note(i int, key string, h *record.Hit) {
	c := &k.counted()[i] // is zero, and set without a copy
	c.key, c.hit = key, h.Brief()
}

// writeReceipt writes down what c has counted, and what it may have, in k.
func (c *call) writeReceipt(k *kept) {
	if slices.ContainsFunc(c.entries, func(e *entry) bool { return !c.notable(e) }) || len(c.replaced) > 0 {
		k.of = nil
		k.in.Store(c.reserve())
		return
	}
	for i, e := range c.entries {
		h := e.counted()
		k.note(i, e.Key, &h)
	}
}

// notable reports whether a counted can hold what e has counted: a window or a bucket, in the
// backend of c.
func (c *call) notable(e *entry) bool {
	return e.limit.Algorithm <= record.Bucket && !c.pending(e) && brief(e.counted().Cost) && c.home(e) == c.plan.home
}

// pending reports whether e was left, may count yet, and is not given back then.
func (c *call) pending(e *entry) bool {
	return e.Left != nil && !e.Unsent && e.op == opCount && !c.withdrew
}

// counted returns what e has counted for its call, if that is known.
func (e *entry) counted() record.Hit {
	if e.from != asked || e.Failed() != nil {
		return record.Hit{}
	}
	return e.Hit
}

// home returns where e is settled: where it was decided, or else where it should have been.
func (c *call) home(e *entry) *backend {
	if e.from == asked && (e.Failed() == nil || c.pending(e)) {
		return e.backend
	}
	return c.t.backend()
}

// reserve returns the contents of the receipt of c.
func (c *call) reserve() *contents {
	in := &contents{shadow: c.rule.Shadow}
	add := func(i int, e *entry) {
		of := newReservation(c.home(e), e.Key, &c.plan.limits[i], e.counted())
		of.limit = e.limit
		if c.pending(e) {
			of.left = []*entry{e}
		}
		in.all = append(in.all, of)
	}
	for i, e := range c.entries {
		add(i, e)
	}
	for _, e := range c.replaced {
		if c.pending(e) {
			// beside that of the fallback, of the same name
			add(slices.IndexFunc(c.plan.limits, func(l prepared) bool { return l.name == e.name }), e)
		}
	}
	return in
}
