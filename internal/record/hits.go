package record

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
	fine   = Instant(time.Nanosecond)
	coarse = Instant(100 * time.Microsecond)

	maxFine = 32
)

// unitFor returns the unit for a window of max hits.
func unitFor(max int) Instant {
	if max <= maxFine {
		return fine
	}
	return coarse
}

// hits is the list of the expiry times of a window, oldest first: those that
// were stored, and a run of hits that are not stored yet and expire together.
// The run belongs into the list by its time, after the entries of the same
// time. It is put there when the list is encoded, or changed in another way than
// by more hits of that time. So a list of any length takes many hits of one instant
// without being copied. A long list counts in cells instead of times, see [cells]. The
// zero hits is empty.
type hits struct {
	unit    Instant // of what follows: fine, coarse, or a cell
	ttl     uint64  // the longest TTL that one of the hits was counted under, see tick
	last    uint64  // the last time in entries
	entries []byte  // the low bytes of the times, width each; or how many hits each cell has

	added uint64 // when the run expires
	run   int    // how many hits it has

	cells cells // what else is known of cells; zero: entries are times
}

// len returns the number of hits.
func (h *hits) len() int {
	return h.stored() + h.run
}

// time returns when hit i expires.
func (h *hits) time(i int) Instant {
	if h.run > 0 {
		if start := h.runStart(); i >= start+h.run {
			i -= h.run
		} else if i >= start {
			return Instant(h.added) * h.unit
		}
	}
	return Instant(h.full(i)) * h.unit
}

// end returns when the last of the hits expires.
func (h *hits) end() Instant {
	return Instant(max(h.last, h.added)) * h.unit
}

// stored returns the number of hits in entries.
func (h *hits) stored() int {
	if h.inCells() {
		return int(h.cells.total)
	}
	n, w := uint32(len(h.entries)), uint32(h.width())
	switch w {
	// The usual widths, of a TTL of 25 ms up to 3 days: constants need no division.
	case 2:
		n /= 2
	case 3:
		n /= 3
	case 4:
		n /= 4
	case 5:
		n /= 5
	case 6:
		n /= 6
	default:
		n /= max(w, 1)
	}
	return int(n)
}

// runStart returns how many of the stored hits come before the run.
func (h *hits) runStart() int {
	if h.added >= h.last {
		return h.stored()
	}
	return h.search(h.added)
}

// width returns the size of an entry: 1 to 8 bytes.
func (h *hits) width() int {
	return (bits.Len64(h.ttl) + 7) / 8
}

// mask returns the bits of a time that an entry holds.
func (h *hits) mask() uint64 {
	return 1<<(8*h.width()) - 1
}

