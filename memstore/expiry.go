package memstore

import (
	"container/heap"
	"math"
	"time"
)

// A moment is a point in time by the wall clock, and since the Store began by the
// monotonic one.
type moment struct {
	time.Time
	since time.Duration
}

// now returns the moment it is. The Store has begun.
func (s *Store) now() moment {
	now := time.Now()
	return moment{now, now.Sub(s.began)}
}

// A deadline is when an item expires: by the monotonic clock since the Store began,
// or by the wall clock since 1970. Two times would be 32 bytes more in each item.
type deadline struct {
	at   time.Duration
	wall bool
}

// never is the deadline of what does not expire.
var never = deadline{at: math.MaxInt64}

// deadlineOf returns the deadline of an item stored now with this Expiration. A
// relative one does not change if the wall clock is set.
func deadlineOf(expiration int32, now moment) deadline {
	switch {
	case expiration == 0:
		return never
	case expiration < 0:
		return deadline{at: now.since}
	case expiration <= maxRelative:
		return deadline{at: now.since + time.Duration(expiration)*time.Second}
	default:
		return deadline{at: time.Duration(expiration) * time.Second, wall: true}
	}
}

// until returns how long after now d is, or how long before, if negative.
func (d deadline) until(now moment) time.Duration {
	if d.wall {
		return d.at - time.Duration(now.UnixNano())
	}
	return d.at - now.since
}

// due returns d since the Store began. If the wall clock is set, a deadline that follows
// it is due at another time.
func (d deadline) due(now moment) time.Duration { return now.since + d.until(now) }

// passed reports whether what has this deadline has expired.
func (d deadline) passed(now moment) bool { return d.until(now) <= 0 }

// expiries are the entries of a shard that have a deadline: a heap, the one that is
// due first on top. Expired items make room before others have to.
//
// A deadline that is put off leaves its entry where it is, so an entry is due at
// its deadline or before it. It is moved when it comes to the top. A record that is
// written again and again costs one move each time it would have expired, instead
// of one for each write.
type expiries []*entry

func (x expiries) Len() int { return len(x) }

func (x expiries) Less(i, j int) bool { return x[i].due < x[j].due }

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

// update notes the deadline of e, as it is now.
func (x *expiries) update(e *entry, now moment) {
	due := e.deadline.due(now)
	switch {
	case e.deadline == never:
		x.remove(e)
	case e.place == 0:
		e.due = due
		heap.Push(x, e)
	case due < e.due:
		x.move(e, due)
	}
}

// move puts e where due belongs.
func (x *expiries) move(e *entry, due time.Duration) {
	e.due = due
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
func (x *expiries) expired(now moment, moves int) *entry {
	for len(*x) > 0 && (*x)[0].due <= now.since {
		first := (*x)[0]
		if first.deadline.passed(now) {
			return first
		}
		if moves--; moves < 0 {
			return nil
		}
		x.move(first, first.deadline.due(now))
	}
	return nil
}
