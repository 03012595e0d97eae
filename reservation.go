package throttler

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A receipt is what a Decision has cost: a reservation for each of its conditions. All
// copies of a Decision share it, and so does what Settle makes of one.
//
// Most receipts are never used. Until then they only note what the call has counted.
type receipt struct {
	in   atomic.Pointer[contents] // see [receipt.open]
	note note                     // what they are made of; nil if they were there from the start
}

// A note is what contents are made of at the first use: *noted, *severalNoted or *uncosted.
type note interface{ contents() *contents }

// The contents of a receipt are what it holds once it is used.
type contents struct {
	shadow bool           // of a rule with Shadow
	turn   chan struct{}  // holds a token while a call changes reservations; made by the first
	all    []*reservation // stay the same

	mu      sync.Mutex // guards what follows, and the reservations; not held during I/O
	settled bool       // a Settle has had its turn
}

// A noted is a reservation of a window or a bucket in fewer bytes, as the call has made it.
type noted struct {
	*terms
	key string
	max int
	ttl time.Duration
	hit record.Brief
}

// The terms of a condition are what is the same for all its calls. Receipts share them.
type terms struct {
	backend       *backend
	name, message string
}

// termsOf returns the terms of a condition: those of another call, if that was lately. They
// are at one of four places, so that the conditions of one rule keep out of each other's way.
func (b *backend) termsOf(of *Condition) *terms {
	first := maphash.String(keySeed, of.Name)
	for i := range uint64(4) {
		t := b.terms[(first+i)%uint64(len(b.terms))].Load()
		if t == nil {
			first += i // is free
			break
		}
		if t.name == of.Name && t.message == of.message() {
			return t
		}
	}
	t := &terms{b, of.Name, of.message()}
	b.terms[first%uint64(len(b.terms))].Store(t)
	return t
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

// reservation returns what n notes.
func (n *noted) reservation() *reservation {
	r := &reservation{
		backend: n.backend, key: n.key, name: n.name, message: n.message,
		limit: record.Limit{Max: n.max, TTL: n.ttl},
	}
	if n.hit.Bucket {
		r.limit.Algorithm = record.Bucket
	}
	if h := n.hit.Hit(&r.limit); h.Cost > 0 {
		r.total, r.first[0] = h.Cost, h
		r.hits = r.first[:]
	}
	return r
}

// contents returns those of a receipt of n alone.
func (n *noted) contents() *contents {
	return &contents{all: []*reservation{n.reservation()}, shadow: n.hit.Shadow}
}

// A severalNoted is what a call of several conditions has made.
type severalNoted struct {
	receipt
	list []noted
}

func (s *severalNoted) contents() *contents {
	in := &contents{all: make([]*reservation, len(s.list)), shadow: s.list[0].hit.Shadow}
	for i := range s.list {
		in.all[i] = s.list[i].reservation()
	}
	return in
}

// open returns the contents of r.
func (r *receipt) open() *contents {
	if in := r.in.Load(); in != nil {
		return in
	}
	in := r.note.contents()
	if !r.in.CompareAndSwap(nil, in) {
		return r.in.Load()
	}
	return in
}

// uncosted returns what r refers to, if its call has counted nothing and r was not used yet.
// Otherwise it returns nil.
func (r *receipt) uncosted() *uncosted {
	if r.in.Load() != nil {
		return nil
	}
	u, _ := r.note.(*uncosted)
	return u
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

// A retained is what the caller of a call keeps: the receipt and the Outcomes.
type retained struct {
	receipt  *receipt
	outcomes []Outcome
	messages []string  // memory for those of the Decision, or nil
	noted    []noted   // for the receipt, if the call has counted
	uncosted *uncosted // for the receipt, if the call has counted nothing
}

// retain returns what the caller keeps of c, which is decided.
func (c *call) retain() retained {
	n := len(c.entries)
	switch {
	case c.dry:
		return retained{outcomes: make([]Outcome, n)}
	case c.countedNothing():
		return retainUncosted(n)
	}
	return retainCounted(n)
}

// retainCounted returns what the caller keeps of a call of n conditions that has counted, in
// one piece of memory if they are few.
func retainCounted(n int) retained {
	switch {
	case n == 1:
		a := new(struct {
			receipt
			outcomes [1]Outcome
			noted    [1]noted
		})
		a.note = &a.noted[0]
		return retained{receipt: &a.receipt, outcomes: a.outcomes[:], noted: a.noted[:]}
	case n == 2:
		a := new(struct {
			severalNoted
			outcomes [2]Outcome
			noted    [2]noted
		})
		return a.retained(a.outcomes[:], a.noted[:])
	case n <= 4:
		a := new(struct {
			severalNoted
			outcomes [4]Outcome
			noted    [4]noted
		})
		return a.retained(a.outcomes[:n:n], a.noted[:n])
	case n <= 8:
		a := new(struct {
			severalNoted
			outcomes [8]Outcome
			noted    [8]noted
		})
		return a.retained(a.outcomes[:n:n], a.noted[:n])
	}
	return new(severalNoted).retained(make([]Outcome, n), make([]noted, n))
}

func (s *severalNoted) retained(outcomes []Outcome, noted []noted) retained {
	s.note, s.list = s, noted
	return retained{receipt: &s.receipt, outcomes: outcomes, noted: noted}
}

// writeReceipt writes down what c has counted, and what it may have, in what keeps has for it.
func (c *call) writeReceipt(keeps *retained) *receipt {
	r := keeps.receipt
	if u := keeps.uncosted; u != nil {
		u.set(c.t, &c.rule)
		for _, e := range c.entries {
			u.take(e.Key)
		}
		return r
	}
	if slices.ContainsFunc(c.entries, func(e *entry) bool { return !c.notable(e) }) || len(c.replaced) > 0 {
		r.note = nil
		r.in.Store(c.reserve())
		return r
	}
	conditions := c.rule.conditions()
	for i, e := range c.entries {
		h := e.counted()
		keeps.note(i, c.home(e), e.Key, &conditions[i], &h, c.rule.Shadow)
	}
	return r
}

// notable reports whether a noted can hold what e has counted.
func (c *call) notable(e *entry) bool {
	return e.limit.Algorithm <= record.Bucket && !c.pending(e) && uint64(e.counted().Cost) <= math.MaxUint32
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

// note notes what condition i, which is of, has counted in the record of key, for a receipt
// that is settled at home.
func (k *retained) note(i int, home *backend, key string, of *Condition, h *record.Hit, shadow bool) {
	n := &k.noted[i] // is zero, and set without a copy
	n.terms, n.key, n.max, n.ttl = home.termsOf(of), key, of.Max, of.TTL
	n.hit = h.Brief()
	n.hit.Bucket, n.hit.Shadow = of.Algorithm == LeakyBucket, shadow
}

// reserve returns the contents of the receipt of c.
func (c *call) reserve() *contents {
	in := &contents{shadow: c.rule.Shadow}
	conditions := c.rule.conditions()
	add := func(e *entry) {
		i := slices.IndexFunc(conditions, func(of Condition) bool { return of.Name == e.name })
		h := e.counted()
		of := &reservation{
			backend: c.home(e), key: e.Key, name: e.name, message: conditions[i].message(), limit: e.limit, total: h.Cost,
		}
		if h.Cost > 0 {
			of.first[0] = h
			of.hits = of.first[:]
		}
		if c.pending(e) {
			of.left = []*entry{e}
		}
		in.all = append(in.all, of)
	}
	for _, e := range c.entries {
		add(e)
	}
	for _, e := range c.replaced {
		if c.pending(e) {
			add(e) // beside that of the fallback, of the same name
		}
	}
	return in
}
