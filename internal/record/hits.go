package record

import "math"

// hits is the list of the expiry times of a window, oldest first: those that
// were stored, and a run of hits that are not stored yet and expire together.
// The run belongs into the list by its time, after the entries of the same
// time. It is put there when the list is encoded, or changed in another way than
// by more hits of that time. So a list of any length takes many hits of one instant
// without being copied.
//
// The stored hits are [expiries], or [cells] if there are many. The zero hits is empty.
type hits struct {
	cells // if its width is 0, its list has expiries

	added uint64 // when the run expires
	run   int    // how many hits it has
}

// len returns the number of hits.
func (h *hits) len() int {
	return h.stored() + h.run
}

// empty reports whether h holds nothing, in fewer steps than len.
func (h *hits) empty() bool { return len(h.entries) == 0 && h.run == 0 }

// time returns when hit i expires.
func (h *hits) time(i int) Instant {
	if h.run > 0 {
		if start := h.until(h.added); i >= start+h.run {
			i -= h.run
		} else if i >= start {
			return h.instant(h.added)
		}
	}
	return h.instant(h.at(i))
}

// end returns when the last of the hits expires.
func (h *hits) end() Instant { return h.instant(max(h.last, h.added)) }

// expire removes the hits that expire at t or before it.
func (h *hits) expire(t Instant) {
	if h.run > 0 && h.instant(h.added) <= t {
		h.added, h.run = 0, 0
	}
	if len(h.entries) > 0 && h.instant(h.at(0)) <= t {
		h.cutOff(uint64(t / max(h.unit, 1)))
		if len(h.entries) == 0 {
			h.last = 0
		}
	}
	if h.empty() && h.ttl != 0 {
		*h = hits{}
	}
}

// correct sets h right at now, when no hit that is counted expires later than latest, and
// reports whether it had to. Hits that would count for longer than any of the list
// was counted for are those of a clock that is ahead, and are set to latest with all
// that are later.
func (h *hits) correct(now, latest Instant) bool {
	if end := h.end(); end <= h.instant(h.up(latest)) || h.honest(end, now) {
		return false
	}
	h.cap(now, latest)
	return true
}

// cap sets every hit that is later than one that is counted at now, to expire at latest, to
// that, rounded up.
func (h *hits) cap(now, latest Instant) {
	switch {
	case h.end() <= h.list.latest(now, latest):
	case h.inCells():
		h.recount(latest-now, latest) // none is later than one of that TTL
	default:
		h.merge()
		to, n := h.until(uint64(latest)), h.stored()
		h.cut(to, n)
		h.added, h.run = uint64(latest), n-to
	}
}

// add adds n hits that expire at expiry, and were counted for ttl at most.
func (h *hits) add(n int, expiry, ttl Instant) {
	if h.end() > expiry {
		// As long as there are hits of a longer TTL, it is the list's.
		ttl = max(ttl, h.ttl)
	}
	if h.inCells() || h.len()+n > maxTimes {
		h.toCells(ttl)
		h.since = min(h.since, max(expiry-1, 0))
	} else if h.ttl != ttl {
		h.expiries().setTTL(ttl)
	}
	if t := h.up(expiry); h.added != t {
		h.merge()
		h.added = t
	}
	h.run += n
}

// toCells makes h a list of cells, of hits that were counted for ttl at most. That must be no
// less than the distance between any two of them. It does not set [cells.since] of an empty
// list.
func (h *hits) toCells(ttl Instant) {
	if h.inCells() && cellFor(ttl) == h.unit {
		h.ttl = ttl
		return
	}
	h.recount(ttl, math.MaxInt64)
}

