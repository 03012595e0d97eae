package fanout

import "sync"

// A Batch is the requests of one call, with what waiting for them takes. It is made by [Batches].
type Batch[R any] struct {
	All      []R  // in the order of the call
	Admitted []*R // are to be made; their order may change
	Refused  []*R // no server is to be asked for them

	latches []*Latch
}

// Batches make batches, and use the memory of those again whose requests have ended. They
// belong to one client: a channel must not leave its synctest bubble.
type Batches[R any] struct{ ended sync.Pool }

// maxKept is for how many requests the memory of a batch is kept.
const maxKept = 64

// Get returns a batch of n requests, which are all zero.
func (bs *Batches[R]) Get(n int) *Batch[R] {
	b, ok := bs.ended.Get().(*Batch[R])
	if !ok {
		b = new(Batch[R])
	}
	if n > cap(b.All) {
		b.All, b.Admitted, b.Refused = make([]R, n), make([]*R, 0, n), nil
	}
	b.All = b.All[:n]
	return b
}

// Put takes b back, whose requests have ended and are not used any more.
func (bs *Batches[R]) Put(b *Batch[R]) {
	if len(b.All) > maxKept {
		return
	}
	clear(b.All) // which the others point to
	b.Admitted, b.Refused = b.Admitted[:0], b.Refused[:0]
	bs.ended.Put(b)
}

// Admit admits those of the requests for which admit returns true, and refuses the others.
func (b *Batch[R]) Admit(admit func(*R) bool) {
	for i := range b.All {
		if r := &b.All[i]; admit(r) {
			b.Admitted = append(b.Admitted, r)
		} else {
			b.Refused = append(b.Refused, r)
		}
	}
}

// Latch returns the latch with the index i, of which the batch has those before it already.
func (b *Batch[R]) Latch(i int) *Latch {
	if i == len(b.latches) {
		b.latches = append(b.latches, new(Latch))
	}
	return b.latches[i]
}
