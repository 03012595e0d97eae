package throttler

import (
	"context"
	"errors"
	"slices"
	"sync"
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
	turn chan struct{} // holds a token while a call takes hits back; made by the first
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
	hit     hit
}

// counted returns what e has counted.
func (e *entry) counted() counted { return counted{e.backend, e.key, e.hit} }

// A noted is a counted in less room. The zero noted is none.
type noted struct {
	backend *backend
	key     string
	cost    int
	expiry  instant
	share   *share // room for that of a bucket; nil for a window
}

// set notes c.
func (n *noted) set(c counted) {
	n.backend, n.key, n.cost, n.expiry = c.backend, c.key, c.hit.cost, c.hit.expiry
	if n.share != nil {
		*n.share = c.hit.share
	}
}

// counted returns what n notes.
func (n *noted) counted() counted {
	c := counted{n.backend, n.key, hit{cost: n.cost, expiry: n.expiry}}
	if n.share != nil {
		c.hit.share = *n.share
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

// writeReceipt notes what c has counted, and what it may have.
func (c *call) writeReceipt() {
	for _, e := range c.entries {
		c.noteHit(e)
	}
	for _, e := range c.replaced {
		c.noteHit(e)
	}
}

func (c *call) noteHit(e *entry) {
	pending := e.left != nil && !e.unsent && e.op == opCount
	if !pending && (e.failed() != nil || e.hit == hit{} || e.from != asked) {
		return
	}
	if c.receipt == nil {
		c.receipt = c.newReceipt()
	}
	switch r := c.receipt; {
	case pending:
		all := r.unfold()
		all.left = append(all.left, e)
	case r.all == nil:
		r.only.set(e.counted())
	default:
		r.all.hits = append(r.all.hits, e.counted())
	}
}

func (c *call) newReceipt() *receipt {
	n := len(c.entries)
	if n == 1 {
		return &c.kept().receipt
	}
	r := new(struct {
		receipt
		contents
	})
	r.all = &r.contents
	r.hits = make([]counted, 0, n)
	return &r.receipt
}

// takeBack takes back the hits of r that are in the records of keys, or all if keys
// is nil. It waits while another call takes back hits of r.
func (r *receipt) takeBack(ctx context.Context, keys []string) error {
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
	part := r.remove(keys)
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

// remove removes from r what is in the records of keys, or all if keys is nil, and
// returns it.
func (r *receipt) remove(keys []string) (part cancelable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.unfold()
	if keys == nil {
		part, all.cancelable = all.cancelable, part
		return part
	}
	there := all.cancelable
	all.cancelable = cancelable{}
	for _, h := range there.hits {
		to := &all.cancelable
		if slices.Contains(keys, h.key) {
			to = &part
		}
		to.hits = append(to.hits, h)
	}
	for _, e := range there.left {
		to := &all.cancelable
		if slices.Contains(keys, e.key) {
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
		entries[i] = refund(h)
	}
	r.hits = nil
	askAll(ctx, entries, false)
	for _, e := range entries {
		if e.left != nil && !e.unsent {
			r.left = append(r.left, e)
			errs = append(errs, e.left)
			continue
		}
		errs = append(errs, r.refunded(e))
	}
	return join(errs...)
}

// refund returns the entry that takes h back.
func refund(h counted) *entry {
	return &entry{question: question{op: opRefund, backend: h.backend, key: h.key}, ending: ending{verdict: verdict{hit: h.hit}}}
}

// refunded takes the result of a refund.
func (r *cancelable) refunded(e *entry) error {
	err := e.err
	if e.unsent {
		err = e.left
	}
	if err == nil {
		e.backend.t.queue.wake(e.key)
	}
	if err != nil && !e.unknown && !errors.Is(err, errLostAnswer) {
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
		if !e.round.wait(ctx) {
			return errs
		}
		r.left = r.left[1:]
		if e.op == opRefund {
			_ = r.refunded(e) // its error was told when it was left
			continue
		}
		if e.err == nil && e.hit != (hit{}) {
			r.hits = append(r.hits, e.counted())
		}
		if e.unknown || errors.Is(e.note, errLostAnswer) {
			errs = append(errs, join(e.err, e.note))
		}
	}
	return errs
}

// askAll asks the backend of each of entries. With firm set they are carried out
// even if ctx ends before.
func askAll(ctx context.Context, entries []*entry, firm bool) {
	for len(entries) > 0 {
		b := entries[0].backend
		r := &round{firm: firm}
		var others []*entry
		for _, e := range entries {
			if e.backend == b {
				r.entries = append(r.entries, e)
			} else {
				others = append(others, e)
			}
		}
		b.ask(ctx, r)
		entries = others
	}
}

// giveBack takes back what c has counted before it turned out to be refused, even
// if ctx ends then.
func (c *call) giveBack(ctx context.Context) {
	if c.receipt == nil {
		return
	}
	left := c.receipt.all.left // of several conditions
	c.receipt = nil
	var entries, of []*entry
	for _, e := range c.entries {
		if e.from == asked && e.failed() == nil && e.hit != (hit{}) {
			entries, of = append(entries, e.withdrawal()), append(of, e)
		}
	}
	askAll(ctx, entries, true)
	for i, w := range entries {
		if err := w.failed(); err != nil {
			of[i].note = join(of[i].note, err)
			continue
		}
		of[i].outcome = w.outcome // as it was found, with or without others' hits since
	}
	if len(left) > 0 {
		go withdrawLate(left)
	}
}

// withdrawal returns the entry that takes back what e has counted.
func (e *entry) withdrawal() *entry {
	w := refund(e.counted())
	w.op, w.condition = opWithdraw, e.condition
	return w
}

// withdrawLate takes back what entries count that were left while they were under
// way. It ends when the client has answered or given up.
func withdrawLate(left []*entry) {
	ctx := context.Background()
	var entries []*entry
	for _, e := range left {
		e.round.wait(ctx)
		if e.err == nil && e.hit != (hit{}) {
			entries = append(entries, e.withdrawal())
		}
	}
	askAll(ctx, entries, true)
}