// recount is toCells that sets hits which are later than latest to the end of its cell.
func (h *hits) recount(ttl, latest Instant) {
	to := cells{list: list{unit: cellFor(ttl), ttl: ttl}, width: 1, since: math.MaxInt64}
	if h.len() > 0 {
		h.merge()
		last := min(to.up(h.end()), to.up(latest))
		// The first one is no earlier than that, unless another program has written h.
		// Nor is it in cell 0, which has ended when time began.
		earliest := max(last, to.reach()+1) - to.reach()
		first := min(max(to.up(h.time(0)), earliest), last)
		counts := make([]uint32, last-first+1)
		for t, n := range h.all {
			at := min(max(to.up(t), first), last) - first
			counts[at] = min(counts[at]+uint32(n), maxCount)
		}
		if to.since = h.since; !h.inCells() {
			to.since = max(h.time(0)-1, 0)
		}
		to.pack(first, counts)
	}
	*h = hits{cells: to}
}

// merge puts the run among the entries.
func (h *hits) merge() {
	if h.run > 0 {
		h.place(h.added, h.run)
		h.added, h.run = 0, 0
	}
}

// remove removes n hits that expire at expiry, or as many of them as there are, and reports
// whether there were any.
func (h *hits) remove(n int, expiry Instant) (found bool) {
	before := h.len()
	if before == 0 || h.inCells() && expiry <= h.since {
		return false
	}
	t := h.up(expiry)
	if h.run > 0 && h.added == t {
		taken := min(n, h.run)
		n -= taken
		if h.run -= taken; h.run == 0 {
			h.added = 0
		}
	}
	if n > 0 && t > 0 {
		to := h.until(t)
		h.cut(max(h.until(t-1), to-n), to)
	}
	left := h.len()
	if left == 0 {
		*h = hits{}
	}
	return left < before
}

// From here on, hits only choose between the methods of expiries and of cells, which have the
// same names. They leave the run alone, but append and size count it in.

// inCells reports whether the stored hits are cells.
func (h *hits) inCells() bool { return h.cells.width != 0 }

// expiries returns the stored hits, which are no cells.
func (h *hits) expiries() *expiries { return (*expiries)(&h.list) }

// stored returns the number of stored hits.
func (h *hits) stored() int {
	if h.inCells() {
		return h.cells.stored()
	}
	return h.expiries().stored()
}

// at returns when stored hit i expires.
func (h *hits) at(i int) uint64 {
	if h.inCells() {
		return h.cells.at(i)
	}
	return h.expiries().at(i)
}

// until returns how many of the stored hits expire at t or before it.
func (h *hits) until(t uint64) int {
	if h.inCells() {
		return h.cells.until(t)
	}
	return h.expiries().until(t)
}

// all is a sequence of when the stored hits expire, oldest first, and how many do so then.
func (h *hits) all(yield func(Instant, int) bool) {
	if h.inCells() {
		h.cells.all(yield)
	} else {
		h.expiries().all(yield)
	}
}

// cutOff removes the stored hits that expire at t or before it.
func (h *hits) cutOff(t uint64) {
	if h.inCells() {
		h.cells.cutOff(t)
	} else {
		h.expiries().cutOff(t)
	}
}

// cut removes the stored hits from and up to, but not including, to.
func (h *hits) cut(from, to int) {
	switch {
	case from >= to:
	case h.inCells():
		h.cells.cut(from, to)
	default:
		h.expiries().cut(from, to)
	}
}

// place adds n hits that expire at t to the stored ones.
func (h *hits) place(t uint64, n int) {
	if h.inCells() {
		h.cells.place(t, n)
	} else {
		h.expiries().place(t, n)
	}
}

// decode reads the section of a window, which is all of b.
func (h *hits) decode(has sections, b []byte) (ok bool) {
	switch has & (timesSection | cellsSection) {
	case 0:
		return len(b) == 0
	case timesSection:
		return h.expiries().decode(b)
	case cellsSection:
		return h.cells.decode(b)
	}
	return false
}

// section returns the bit for the window section of h.
func (h *hits) section() sections {
	if h.inCells() {
		return cellsSection
	}
	return timesSection
}

// append appends the window section of h to b.
func (h *hits) append(b []byte) []byte {
	if h.inCells() {
		return h.cells.append(b, h.added, h.run)
	}
	return h.expiries().append(b, h.added, h.run)
}

// size returns how many bytes append appends.
func (h *hits) size() int {
	if h.inCells() {
		return h.cells.size(h.added, h.run)
	}
	return h.expiries().size(h.run)
}
