package throttler

import (
	"context"
	"errors"
	"slices"
	"time"
)

// take returns the entries of c whose hit is not taken back yet, for the caller
// to do so: nobody else will.
func (c *call) take() []*entry {
	c.refunds.Lock()
	defer c.refunds.Unlock()
	var counted []*entry
	for _, e := range c.entries {
		if e.counted {
			e.counted = false
			counted = append(counted, e)
		}
	}
	return counted
}

// leave makes ready to be taken again an entry whose hit could not be taken back.
func (c *call) leave(e *entry) {
	c.refunds.Lock()
	defer c.refunds.Unlock()
	e.counted = true
}

// takeBack takes the hits of counted entries of c back, in two round trips as long as nobody is faster.
// Those that could not be looked at can be tried again. Those whose removal
// failed cannot, as it may have been done: a hit is rather left to expire than
// taken back twice.
func (c *call) takeBack(ctx context.Context, counted []*entry) error {
	var open []*entry
	for _, e := range counted {
		// A new entry: the old one is that of the Decision, for others too.
		open = append(open, &entry{client: e.client, key: e.key, refund: e})
	}
	var errs []error
	for len(open) > 0 {
		each(ctx, open, (*entry).get)
		now := instantOf(time.Now())
		open = slices.DeleteFunc(open, func(e *entry) bool {
			if e.err != nil {
				c.leave(e.refund)
				errs = append(errs, e.err)
				return true
			}
			e.now = now
			e.next, e.store = e.stored().without(e.refund.hit, now)
			return !e.store
		})
		if err := ctx.Err(); err != nil && len(open) > 0 { // nothing of this round is written
			for _, e := range open {
				c.leave(e.refund)
			}
			errs = append(errs, err)
			break
		}
		each(ctx, open, (*entry).put)
		open = slices.DeleteFunc(open, func(e *entry) bool {
			if !maybeDone(e.err) && e.lostAgain() {
				return false
			}
			if e.err != nil {
				errs = append(errs, e.err)
			}
			return true
		})
	}
	return errors.Join(errs...)
}
