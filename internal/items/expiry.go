package items

import (
	"container/heap"
	"time"
)

// A moment is a point in time by the wall clock, and since the Store began by the
// monotonic one.
type moment struct {
	wall  time.Time
	since time.Duration
}

// now returns the moment it is, for the holder of the lock of sh. The Store has begun.
func (s *Store) now(sh *shard) moment {
	sh.last = s.momentOf(time.Now())
	return sh.last
}

func (s *Store) momentOf(t time.Time) moment { return moment{t, t.Sub(s.began)} }

// lately returns read, a moment that was read lately, perhaps before the lock of sh was taken.
// If another holder has used a later one, it returns the moment it is: time never goes back
// from one holder to the next. Each clock is compared, for a thread may have been stopped
// between reading the one and the other.
func (s *Store) lately(sh *shard, read moment) moment {
	if read.since < sh.last.since || read.wall.UnixNano() < sh.last.wall.UnixNano() {
		return s.now(sh)
	}
	sh.last = read
	return read
}

// began returns when the Store began by the wall clock as it is set now, since 1970.
func (m moment) began() time.Duration { return time.Duration(m.wall.UnixNano()) - m.since }

// A deadline is when an item expires: by the monotonic clock since the Store began, or by the
// wall clock since 1970. The lowest bits say which. The zero deadline is never.
type deadline int64

type clock uint8

const (
	never clock = iota
	monotonic
	wall
)

const clockBits = 2

func newDeadline(at time.Duration, by clock) deadline { return deadline(at)<<clockBits | deadline(by) }

func (d deadline) at() time.Duration { return time.Duration(d >> clockBits) }
func (d deadline) by() clock         { return clock(d & (1<<clockBits - 1)) }

// deadlineOf returns the deadline of an item stored now with this Expiration. A
// relative one does not change if the wall clock is set.
func deadlineOf(expiration int32, now moment) deadline {
	switch {
	case expiration == 0:
		return 0
	case expiration < 0:
		return newDeadline(now.since, monotonic)
	case expiration <= maxRelative:
		return newDeadline(now.since+time.Duration(expiration)*time.Second, monotonic)
	default:
		return newDeadline(time.Duration(expiration)*time.Second, wall)
	}
}

// due returns when d is, since the Store began, as the clocks are set now. It is not
// called for never.
func (d deadline) due(now moment) time.Duration {
	if d.by() == wall {
		return d.at() - now.began()
	}
	return d.at()
}

// passed reports whether what has this deadline has expired.
func (d deadline) passed(now moment) bool {
	return d.by() != never && d.due(now) <= now.since
}

// expiries are the items of a shard that have a deadline: a heap, the one that is
// due first on top. Expired items make room before others have to.
//
// A deadline that is put off leaves its item where it is, so an item is due at
// its deadline or before it. It is moved when it comes to the top. A record that is
// written again and again costs one move each time it would have expired, instead
// of one for each write.
type expiries struct {
	nodes *slab
	heap  []place
	began time.Duration // what moment.began was at the last look, or less: see follow
}

func (x *expiries) Len() int { return len(x.heap) }

// at returns item i of the heap.
func (x *expiries) at(i int) *node { return x.nodes.at(x.heap[i]) }

// Less has the order of keys decide among items that are due at the same time, so that
// equal stores remove equal items.
func (x *expiries) Less(i, j int) bool {
	a, b := x.at(i), x.at(j)
	return a.due < b.due || a.due == b.due && a.key < b.key
}

func (x *expiries) Swap(i, j int) {
	x.heap[i], x.heap[j] = x.heap[j], x.heap[i]
	x.at(i).index, x.at(j).index = int32(i+1), int32(j+1)
}

func (x *expiries) Push(e any) {
	x.heap = append(x.heap, e.(*node).place)
	e.(*node).index = int32(len(x.heap))
}

func (x *expiries) Pop() any {
	last := len(x.heap) - 1
	e := x.at(last)
	x.heap = x.heap[:last]
	e.index = 0
	return e
}

// update notes the deadline of e, as it is now.
func (x *expiries) update(e *node, now moment) {
	x.follow(now)
	if e.deadline.by() == never {
		x.remove(e)
		return
	}
	switch due := e.deadline.due(now); {
	case e.index == 0:
		e.due = due
		heap.Push(x, e)
	case due < e.due:
		x.move(e, due)
	}
}

// move puts e where due belongs.
func (x *expiries) move(e *node, due time.Duration) {
	e.due = due
	heap.Fix(x, int(e.index-1))
}

// remove removes e, if it is there.
func (x *expiries) remove(e *node) {
	if e.index > 0 {
		heap.Remove(x, int(e.index-1))
	}
}

// maxSlack is how late an item may be due because the wall clock was set ahead.
const maxSlack = time.Second

// follow puts all items where their deadlines belong, if the wall clock was set
// ahead, or the machine has slept and the monotonic clock with it: those that follow
// the wall clock are due earlier then. If it was set back they are due later, and
// need not move.
func (x *expiries) follow(now moment) {
	began := now.began()
	if began <= x.began+maxSlack {
		x.began = min(x.began, began)
		return
	}
	x.began = began
	for i := range x.heap {
		e := x.at(i)
		e.due = e.deadline.due(now)
	}
	heap.Init(x)
}

// mayHaveExpired reports whether there may be an expired item.
func (x *expiries) mayHaveExpired(now moment) bool {
	return len(x.heap) > 0 && x.at(0).due <= now.since
}

// expired returns an expired item, or nil. It moves at most so many items on the
// way, and may miss an expired one behind those.
func (x *expiries) expired(now moment, moves int) *node {
	x.follow(now)
	for len(x.heap) > 0 && x.at(0).due <= now.since {
		first := x.at(0)
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
