package throttler

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// A receipt is what Cancel needs of a call: the hits that it has counted, and the
// entries of which that is not known yet.
type receipt struct {
	mu   sync.Mutex // held while hits are taken back, each of them once
	hits []counted
	left []*entry // that were left before they were settled

	one [1]counted // room for the usual case
}

// A counted is a hit, and where it is.
type counted struct {
	backend *backend
	key     string
	hit     hit
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
		c.receipt = &c.room().receipt
		c.receipt.hits = c.receipt.one[:0]
	}
	if pending {
		c.receipt.left = append(c.receipt.left, e)
	} else {
		c.receipt.hits = append(c.receipt.hits, counted{e.backend, e.key, e.hit})
	}
}

// only returns a receipt for the hits of r that are in the records of these keys, and
// removes them from r.
func (r *receipt) only(ctx context.Context, keys []string) (*receipt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.await(ctx); err != nil {
		return nil, err
	}
	part, rest := new(receipt), make([]counted, 0, len(r.hits))
	for _, h := range r.hits {
		if slices.Contains(keys, h.key) {
			part.hits = append(part.hits, h)
		} else {
			rest = append(rest, h)
		}
	}
	r.hits = rest
	return part, nil
}

// keep returns to r the hits of part that could not be taken back.
func (r *receipt) keep(part *receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits = append(r.hits, part.hits...)
	r.left = append(r.left, part.left...)
}

// takeBack takes back the hits of r. What could not be looked at stays in r, to
// be tried again. A hit whose removal failed does not, as it may have been done: it
// is rather left to expire than taken back twice.
func (r *receipt) takeBack(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.await(ctx); err != nil {
		return err
	}
	var errs []error
	entries := make([]*entry, len(r.hits))
	for i, h := range r.hits {
		entries[i] = &entry{op: opRefund, backend: h.backend, key: h.key, hit: h.hit}
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

// refunded takes the result of a refund.
func (r *receipt) refunded(e *entry) error {
	err := e.err
	if e.unsent {
		err = e.left
	}
	if err == nil {
		e.backend.t.queue.wake(e.key)
	}
	if err != nil && !e.unknown && !errors.Is(err, errLostAnswer) {
		r.hits = append(r.hits, counted{e.backend, e.key, e.hit})
	}
	return err
}

// await waits for the entries that were left before they were settled, and adds
// their hits to the others.
func (r *receipt) await(ctx context.Context) error {
	for len(r.left) > 0 {
		e := r.left[0]
		if !e.round.wait(ctx) {
			return ctx.Err()
		}
		r.left = r.left[1:]
		switch {
		case e.op == opRefund:
			_ = r.refunded(e) // its error was told when it was left
		case e.err == nil && e.hit != hit{}:
			r.hits = append(r.hits, counted{e.backend, e.key, e.hit})
		}
	}
	return nil
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
	left := c.receipt.left
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
	return &entry{op: opWithdraw, backend: e.backend, condition: e.condition, key: e.key, hit: e.hit}
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
