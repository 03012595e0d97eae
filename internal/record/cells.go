package record

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// cells are a list of how many hits expire in each of a row of cells of equal length, instead
// of when each of them does.
//
// A window counts in cells from the hit on that makes it hold more than maxTimes: see Long windows
// in the package comment. Cells are numbered since the epoch: cell k ends at k times its length,
// and does not contain its beginning.
type cells struct {
	list          // last is the last cell; entries has the counts, width bytes each
	width uint8   // as the largest count needs
	total uint32  // the sum of the counts
	since Instant // each of the hits was counted to expire after that: one that was not is not among them
}

const (
	// maxTimes is how many hits a window lists by their times, which take 3 kB at a TTL
	// of some hours. Cells take less than longer lists do.
	maxTimes = 500

	// cellsInTTL is how many cells a TTL has, or less than twice as many. One below 3.2 ms
	// has fewer.
	cellsInTTL = 1024

	// smallestCell makes cells of usual TTLs, a minute, an hour and a day, little shorter than
	// a thousandth.
	smallestCell = Instant(3125)

	// maxCells is how many cells a record has at most, rather more than it needs.
	maxCells = 4 * cellsInTTL

	// maxCount is the largest count of a cell.
	maxCount = 1<<24 - 1
)

// cellFor returns the length of the cells of a TTL.
func cellFor(ttl Instant) Instant {
	return smallestCell << (max(bits.Len64(uint64(ttl/(cellsInTTL*smallestCell))), 1) - 1)
}

// widthOf returns how many bytes a count needs.
func widthOf(count uint32) uint8 { return uint8(max(bits.Len32(count)+7, 8) / 8) }

// row returns how many cells c has.
func (c *cells) row() int { return len(c.entries) / int(c.width) }

// first returns the first cell.
func (c *cells) first() uint64 { return c.last + 1 - uint64(c.row()) }

// count returns how many hits the cell at place i has.
func (c *cells) count(i int) uint32 {
	switch b := c.entries; c.width {
	case 1:
		return uint32(b[i])
	case 2:
		return uint32(binary.BigEndian.Uint16(b[2*i:]))
	default:
		return uint32(b[3*i])<<16 | uint32(b[3*i+1])<<8 | uint32(b[3*i+2])
	}
}

// setCount makes count that of the cell at place i, in place.
func (c *cells) setCount(i int, count uint32) {
	w := int(c.width)
	for n := w - 1; n >= 0; n-- {
		c.entries[i*w+n] = byte(count)
		count >>= 8
	}
}

// counts returns the counts of all cells.
func (c *cells) counts() []uint32 {
	counts := make([]uint32, c.row())
	for i := range counts {
		counts[i] = c.count(i)
	}
	return counts
}

// needsWidth reports whether one of the counts needs the bytes that it has.
func (c *cells) needsWidth() bool {
	for i := 0; c.width > 1 && i < c.row(); i++ {
		if widthOf(c.count(i)) == c.width {
			return true
		}
	}
	return c.width == 1
}

// narrow has the counts take no more bytes than the largest one needs.
func (c *cells) narrow() {
	if len(c.entries) > 0 && !c.needsWidth() {
		c.pack(c.first(), c.counts())
	}
}

// pack makes counts those of c, from cell first on.
func (c *cells) pack(first uint64, counts []uint32) {
	for len(counts) > 0 && counts[0] == 0 {
		first, counts = first+1, counts[1:]
	}
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	c.total, c.width = 0, 1
	for _, n := range counts {
		c.total += n
		c.width = max(c.width, widthOf(n))
	}
	c.entries, c.last = make([]byte, len(counts)*int(c.width)), 0
	if len(counts) > 0 {
		c.last = first + uint64(len(counts)) - 1
	}
	for i, n := range counts {
		c.setCount(i, n)
	}
}

// stored returns the number of hits.
func (c *cells) stored() int { return int(c.total) }

// at returns the cell of hit i.
func (c *cells) at(i int) uint64 {
	for k := range c.row() {
		if i -= int(c.count(k)); i < 0 {
			return c.first() + uint64(k)
		}
	}
	return c.last
}

// until returns how many hits are in cell t or before it.
func (c *cells) until(t uint64) (n int) {
	if t >= c.last {
		return c.stored()
	}
	for k := range int(max(t+1, c.first()) - c.first()) {
		n += int(c.count(k))
	}
	return n
}

