package throttler

import (
	"context"
	"slices"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// A choice says which reservations to cancel.
type choice func(*reservation) bool

// in chooses the reservations in the records of keys.
func in(keys []string) choice {
	return func(r *reservation) bool { return slices.Contains(keys, r.key) }
}

// flying chooses those of hits in flight.
func flying(r *reservation) bool { return r.limit.Algorithm == record.Leases }

// takeBack takes back the hits of r that are chosen, or all if chosen is nil, for by: see
// [backend.tell]. It waits while another call changes r.
//
// Hits that could not be looked up stay in r, to be tried again. A hit whose removal
// failed does not stay: it may be gone, and must not be taken back twice. It expires in its
// time.
func (r *receipt) takeBack(ctx context.Context, by *Throttler, chosen choice) error {
	if r.empty() {
		return nil
	}
	if chosen == nil && r.takeBackInPlace(by) {
		return nil
	}
	in := r.open()
	parts, end, err := in.begin(ctx, chosen)
	if err != nil {
		return err
	}
	defer end()
	in.settle(ctx, by, parts, nil)
	for _, p := range parts {
		err = join(err, p.err)
	}
	return err
}

// takeBackInPlace takes back all hits of r, which was not used yet, where their records are in
// process memory, and reports whether nothing is left to be done.
func (r *receipt) takeBackInPlace(by *Throttler) (ok bool) {
	if r.in.Load() != nil || r.of.home.memory == nil || r.of.home.t.BlockCache > 0 {
		return false
	}
	in := r.contents()
	in.mu.Lock() // others that use r wait for it
	defer in.mu.Unlock()
	if !r.in.CompareAndSwap(nil, in) {
		return false
	}
	ok = true
	for _, of := range in.all {
		if of.total == 0 {
			continue
		}
		if !of.withdraw() {
			ok = false
			continue
		}
		of.total, of.hits = 0, nil
		of.backend.tell(by, of.key)
	}
	return ok
}

// withdraw takes the only hit of r back, in process memory.
func (r *reservation) withdraw() (ok bool) {
	store := r.backend.memory
	head, tail := store.Head(r.key)
	var bad error
	_, err := store.Visit(head, tail, time.Now(), func(now time.Time, found, room []byte) (value []byte, expiration int32, flags uint32) {
		var ban bool
		if value, expiration, ban, bad = record.WithoutStored(record.InstantOf(now), r.first[0], found, room); ban {
			flags = exchange.BanFlag
		}
		return value, expiration, flags
	})
	r.backend.Visited()
	return err == nil && bad == nil
}

// withdraw takes back what c has counted before it turned out to be refused, even
// if ctx ends then.
func (c *call) withdraw(ctx context.Context) {
	var entries, of, left []*entry
	for _, e := range slices.Concat(c.entries, c.replaced) {
		if c.pending(e) {
			left = append(left, e)
		} else if e.counted() != (record.Hit{}) {
			entries, of = append(entries, e.withdrawal()), append(of, e)
		}
	}
	c.withdrew = true
	askAll(ctx, entries, true)
	for i, w := range entries {
		of[i].Hit = record.Hit{} // even if that is not known
		if err := w.Failed(); err != nil {
			of[i].Note = join(of[i].Note, err)
			if w.Left != nil {
				of[i].Outcome.Cost = 0 // it goes on
			}
			continue
		}
		c.t.queue.Wake(of[i].Key)
		of[i].Outcome, of[i].Again = w.Outcome, w.Again // as it was found, with or without others' hits since
	}
	if len(left) > 0 {
		go c.t.withdrawLate(left)
	}
}

// withdrawal returns the entry that takes back what e has counted.
func (e *entry) withdrawal() *entry {
	w := &entry{name: e.name, limit: e.limit, Verdict: record.Verdict{Hit: e.Hit}}
	w.begin(e.backend, opWithdraw, e.Key)
	return w
}

// withdrawLate takes back what entries count that were left while they were under
// way. It ends when the client has answered or given up.
func (t *Throttler) withdrawLate(left []*entry) {
	ctx := context.Background()
	var entries []*entry
	for _, e := range left {
		e.Wait(ctx)
		if e.Err == nil && e.Hit != (record.Hit{}) {
			entries = append(entries, e.withdrawal())
		}
	}
	askAll(ctx, entries, true)
	for _, w := range entries {
		if w.Failed() == nil {
			t.queue.Wake(w.Key)
		}
	}
}
