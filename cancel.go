package throttler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A receipt is for the hits that a call has counted, until they are taken back.
type receipt struct {
	mu   sync.Mutex
	hits []hit // each is taken out by whoever takes it back
}

// A hit is what a call has added to one record.
type hit struct {
	client Client
	key    string
	expiry instant // in a window
	share  share   // of a bucket
}

// take empties the receipt and returns what was in it.
func (r *receipt) take() []hit {
	r.mu.Lock()
	defer r.mu.Unlock()
	hits := r.hits
	r.hits = nil
	return hits
}

// putBack makes hits that could not be taken back ready to be tried again.
func (r *receipt) putBack(h hit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits = append(r.hits, h)
}

// from returns r at now without h, and whether h was in it. It is not if it has
// expired, if a ban has come in its place, or if the record was reset.
func (h hit) from(r record, now time.Time) (record, bool) {
	var found bool
	if h.expiry != 0 {
		r.hits, found = r.hits.after(instantOf(now)).without(h.expiry)
	} else {
		r.bucket, found = r.bucket.without(h.share, now)
	}
	return r, found
}

// takeBack takes back the hits of the receipt, in two round trips as long as
// nobody is faster. Those that could not be looked at can be tried again. Those
// whose removal failed cannot, as it may have been done: a hit is rather left
// to expire than taken back twice.
func (r *receipt) takeBack(ctx context.Context) error {
	var open []*entry
	for _, h := range r.take() {
		open = append(open, &entry{client: h.client, key: h.key, refund: &h})
	}
	var errs []error
	for len(open) > 0 {
		each(ctx, open, (*entry).get)
		now := time.Now()
		open = slices.DeleteFunc(open, func(e *entry) bool {
			if e.err != nil {
				r.putBack(*e.refund)
				errs = append(errs, e.err)
				return true
			}
			e.now = now
			e.next, e.store = e.refund.from(e.stored(), now)
			return !e.store
		})
		each(ctx, open, (*entry).put)
		open = slices.DeleteFunc(open, func(e *entry) bool {
			if !maybeDone(e.err) && e.again() {
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
