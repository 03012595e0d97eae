package memstore

import (
	"container/heap"
	"time"
)

// expiries is a heap of the entries of a shard that have a deadline. The first expires
// next. Expired items are removed before others are evicted.
type expiries []*entry

func (x expiries) Len() int { return len(x) }

// Less orders by deadline. Items of the same deadline are in the order in which they
// were stored.
func (x expiries) Less(i, j int) bool {
	if c := x[i].deadline.Compare(x[j].deadline); c != 0 {
		return c < 0
	}
	return x[i].item.CasID < x[j].item.CasID
}

func (x expiries) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].place, x[j].place = i+1, j+1
}

func (x *expiries) Push(e any) {
	*x = append(*x, e.(*entry))
	(*x)[len(*x)-1].place = len(*x)
}

func (x *expiries) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last] = nil
	*x = (*x)[:last]
	e.place = 0
	return e
}

// update moves e to the place of its deadline.
func (x *expiries) update(e *entry) {
	switch {
	case e.deadline.IsZero():
		x.remove(e)
	case e.place == 0:
		heap.Push(x, e)
	default:
		heap.Fix(x, e.place-1)
	}
}

// remove removes e, if it is there.
func (x *expiries) remove(e *entry) {
	if e.place > 0 {
		heap.Remove(x, e.place-1)
	}
}

// expired returns the first entry if it has expired, or nil.
func (x expiries) expired(now time.Time) *entry {
	if len(x) == 0 || !expired(x[0].deadline, now) {
		return nil
	}
	return x[0]
}
