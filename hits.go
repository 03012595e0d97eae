package throttler

import (
	"encoding/binary"
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

// unitFor returns the unit for a window of max hits.
func unitFor(max int) instant {
	if max <= maxFine {
		return fine
	}
	return coarse
}

// hits is the list of the expiry times of a window, oldest first: those that
// were stored, and a run of hits that are not stored yet and expire together.
// The run has its place in the list by its time, after the entries of the same
// time, but is put there only when the list is encoded. So a list of any length
// takes many hits of one instant without being copied. The zero hits is empty.
type hits struct {
	unit    instant // of what follows: fine or coarse
	ttl     uint64  // the longest TTL that one of the hits was counted under
	last    uint64  // the last time in entries
	entries []byte  // the low bytes of the times, width each

	added uint64 // when the run expires
	run   int    // how many hits it has
}

// len returns the number of hits.
func (h hits) len() int {
	return h.stored() + h.run
}

// time returns when hit i expires.
func (h hits) time(i int) instant {
	if h.run > 0 {
		if place := h.place(); i >= place+h.run {
			i -= h.run
		} else if i >= place {
			return instant(h.added) * h.unit
		}
	}
	return instant(h.full(i)) * h.unit
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
	return int(uint32(len(h.entries)) / uint32(h.width())) // faster than by 64 bits
}

// place returns how many entries come before the run.
func (h hits) place() int {
	if h.added >= h.last {
		return h.stored()
	}
	return h.search(h.added)
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
	if rest := h.entries[i*w:]; len(rest) >= 8 {
		return binary.BigEndian.Uint64(rest) >> (64 - 8*w)
	}
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
		return 0 // of a list that this package has not written
	}
	return h.last - back
}

// search returns how many entries are at t or before it.
func (h hits) search(t uint64) int {
	return sort.Search(h.stored(), func(i int) bool { return h.full(i) > t })
}

// up returns t in the unit of h, rounded up.
func (h hits) up(t instant) uint64 {
	t = max(t, 0)
	if h.unit == fine {
		return uint64(t)
	}
	whole := uint64(t / coarse)
	if t%coarse == 0 || whole == uint64(math.MaxInt64/coarse) {
		return whole
	}
	return whole + 1
}

// rounded returns t as it would be stored in h.
func (h hits) rounded(t instant) instant {
	return instant(h.up(t)) * h.unit
}

// after returns h without the hits that expire at t or before it.
func (h hits) after(t instant) hits {
	if h.run > 0 && instant(h.added)*h.unit <= t {
		h.added, h.run = 0, 0
	}
	if h.stored() > 0 && instant(h.full(0))*h.unit <= t {
		h = h.from(h.search(uint64(t / h.unit)))
	}
	if h.len() == 0 {
		return hits{}
	}
	return h
}

// from returns h without its first n entries.
func (h hits) from(n int) hits {
	h.entries = h.entries[n*h.width():]
	if len(h.entries) == 0 {
		h.entries, h.last = nil, 0
	}
	return h
}

// at returns h as it stands at now, when a hit would be counted to expire at
// expiry. Hits that would count for longer than any of the list was counted
// for are those of a clock that is ahead, and are set to expiry with all that
// are later; corrected says so.
func (h hits) at(now, expiry instant) (current hits, corrected bool) {
	if h.len() == 0 {
		return h, false
	}
	// A unit more, for the one that rounding up may add.
	honest := now.add(time.Duration(h.ttl) * time.Duration(h.unit)).add(time.Duration(h.unit))
	if h.end() <= max(h.rounded(expiry), honest) {
		return h, false
	}
	return h.capped(expiry), true
}

// capped returns h with every hit that is later than t, rounded up, set to that.
func (h hits) capped(t instant) hits {
	if h.len() == 0 || max(h.last, h.added) <= h.up(t) {
		return h
	}
	h = h.merged()
	latest, w := h.up(t), h.width()
	n := h.search(latest)
	entries := append(make([]byte, 0, len(h.entries)), h.entries[:n*w]...)
	for range h.stored() - n {
		entries = appendLow(entries, latest, w)
	}
	h.entries, h.last = entries, latest
	return h
}

