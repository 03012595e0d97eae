package record

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// cells are a list of how many hits expire in each of a row of cells of equal length, instead
// of when each of them does.
//
// A window counts in cells from the hit on that makes it hold more than maxTimes, until it
// is empty. All hits of a cell expire at its end. So a hit may count for one cell too long
// and never too short: no TTL holds more than Max. A cell is TTL/1024 at most, so a
// record has a few kB, whatever Max is.
//
// Cells are numbered since the epoch: cell k ends at k times its length, and does not
// contain its beginning. The length is a function of TTL alone, so all processes have the
// same cells. It is coarse times a power of two. So each cell of a shorter TTL lies
// within one of a longer TTL, and the times of a list, in either unit, in cells of their
// own: however often a list is changed from one to the other, a hit is in the cell that
// its expiry is in, and never moves by more than the longest of them.
type cells struct {
	list          // last is the last cell
	width uint8   // the bytes of a count, as the largest one needs
	total uint32  // the sum of the counts
	since Instant // each of the hits was counted to expire after that: one that was not is not among them
}

const (
	// maxTimes is how many hits a window lists by their times, which take 2 kB at a TTL
	// of some hours. Cells take less than longer lists do.
	maxTimes = 500

	// cellsInTTL is how many cells a TTL has, or less than twice as many. Cells of a
	// TTL below 0.2 s are coarse, and so fewer.
	cellsInTTL = 1024

	// maxCells is how many cells a record has at most, rather more than it needs.
	maxCells = 4 * cellsInTTL

	// maxCount is the largest count of a cell.
	maxCount = 1<<24 - 1
)

// cellFor returns the length of the cells of a TTL, which is given in coarse.
func cellFor(ttl uint64) Instant {
	if ttl < cellsInTTL {
		return coarse
	}
	return coarse << (bits.Len64(ttl/cellsInTTL) - 1)
}

// widthOf returns how many bytes a count needs.
func widthOf(count uint32) uint8 { return uint8(max(bits.Len32(count)+7, 8) / 8) }

// inCells reports whether the entries of h are counts.
func (h *hits) inCells() bool { return h.cells.width != 0 }

// row returns how many cells h has.
func (h *hits) row() int { return len(h.entries) / int(h.cells.width) }

// first returns the first cell.
func (h *hits) first() uint64 { return h.last + 1 - uint64(h.row()) }

// count returns how many hits the cell at place i has.
func (h *hits) count(i int) uint32 {
	switch b := h.entries; h.cells.width {
	case 1:
		return uint32(b[i])
	case 2:
		return uint32(binary.BigEndian.Uint16(b[2*i:]))
	default:
		return uint32(b[3*i])<<16 | uint32(b[3*i+1])<<8 | uint32(b[3*i+2])
	}
}

// putCount makes count that of the cell at place i of entries of that width.
func putCount(entries []byte, width uint8, i int, count uint32) {
	for n := int(width) - 1; n >= 0; n-- {
		entries[i*int(width)+n] = byte(count)
		count >>= 8
	}
}

// cellOf returns the cell of stored hit i.
func (h *hits) cellOf(i int) uint64 {
	for c := range h.row() {
		if i -= int(h.count(c)); i < 0 {
			return h.first() + uint64(c)
		}
	}
	return h.last
}

// countUntil returns how many stored hits are in cell t or before it.
func (h *hits) countUntil(t uint64) (n int) {
	if t >= h.last {
		return h.stored()
	}
	for c := range int(max(t+1, h.first()) - h.first()) {
		n += int(h.count(c))
	}
	return n
}

// drop removes the stored hits up to cell t.
func (h *hits) drop(t uint64) {
	n, gone, first := 0, uint32(0), h.first()
	for ; n < h.row(); n++ {
		count := h.count(n)
		if first+uint64(n) > t && count > 0 {
			break
		}
		gone += count
	}
	h.entries = h.entries[n*int(h.cells.width):]
	if h.cells.total -= min(gone, h.cells.total); h.cells.total == 0 {
		h.entries = nil // even if another program has stored another total
	}
	h.narrow()
}

// narrow has the counts take no more bytes than the largest one needs.
func (h *hits) narrow() {
	if len(h.entries) > 0 && !h.needsWidth() {
		h.pack(h.first(), h.counts())
	}
}

// needsWidth reports whether one of the counts needs the bytes that it has.
func (h *hits) needsWidth() bool {
	for i := 0; h.cells.width > 1 && i < h.row(); i++ {
		if widthOf(h.count(i)) == h.cells.width {
			return true
		}
	}
	return h.cells.width == 1
}

// counts returns the counts of all stored hits.
func (h *hits) counts() []uint32 {
	counts := make([]uint32, h.row())
	for i := range counts {
		counts[i] = h.count(i)
	}
	return counts
}