// low returns entry i as it is stored.
func (h *hits) low(i int) uint64 {
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

// full returns the time of stored hit i: the latest one up to last that ends in its
// bytes, or its cell.
func (h *hits) full(i int) uint64 {
	if h.inCells() {
		return h.cellOf(i)
	}
	back := (h.last - h.low(i)) & h.mask()
	if back > h.last {
		return 0 // of a list that this package has not written
	}
	return h.last - back
}

// search returns how many of the stored hits are at t or before it.
func (h *hits) search(t uint64) int {
	if h.inCells() {
		return h.countUntil(t)
	}
	return sort.Search(h.stored(), func(i int) bool { return h.full(i) > t })
}

// up returns t in the unit of h, rounded up.
func (h *hits) up(t Instant) uint64 { return ticks(t, h.unit) }

// ticks returns t in a unit, rounded up.
func ticks(t, unit Instant) uint64 {
	t = max(t, 0)
	switch {
	case unit == fine:
		return uint64(t)
	case unit > coarse:
		return uint64(min(t, math.MaxInt64-unit)+unit-1) / uint64(unit)
	}
	return uint64(min(t, math.MaxInt64-coarse)+coarse-1) / uint64(coarse) // a constant needs no division
}

// rounded returns t as it would be stored in h.
func (h *hits) rounded(t Instant) Instant {
	return Instant(h.up(t)) * h.unit
}

// latest returns when a hit that is counted at now to expire at expiry does so, as stored in h.
// A cell may be shorter than those of h: one of the hit's own TTL.
func (h *hits) latest(now, expiry Instant) Instant {
	unit := min(h.unit, cellFor(ticks(expiry-now, coarse)))
	return Instant(ticks(expiry, unit)) * unit
}

// tick returns the unit of ttl, and of the times that a [Hit] is found by. It is no longer
// than coarse: a cell has the hits of many calls.
func (h *hits) tick() Instant { return min(h.unit, coarse) }

// named returns what a [Hit] calls a hit of h that expires at t.
func (h *hits) named(t Instant) Instant {
	return Instant(ticks(t, h.tick())) * h.tick()
}

// longest returns the longest TTL that one of the hits was counted under.
func (h *hits) longest() Instant {
	return Instant(h.ttl) * h.tick()
}

// reach returns how far the last hit may be ahead of the time at which it was counted.
func (h *hits) reach() uint64 { return h.up(h.longest()) + 1 }

// expire removes the hits that expire at t or before it.
func (h *hits) expire(t Instant) {
	if h.run > 0 && Instant(h.added)*h.unit <= t {
		h.added, h.run = 0, 0
	}
	if len(h.entries) > 0 && Instant(h.full(0))*h.unit <= t {
		if h.inCells() {
			h.drop(uint64(t / h.unit))
		} else {
			h.entries = h.entries[h.search(uint64(t/h.unit))*h.width():]
		}
		if len(h.entries) == 0 {
			h.last = 0
		}
	}
	if len(h.entries) == 0 && h.run == 0 && h.unit != 0 {
		*h = hits{}
	}
}

// correct sets h right at now, when a hit would be counted to expire at expiry, and
// reports whether it had to. Hits that would count for longer than any of the list
// was counted for are those of a clock that is ahead, and are set to expiry with all
// that are later.
func (h *hits) correct(now, expiry Instant) bool {
	if h.len() == 0 {
		return false
	}
	// A unit more, for the one that rounding up may add.
	honest := now.Add(time.Duration(h.longest())).Add(time.Duration(h.unit))
	if h.end() <= max(h.rounded(expiry), honest) {
		return false
	}
	h.cap(now, expiry)
	return true
}

// cap sets every hit that is later than one that is counted at now, to expire at expiry, to
// that, rounded up.
func (h *hits) cap(now, expiry Instant) {
	if h.inCells() {
		h.capCells(now, expiry)
		return
	}
	if h.len() == 0 || max(h.last, h.added) <= h.up(expiry) {
		return
	}
	h.merge()
	latest, w := h.up(expiry), h.width()
	n := h.search(latest)
	entries := append(make([]byte, 0, len(h.entries)), h.entries[:n*w]...)
	for range h.stored() - n {
		entries = appendLow(entries, latest, w)
	}
	h.entries, h.last = entries, latest
}

// add adds n hits of limit that expire at expiry.
func (h *hits) add(n int, expiry Instant, limit *Limit) {
	ttl := Instant(limit.TTL)
	if h.end() > expiry {
		// As long as there are hits of a longer TTL, it is the list's.
		ttl = max(ttl, h.longest())
	}
	if h.inCells() || h.len()+n > maxTimes {
		h.toCells(ticks(ttl, coarse))
		h.cells.since = min(h.cells.since, max(expiry-1, 0))
	} else {
		unit := unitFor(limit.Max)
		h.convert(unit, ticks(ttl, unit))
	}
	if t := h.up(expiry); h.added != t {
		h.merge()
		h.added = t
	}
	h.run += n
}

// convert makes h, which is no cells, a list in the given unit of hits that were counted
// under ttl, in that unit, at most. That must be no less than the distance between any two
// of them.
func (h *hits) convert(unit Instant, ttl uint64) {
	to := hits{unit: unit, ttl: ttl}
	if unit == h.unit && to.width() == h.width() {
		h.ttl = ttl
		return
	}
	if n := h.len(); n > 0 {
		h.merge()
		to.last = to.up(h.time(n - 1))
		to.entries = make([]byte, 0, n*to.width())
		for i := range n {
			to.entries = appendLow(to.entries, to.up(h.time(i)), to.width())
		}
	}
	*h = to
}

// merge puts the run among the entries.
func (h *hits) merge() {
	if h.run == 0 {
		return
	}
	if h.inCells() {
		h.mergeCells()
		return
	}
	h.entries = h.appendEntries(make([]byte, 0, h.len()*h.width()))
	h.last = max(h.last, h.added)
	h.added, h.run = 0, 0
}

// appendEntries appends the bytes of all hits, the run where it belongs, to b.
func (h *hits) appendEntries(b []byte) []byte {
	if h.run == 0 {
		return append(b, h.entries...)
	}
	w := h.width()
	at := h.runStart() * w
	b = append(b, h.entries[:at]...)
	for range h.run {
		b = appendLow(b, h.added, w)
	}
	return append(b, h.entries[at:]...)
}

// remove removes n hits that expire at expiry, or as many of them as there are, and
// reports whether there was one. While Max is changed across maxFine and back, the list
// is in the coarser unit for a time, and its hits stay rounded up to that.
func (h *hits) remove(n int, expiry Instant) (found bool) {
	if h.inCells() && expiry <= h.cells.since {
		return false
	}
	return h.removeAt(n, h.up(expiry)) || h.unit == fine && h.removeAt(n, ticks(expiry, coarse)*uint64(coarse))
}

// removeAt removes n hits that expire at t, or as many of them as there are, and reports
// whether there was one.
func (h *hits) removeAt(n int, t uint64) (found bool) {
	before := h.len()
	if before == 0 {
		return false
	}
	if h.run > 0 && h.added == t {
		taken := min(n, h.run)
		n -= taken
		if h.run -= taken; h.run == 0 {
			h.added = 0
		}
	}
	if n > 0 && t > 0 {
		to := h.search(t)
		h.cut(max(h.search(t-1), to-n), to)
	}
	left := h.len()
	if left == 0 {
		*h = hits{}
	}
	return left < before
}

// cut removes the stored hits from and up to, but not including, to.
func (h *hits) cut(from, to int) {
	if from >= to {
		return
	}
	if h.inCells() {
		h.cutCells(from, to)
		return
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
}

// toCounted replaces the times of h by those at which its hits were counted, or by no
// later ones, instead of those at which they expire. If those are before the year
// 1970 it removes all. No hit of h may expire later than one of limit that is counted
// now.
func (h *hits) toCounted(limit *Limit) {
	if h.len() == 0 {
		return
	}
	if ttl := max(h.ttl, ticks(Instant(limit.TTL), h.tick())); h.inCells() {
		h.toCells(ttl)
	} else {
		h.convert(h.unit, ttl)
	}
	if uint64(h.time(0)/h.unit) <= h.reach() {
		*h = hits{}
		return
	}
	h.move(-h.reach())
}

// toExpiring is the reverse of toCounted.
func (h *hits) toExpiring() {
	if h.len() > 0 {
		h.move(h.reach())
	}
}

// move adds by to all times, modulo 1<<64.
func (h *hits) move(by uint64) {
	h.merge()
	if h.inCells() {
		h.last += by
		return
	}
	w := h.width()
	entries := make([]byte, 0, len(h.entries))
	for i := range h.stored() {
		entries = appendLow(entries, h.low(i)+by, w)
	}
	h.entries, h.last = entries, h.last+by
}

// decode reads the section of a window, which is all of b.
func (h *hits) decode(sections sections, b []byte) (ok bool) {
	switch sections & (windowSection | coarseWindowSection | cellsSection) {
	case 0:
		return len(b) == 0
	case windowSection:
		h.unit = fine
	case coarseWindowSection:
		h.unit = coarse
	case cellsSection:
		return h.decodeCells(b)
	default:
		return false
	}
	if len(b) < 2*instantSize {
		return false
	}
	h.ttl, h.last = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[instantSize:])
	h.entries = b[2*instantSize:]
	longest := uint64(math.MaxInt64 / h.unit)
	if h.ttl == 0 || h.ttl > longest || h.last == 0 || h.last > longest {
		return false
	}
	if len(h.entries) == 0 || h.stored()*h.width() != len(h.entries) {
		return false
	}
	// What was cut off or appended gives itself away here.
	return h.low(h.stored()-1) == h.last&h.mask()
}

// section returns the bit for the window section of h.
func (h *hits) section() sections {
	switch {
	case h.inCells():
		return cellsSection
	case h.unit == fine:
		return windowSection
	}
	return coarseWindowSection
}

// append appends the window section of h to b.
func (h *hits) append(b []byte) []byte {
	if h.inCells() {
		return h.appendCells(b)
	}
	b = binary.BigEndian.AppendUint64(b, h.ttl)
	b = binary.BigEndian.AppendUint64(b, max(h.last, h.added))
	return h.appendEntries(b)
}

// size returns how many bytes append appends.
func (h *hits) size() int {
	if h.inCells() {
		return h.cellsSize()
	}
	return 2*instantSize + h.len()*h.width()
}

// appendLow appends the low n bytes of t to b.
func appendLow(b []byte, t uint64, n int) []byte {
	for n--; n >= 0; n-- {
		b = append(b, byte(t>>(8*n)))
	}
	return b
}
