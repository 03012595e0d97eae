package memstore

import (
	"container/heap"
	"time"
)

// expiries are the entries of a shard that have a deadline: a heap, the one that is
// due first on top. Expired items make room before others have to.
//
// A deadline that is put off leaves its entry where it is, so an entry is due at
// its deadline or before it. It is moved when it comes to the top. A record that is
// written again and again costs one move each time it would have expired, instead
// of one for each write.
type expiries []*entry

func (x expiries) Len() int { return len(x) }

func (x expiries) Less(i, j int) bool { return x[i].due.Before(x[j].due) }

func (x expiries) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].place, x[j].place = int32(i+1), int32(j+1)
}

func (x *expiries) Push(e any) {
	*x = append(*x, e.(*entry))
	(*x)[len(*x)-1].place = int32(len(*x))
}

func (x *expiries) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last] = nil
	*x = (*x)[:last]
	e.place = 0
	return e
}

// update notes the deadline of e.
func (x *expiries) update(e *entry) {
	switch {
	case e.deadline.IsZero():
		x.remove(e)
	case e.place == 0:
		e.due = e.deadline
		heap.Push(x, e)
	case e.deadline.Before(e.due):
		x.move(e)
	}
}

// move puts e where its deadline belongs.
func (x *expiries) move(e *entry) {
	e.due = e.deadline
	heap.Fix(x, int(e.place-1))
}

// remove removes e, if it is there.
func (x *expiries) remove(e *entry) {
	if e.place > 0 {
		heap.Remove(x, int(e.place-1))
	}
}

// expired returns an expired entry, or nil. It moves at most so many entries on the
// way, and may miss an expired one behind those.
func (x *expiries) expired(now time.Time, moves int) *entry {
	for len(*x) > 0 && expired((*x)[0].due, now) {
		first := (*x)[0]
		if expired(first.deadline, now) {
			return first
		}
		if moves--; moves < 0 {
			return nil
		}
		x.move(first)
	}
	return nil
}
