package throttler

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/slots"
)

// A receipt is what Cancel needs of a call. It holds each hit until a call takes it
// back: that call removes the hit first, and puts it back if it could not.
//
// Most calls have one condition, and most receipts are never used. Until then, such a
// receipt only notes the hit.
type receipt struct {
	mu   sync.Mutex // guards what follows; not held during I/O
	only noted      // what a call with one condition counted; none if there is all
	all  *contents  // see [receipt.unfold]
}

// The contents of a receipt are what it holds, once it has several hits or is used.
type contents struct {
	shadow bool          // of a rule with Shadow
	turn   chan struct{} // holds a token while a call takes hits back; made by the first
	cancelable
}

// A cancelable is what can be taken back: hits, and entries that may have counted one.
type cancelable struct {
	hits []counted
	left []*entry // that were left before they were settled
}

// A counted is a hit, and where it is.
type counted struct {
	backend *backend
	key     string
	hit     record.Hit
}

// counted returns what e has counted.
func (e *entry) counted() counted { return counted{e.backend, e.Key, e.Hit} }

// A noted is a counted in fewer bytes. The zero noted is none.
type noted struct {
	backend *backend
	key     string
	cost    int
	expiry  record.Instant
	share   *record.Share // that of a bucket; nil for a window
}

// set notes what e has counted.
func (n *noted) set(e *entry) {
	n.backend, n.key, n.cost, n.expiry = e.backend, e.Key, e.Hit.Cost, e.Hit.Expiry
	if n.share != nil {
		*n.share = e.Hit.Share
	}
}

// counted returns what n notes.
func (n *noted) counted() counted {
	c := counted{n.backend, n.key, record.Hit{Cost: n.cost, Expiry: n.expiry}}
	if n.share != nil {
		c.hit.Share = *n.share
	}
	return c
}

// unfold returns the contents of r. The caller holds r.mu, or is alone with r.
func (r *receipt) unfold() *contents {
	if r.all == nil {
		r.all = new(contents)
		if r.only.backend != nil {
			r.all.hits = []counted{r.only.counted()}
		}
		r.only = noted{}
	}
	return r.all
}

// A choice says which hits to take back, by the key of their record and their algorithm.
type choice func(key string, hit record.Algorithm) bool

// in chooses the hits in the records of keys.
func in(keys []string) choice {
	return func(key string, _ record.Algorithm) bool { return slices.Contains(keys, key) }
}

// takeBack takes back the hits of r that are chosen, or all if chosen is nil. It waits
// while another call takes back hits of r.
func (r *receipt) takeBack(ctx context.Context, chosen choice) error {
	turn := r.turns()
	select {
	case turn <- struct{}{}: // even if ctx has ended
	default:
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-turn }()
	part := r.remove(chosen)
	err := part.takeBack(ctx)
	r.putBack(part)
	return err
}

func (r *receipt) turns() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.unfold()
	if all.turn == nil {
		all.turn = make(chan struct{}, 1)
	}
	return all.turn
}

// remove removes from r what is chosen, or all if chosen is nil, and returns it.
func (r *receipt) remove(chosen choice) (part cancelable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.unfold()
	if chosen == nil {
		part, all.cancelable = all.cancelable, part
		return part
	}
	there := all.cancelable
	all.cancelable = cancelable{}
	for _, h := range there.hits {
		to := &all.cancelable
		if chosen(h.key, h.hit.Kind) {
			to = &part
		}
		to.hits = append(to.hits, h)
	}
	for _, e := range there.left {
		to := &all.cancelable
		if chosen(e.Key, e.limit.Algorithm) {
			to = &part
		}
		to.left = append(to.left, e)
	}
	return part
}

// putBack returns to r what could not be taken back.
func (r *receipt) putBack(part cancelable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.unfold()
	all.hits = append(all.hits, part.hits...)
	all.left = append(all.left, part.left...)
}