// with returns h with n hits of c that expire at expiry.
func (h hits) with(n int, expiry instant, c *Condition) hits {
	unit := unitFor(c.Max)
	ttl := hits{unit: unit}.up(instant(c.TTL))
	if h.end() > expiry {
		// As long as there are hits of a longer TTL, it is the list's.
		longest := instant(h.ttl) * h.unit
		ttl = max(ttl, hits{unit: unit}.up(longest))
	}
	h = h.under(unit, ttl)
	if t := h.up(expiry); h.added != t {
		h = h.merged()
		h.added = t
	}
	h.run += n
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
	n := h.len()
	if n == 0 {
		return to
	}
	h = h.merged()
	to.last = to.up(h.time(n - 1))
	to.entries = make([]byte, 0, n*to.width())
	for i := range n {
		to.entries = appendLow(to.entries, to.up(h.time(i)), to.width())
	}
	return to
}

// merged returns h with the run among the entries.
func (h hits) merged() hits {
	if h.run == 0 {
		return h
	}
	h.entries = h.appendEntries(make([]byte, 0, h.len()*h.width()))
	h.last = max(h.last, h.added)
	h.added, h.run = 0, 0
	return h
}

// appendEntries appends the bytes of all hits, the run in its place, to b.
func (h hits) appendEntries(b []byte) []byte {
	if h.run == 0 {
		return append(b, h.entries...)
	}
	w := h.width()
	at := h.place() * w
	b = append(b, h.entries[:at]...)
	for range h.run {
		b = appendLow(b, h.added, w)
	}
	return append(b, h.entries[at:]...)
}

// without returns h without n hits that expire at expiry, or as many of them as
// there are, and whether there was one.
func (h hits) without(n int, expiry instant) (next hits, found bool) {
	if h.len() == 0 {
		return h, false
	}
	t, before := h.up(expiry), h.len()
	if h.run > 0 && h.added == t {
		taken := min(n, h.run)
		n -= taken
		if h.run -= taken; h.run == 0 {
			h.added = 0
		}
	}
	if n > 0 && t > 0 {
		to := h.search(t)
		h = h.cut(max(h.search(t-1), to-n), to)
	}
	if h.len() == 0 {
		return hits{}, true
	}
	return h, h.len() < before
}

// cut returns h without the entries from and up to, but not including, to.
func (h hits) cut(from, to int) hits {
	if from >= to {
		return h
	}
	last := h.last
	if to == h.stored() {
		last = 0
		if from > 0 {
			last = h.full(from - 1)
		}
	}
	w := h.width()
	entries := append(make([]byte, 0, len(h.entries)-(to-from)*w), h.entries[:from*w]...)
	h.entries, h.last = append(entries, h.entries[to*w:]...), last
	return h
}

// counted returns h with the times at which its hits were counted, or no later
// ones, instead of those at which they expire; without any if those are before
// the year 1970. No hit of h may expire later than one of c that is counted now.
func (h hits) counted(c *Condition) hits {
	if h.len() == 0 {
		return h
	}
	h = h.under(h.unit, max(h.ttl, h.up(instant(c.TTL))))
	if uint64(h.time(0)/h.unit) <= h.ttl+1 {
		return hits{}
	}
	return h.moved(-h.ttl - 1)
}

// expiring returns the hits of which h has the times at which they were counted.
func (h hits) expiring() hits {
	if h.len() == 0 {
		return h
	}
	return h.moved(h.ttl + 1)
}

// moved returns h with by added to all times, modulo 1<<64.
func (h hits) moved(by uint64) hits {
	h = h.merged()
	w := h.width()
	entries := make([]byte, 0, len(h.entries))
	for i := range h.stored() {
		entries = appendLow(entries, h.low(i)+by, w)
	}
	h.entries, h.last = entries, h.last+by
	return h
}
