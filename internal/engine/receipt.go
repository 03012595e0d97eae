package engine

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Receipt is what one call has cost. All copies of a Decision share it, and so does what
// Settle makes of one.
//
// Most receipts are never used. Until then they only note what the call has counted: see
// [Receipt.open].
type Receipt struct {
	in   atomic.Pointer[contents]
	plan *Plan      // of the call; nil: in was there from the start
	one  [1]Counted // of a call of one condition
	more *[]Counted // of a call of several: one for each condition
}

// A Counted is what a call has counted in the record of key.
type Counted struct {
	key string
	hit record.Brief
}

// brief reports whether a [record.Brief] can hold that many hits.
func brief(cost int) bool { return uint64(cost) <= math.MaxUint32 }

// Use gives r, which is zero, the memory for a call of several conditions.
func (r *Receipt) Use(parts *[]Counted) { r.more = parts }

// parts returns what the call has counted in each of its conditions.
func (r *Receipt) parts() []Counted {
	if r.more != nil {
		return *r.more
	}
	return r.one[:]
}

// clear makes r that of a call which is yet to be made.
func (r *Receipt) clear() {
	r.in.Store(nil)
	r.plan = nil
	clear(r.parts())
}

// The contents of a receipt are what it holds once it is used.
type contents struct {
	shadow bool           // of a rule with Shadow
	lock   chan struct{}  // holds a token while a call changes reservations; made by the first
	all    []*reservation // stay the same

	mu      sync.Mutex // guards what follows, and the reservations; not held during I/O
	settled bool       // a Settle has had the lock
}

// A reservation is what a call has cost in one record, by one condition.
type reservation struct {
	home               *backend
	key, name, message string
	limit              record.Limit   // of the condition, for any Cost
	bounds             *record.Bounds // of a period of a calendar that was redeemed

	total int          // hits that it has cost
	hits  []record.Hit // those that were counted and not given back yet, oldest first
	left  []*entry     // were left by their callers, and may change it still
	busy  bool         // a call is changing it
	ended bool         // its leases were given back, and it has begun no other one

	first [1]record.Hit // memory for hits
}

// newReservation returns that of a condition which has counted h.
func newReservation(home *backend, key string, of *Condition, h record.Hit) *reservation {
	r := &reservation{home: home, key: key, name: of.Name, message: of.Message, limit: of.Limit, total: h.Cost}
	if h.Cost > 0 {
		r.first[0] = h
		r.hits = r.first[:]
	}
	return r
}

// open returns the contents of r.
func (r *Receipt) open() *contents {
	if in := r.in.Load(); in != nil {
		return in
	}
	in := r.unfold()
	if !r.in.CompareAndSwap(nil, in) {
		return r.in.Load()
	}
	return in
}

// unfold returns the contents that r has at its first use.
func (r *Receipt) unfold() *contents {
	in := &contents{shadow: r.plan.Shadow, all: make([]*reservation, len(r.plan.Conditions))}
	for i, part := range r.parts() {
		of := &r.plan.Conditions[i]
		in.all[i] = newReservation(r.plan.engine.main, part.key, of, part.hit.Hit(&of.Limit))
	}
	return in
}

// unused reports whether r has counted nothing, and was not used yet.
func (r *Receipt) unused() bool {
	return r.in.Load() == nil && !slices.ContainsFunc(r.parts(), func(part Counted) bool { return part.hit.Counted() })
}

// Names returns the names of the conditions.
func (r *Receipt) Names() []string {
	var names []string
	for _, of := range r.open().all {
		names = append(names, of.name)
	}
	return names
}

// acquire waits until no other call changes any of in, and marks those that are to be changed.
// The caller calls release in the end.
func (in *contents) acquire(ctx context.Context, all []*reservation) (release func(), err error) {
	in.mu.Lock()
	if in.lock == nil {
		in.lock = make(chan struct{}, 1)
	}
	lock := in.lock
	in.mu.Unlock()
	select {
	case lock <- struct{}{}: // even if ctx has ended
	default:
		select {
		case lock <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	setBusy := func(busy bool) {
		in.mu.Lock()
		defer in.mu.Unlock()
		for _, r := range all {
			r.busy = busy
		}
	}
	setBusy(true)
	return func() {
		setBusy(false)
		<-lock
	}, nil
}

// A lease is a hit in flight, and where it is.
type lease struct {
	recordID
	hit record.Hit
}

// A recordID is a record in a backend.
type recordID struct {
	backend *backend
	key     string
}

// leases returns the hits of r that are in flight, and whether their rule has Shadow.
func (r *Receipt) leases() (all []lease, shadow bool) {
	if r.in.Load() == nil && !slices.ContainsFunc(r.plan.Conditions, func(c Condition) bool { return c.Limit.Algorithm == record.Leases }) {
		return nil, false
	}
	in := r.open()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, of := range in.all {
		for _, h := range of.hits {
			if h.IsLease() {
				all = append(all, lease{recordID{of.home, of.key}, h})
			}
		}
	}
	return all, in.shadow
}

// gaveLeasesBack reports whether leases of r were given back by r itself.
func (r *Receipt) gaveLeasesBack() bool {
	in := r.in.Load()
	if in == nil {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.all, func(of *reservation) bool { return of.ended })
}

// renewed notes the end of a lease that was renewed.
func (r *Receipt) renewed(id uint64, end record.Instant) {
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