// takeBack takes back the hits of r. Hits that could not be looked up stay in r, to
// be tried again. A hit whose removal failed does not stay: it may be gone, and must
// not be taken back twice. It expires in its time.
func (r *cancelable) takeBack(ctx context.Context) error {
	errs := r.await(ctx)
	if len(r.left) > 0 {
		return join(append(errs, ctx.Err())...)
	}
	entries := make([]*entry, len(r.hits))
	for i, h := range r.hits {
		if h.hit.Kind == record.Leases {
			h.backend.t.holds.lost(recordID{h.backend, h.key}, h.hit.ID)
		}
		entries[i] = refund(h)
	}
	r.hits = nil
	askAll(ctx, entries, false)
	for _, e := range entries {
		if e.Left != nil && !e.Unsent {
			r.left = append(r.left, e)
			errs = append(errs, e.Left)
			continue
		}
		errs = append(errs, r.refunded(e))
	}
	return join(errs...)
}

// inFlight returns the hits of r that are in flight, and whether their rule has Shadow.
func (r *receipt) inFlight() (hits []counted, shadow bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		return nil, false // a single hit of another kind
	}
	for _, h := range r.all.hits {
		if h.hit.Kind == record.Leases {
			hits = append(hits, h)
		}
	}
	return hits, r.all.shadow
}

// renewed notes the end of a lease that was renewed.
func (r *receipt) renewed(id uint64, end record.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.all.hits {
		if h := &r.all.hits[i].hit; h.Kind == record.Leases && h.ID == id {
			h.Expiry = end
		}
	}
}

// refund returns the entry that takes h back.
func refund(h counted) *entry {
	e := &entry{Verdict: record.Verdict{Hit: h.hit}}
	e.begin(h.backend, opRefund, h.key)
	return e
}

// refunded takes the result of a refund.
func (r *cancelable) refunded(e *entry) error {
	err := e.Err
	if e.Unsent {
		err = e.Left
	}
	if err == nil {
		e.backend.t.queue.Wake(e.Key)
	}
	unsure := e.Unknown || errors.Is(err, slots.ErrLostAnswer) || e.Hit.Kind == record.Calendar && e.Tried()
	if err != nil && !unsure {
		r.hits = append(r.hits, e.counted())
	}
	return err
}

// await waits for the entries that were left before they were settled, and adds
// their hits to the others. It returns the errors of those that may have counted another
// hit, which stays. If ctx ends, the entries that are not settled stay in r.left.
func (r *cancelable) await(ctx context.Context) (errs []error) {
	for len(r.left) > 0 {
		e := r.left[0]
		if !e.Wait(ctx) {
			return errs
		}
		r.left = r.left[1:]
		if e.op == opRefund {
			_ = r.refunded(e) // its error was told when it was left
			continue
		}
		if e.Err == nil && e.Hit != (record.Hit{}) {
			r.hits = append(r.hits, e.counted())
		}
		if e.Unknown || errors.Is(e.Note, slots.ErrLostAnswer) {
			errs = append(errs, join(e.Err, e.Note))
		}
	}
	return errs
}

// withdraw takes back what c has counted before it turned out to be refused, even
// if ctx ends then.
func (c *call) withdraw(ctx context.Context) {
	if c.receipt == nil {
		return
	}
	left := c.receipt.all.left // of several conditions
	c.receipt = nil
	var entries, of []*entry
	for _, e := range c.entries {
		if e.from == asked && e.Failed() == nil && e.Hit != (record.Hit{}) {
			entries, of = append(entries, e.withdrawal()), append(of, e)
		}
	}
	askAll(ctx, entries, true)
	for i, w := range entries {
		if err := w.Failed(); err != nil {
			of[i].Note = join(of[i].Note, err)
			continue
		}
		if of[i].Hit.Kind == record.Leases {
			c.t.queue.Wake(of[i].Key)
		}
		of[i].Outcome = w.Outcome // as it was found, with or without others' hits since
	}
	if len(left) > 0 {
		go withdrawLate(left)
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
func withdrawLate(left []*entry) {
	ctx := context.Background()
	var entries []*entry
	for _, e := range left {
		e.Wait(ctx)
		if e.Err == nil && e.Hit != (record.Hit{}) {
			entries = append(entries, e.withdrawal())
		}
	}
	askAll(ctx, entries, true)
}