// pack makes counts those of the stored hits, from cell first on.
func (h *hits) pack(first uint64, counts []uint32) {
	for len(counts) > 0 && counts[0] == 0 {
		first, counts = first+1, counts[1:]
	}
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	h.cells.total, h.cells.width = 0, 1
	for _, c := range counts {
		h.cells.total += c
		h.cells.width = max(h.cells.width, widthOf(c))
	}
	h.entries, h.last = make([]byte, len(counts)*int(h.cells.width)), 0
	if len(counts) > 0 {
		h.last = first + uint64(len(counts)) - 1
	}
	for i, c := range counts {
		putCount(h.entries, h.cells.width, i, c)
	}
}

// all is a sequence of when the stored hits expire, oldest first, and how many do so then.
func (h *hits) all(yield func(Instant, int) bool) {
	if !h.inCells() {
		h.expiries().all(yield)
		return
	}
	for i := range h.row() {
		if n := h.count(i); n > 0 && !yield(Instant(h.first()+uint64(i))*h.unit, int(n)) {
			return
		}
	}
}

// cutCells removes the stored hits from and up to, but not including, to.
func (h *hits) cutCells(from, to int) {
	first, counts, end := h.first(), h.counts(), 0
	for i, n := range counts {
		start := end
		end += int(n)
		counts[i] -= uint32(max(min(end, to)-max(start, from), 0))
	}
	h.pack(first, counts)
}

// wholeRow returns the first and the last cell with those of the run, and the bytes that
// the largest count needs then.
func (h *hits) wholeRow() (first, last uint64, width uint8) {
	if h.run == 0 {
		return h.first(), h.last, h.cells.width
	}
	if len(h.entries) == 0 {
		return h.added, h.added, widthOf(uint32(h.run))
	}
	first, last = min(h.first(), h.added), max(h.last, h.added)
	count := uint32(h.run)
	if i := h.added - h.first(); h.added >= h.first() && h.added <= h.last {
		count += h.count(int(i))
	}
	return first, last, max(h.cells.width, widthOf(min(count, maxCount)))
}

// mergeCells puts the run among the counts.
func (h *hits) mergeCells() {
	_, last, width := h.wholeRow()
	h.entries = h.appendCounts(nil)
	h.last, h.cells.width = last, width
	h.cells.total += uint32(h.run)
	h.added, h.run = 0, 0
}

// appendCounts appends the counts of all hits, those of the run where it belongs, to b.
func (h *hits) appendCounts(b []byte) []byte {
	first, last, width := h.wholeRow()
	head := len(b)
	b = append(b, make([]byte, int(last-first+1)*int(width))...)
	counts := b[head:]
	if len(h.entries) > 0 {
		at := int(h.first() - first)
		if width == h.cells.width {
			copy(counts[at*int(width):], h.entries)
		} else {
			for i := range h.row() {
				putCount(counts, width, at+i, h.count(i))
			}
		}
	}
	if h.run > 0 {
		at := int(h.added - first)
		whole := hits{cells: cells{list: list{entries: counts}, width: width}}
		putCount(counts, width, at, min(whole.count(at)+uint32(h.run), maxCount))
	}
	return b
}

// cellsHead is the size of a section of cells without the counts.
const cellsHead = 3*instantSize + 4 + 1

// decodeCells reads a section of cells, which is all of b.
func (h *hits) decodeCells(b []byte) (ok bool) {
	if len(b) <= cellsHead {
		return false
	}
	h.unit = coarse
	h.ttl, h.cells.since = binary.BigEndian.Uint64(b), getInstant(b[instantSize:])
	h.last = binary.BigEndian.Uint64(b[2*instantSize:])
	h.cells.total, h.cells.width = binary.BigEndian.Uint32(b[3*instantSize:]), b[cellsHead-1]
	h.entries = b[cellsHead:]
	if h.ttl == 0 || h.ttl > uint64(math.MaxInt64/coarse) || h.cells.since < 0 {
		return false
	}
	h.unit = cellFor(h.ttl)
	if h.cells.total == 0 || h.cells.total > math.MaxInt32 || h.cells.width == 0 {
		return false
	}
	n := h.row()
	if n*int(h.cells.width) != len(h.entries) || n > maxCells || uint64(n) > h.last || h.last > uint64(math.MaxInt64/h.unit) {
		return false
	}
	return h.count(0) != 0 && h.count(n-1) != 0 && h.needsWidth()
}

// appendCells appends the section of h, which is of cells, to b.
func (h *hits) appendCells(b []byte) []byte {
	_, last, width := h.wholeRow()
	b = binary.BigEndian.AppendUint64(b, h.ttl)
	b = appendInstant(b, h.cells.since)
	b = binary.BigEndian.AppendUint64(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(h.len()))
	b = append(b, width)
	return h.appendCounts(b)
}

// cellsSize returns how many bytes appendCells appends.
func (h *hits) cellsSize() int {
	first, last, width := h.wholeRow()
	return cellsHead + int(last-first+1)*int(width)
}