// all is a sequence of when the hits expire, oldest first, and how many do so then.
func (c *cells) all(yield func(Instant, int) bool) {
	for i := range c.row() {
		if n := c.count(i); n > 0 && !yield(c.instant(c.first()+uint64(i)), int(n)) {
			return
		}
	}
}

// cutOff removes the hits up to cell t.
func (c *cells) cutOff(t uint64) {
	n, gone, first := 0, uint32(0), c.first()
	for ; n < c.row(); n++ {
		count := c.count(n)
		if first+uint64(n) > t && count > 0 {
			break
		}
		gone += count
	}
	c.entries = c.entries[n*int(c.width):]
	if c.total -= min(gone, c.total); c.total == 0 {
		c.entries = nil // even if another program has stored another total
	}
	c.narrow()
}

// cut removes the hits from and up to, but not including, to.
func (c *cells) cut(from, to int) {
	first, counts, end := c.first(), c.counts(), 0
	for i, n := range counts {
		start := end
		end += int(n)
		counts[i] -= uint32(max(min(end, to)-max(start, from), 0))
	}
	c.pack(first, counts)
}

// place adds n hits to cell t.
func (c *cells) place(t uint64, n int) {
	_, last, width := c.with(t, n)
	c.entries = c.appendCounts(nil, t, n)
	c.last, c.width = last, width
	c.total += uint32(n)
}

// with returns the first and the last cell with n more hits in cell t, and the bytes that the
// largest count needs then.
func (c *cells) with(t uint64, n int) (first, last uint64, width uint8) {
	if n == 0 {
		return c.first(), c.last, c.width
	}
	if len(c.entries) == 0 {
		return t, t, widthOf(uint32(n))
	}
	first, last = min(c.first(), t), max(c.last, t)
	count := uint32(n)
	if t >= c.first() && t <= c.last {
		count += c.count(int(t - c.first()))
	}
	return first, last, max(c.width, widthOf(min(count, maxCount)))
}

// appendCounts appends the counts to b, with n more hits in cell t.
func (c *cells) appendCounts(b []byte, t uint64, n int) []byte {
	first, last, width := c.with(t, n)
	head := len(b)
	b = append(b, make([]byte, int(last-first+1)*int(width))...)
	whole := cells{list: list{entries: b[head:]}, width: width}
	if len(c.entries) > 0 {
		at := int(c.first() - first)
		if width == c.width {
			copy(whole.entries[at*int(width):], c.entries)
		} else {
			for i := range c.row() {
				whole.setCount(at+i, c.count(i))
			}
		}
	}
	if n > 0 {
		at := int(t - first)
		whole.setCount(at, min(whole.count(at)+uint32(n), maxCount))
	}
	return b
}

// cellsHead is the size of a section of cells without the counts.
const cellsHead = 3*instantSize + 4 + 1

// decode reads a section of cells, which is all of b.
func (c *cells) decode(b []byte) (ok bool) {
	if len(b) <= cellsHead {
		return false
	}
	c.ttl, c.since = getInstant(b), getInstant(b[instantSize:])
	c.last = binary.BigEndian.Uint64(b[2*instantSize:])
	c.total, c.width = binary.BigEndian.Uint32(b[3*instantSize:]), b[cellsHead-1]
	c.entries = b[cellsHead:]
	if c.ttl <= 0 || c.since < 0 || c.total == 0 || c.total > math.MaxInt32 || c.width == 0 {
		return false
	}
	c.unit = cellFor(c.ttl)
	n := c.row()
	if n*int(c.width) != len(c.entries) || n > maxCells || uint64(n) > c.last || c.last > uint64(math.MaxInt64/c.unit) {
		return false
	}
	return c.count(0) != 0 && c.count(n-1) != 0 && c.needsWidth()
}

// append appends the section of c to b, with n more hits in cell t.
func (c *cells) append(b []byte, t uint64, n int) []byte {
	_, last, width := c.with(t, n)
	b = appendInstant(b, c.ttl)
	b = appendInstant(b, c.since)
	b = binary.BigEndian.AppendUint64(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(c.stored()+n))
	b = append(b, width)
	return c.appendCounts(b, t, n)
}

// size returns how many bytes append appends.
func (c *cells) size(t uint64, n int) int {
	first, last, width := c.with(t, n)
	return cellsHead + int(last-first+1)*int(width)
}
