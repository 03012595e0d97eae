package throttler

import (
	"math"
	"math/bits"
	"sort"
	"time"
)

// The units that the times of a window are stored in, and how many hits it may
// take in the finer one, which needs 5 bytes a hit where the coarser needs 3
// (in 5 minutes). A time is rounded up, so that no hit ends early by it.
const (
	fine   = instant(time.Nanosecond)
	coarse = instant(100 * time.Microsecond)

	maxFine = 32
)

// unitFor returns the unit for a window of so many hits.
func unitFor(hits int) instant {
	if hits <= maxFine {
		return fine
	}
	return coarse
}

// hits is the list of the expiry times of a window, oldest first, as it is
// stored, and at most one that is not stored yet. The zero hits is empty.
type hits struct {
	unit    instant // of what follows: fine or coarse
	ttl     uint64  // the longest TTL that one of the hits was counted under
	last    uint64  // the last time in entries
	added   uint64  // one more time, put in its place when encoded; 0: none
	entries []byte  // the low bytes of the times, width each
}

// len returns the number of hits.
func (h hits) len() int {
	n := h.stored()
	if h.added != 0 {
		n++
	}
	return n
}

// addedTime returns when the hit that is not stored yet expires, 0 if there is
// none.
func (h hits) addedTime() instant {
	return instant(h.added) * h.unit
}

// end returns when the last of the hits expires.
func (h hits) end() instant {
	return instant(max(h.last, h.added)) * h.unit
}

// stored returns the number of entries.
func (h hits) stored() int {
	if len(h.entries) == 0 {
		return 0
	}
	return len(h.entries) / h.width()
}

// width returns the size of an entry: 1 to 8 bytes.
func (h hits) width() int {
	return (bits.Len64(h.ttl) + 7) / 8
}

// mask returns the bits of a time that an entry holds.
func (h hits) mask() uint64 {
	return 1<<(8*h.width()) - 1
}

// low returns entry i as it is stored.
func (h hits) low(i int) uint64 {
	w := h.width()
	var t uint64
	for _, b := range h.entries[i*w : (i+1)*w] {
		t = t<<8 | uint64(b)
	}
	return t
}

// full returns the time of entry i: the latest one up to last that ends in its
// bytes.
func (h hits) full(i int) uint64 {
	back := (h.last - h.low(i)) & h.mask()
	if back > h.last {
		return 0 // of a list that nobody has written
	}
	return h.last - back
}

// time returns when hit i expires.
func (h hits) time(i int) instant {
	return instant(h.full(i)) * h.unit
}

// search returns how many entries are at t or before it.
func (h hits) search(t uint64) int {
	return sort.Search(h.stored(), func(i int) bool { return h.full(i) > t })
}

// up returns t in the unit of h, rounded up.
func (h hits) up(t instant) uint64 {
	t = max(t, 0)
	whole := uint64(t / h.unit)
	if t%h.unit == 0 || whole == uint64(math.MaxInt64/h.unit) {
		return whole
	}
	return whole + 1
}

// after returns h without the entries that expire at t or before it.
func (h hits) after(t instant) hits {
	if h.stored() == 0 || h.time(0) > t {
		return h // nothing to drop, the usual case when it is full
	}
	if h.end() <= t {
		return hits{}
	}
	h.entries = h.entries[h.search(uint64(t/h.unit))*h.width():]
	return h
}

// capped returns h with every entry that is later than t, rounded up, set to
// that.
func (h hits) capped(t instant) hits {
	if h.stored() == 0 || h.last <= h.up(t) {
		return h
	}
	latest, w := h.up(t), h.width()
	n := h.search(latest)
	entries := append(make([]byte, 0, len(h.entries)), h.entries[:n*w]...)
	for range h.stored() - n {
		entries = appendLow(entries, latest, w)
	}
	h.entries, h.last = entries, latest
	return h
}

// under returns h in the given unit, as a list of hits that were counted under
// ttl, in that unit, at most. That must be no less than the distance between any
// two of them.
func (h hits) under(unit instant, ttl uint64) hits {
	to := hits{unit: unit, ttl: ttl}
	if unit == h.unit && to.width() == h.width() {
		h.ttl = ttl
		return h
	}
	n := h.stored()
	if n == 0 {
		return to
	}
	to.last = to.up(h.time(n - 1))
	to.entries = make([]byte, 0, n*to.width())
	for i := range n {
		to.entries = appendLow(to.entries, to.up(h.time(i)), to.width())
	}
	return to
}
