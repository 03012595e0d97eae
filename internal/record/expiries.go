package record

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sort"
)

// expiries are a list of the times at which the hits expire, in nanoseconds. An entry is the low
// bytes of one, as many as ttl has: no two hits are further apart than ttl, so each full time
// follows from last. All entries have one size and none depends on another: hits are dropped from
// the head by skipping bytes, found by binary search, and added by copying.
type expiries list

// width returns the size of an entry: 1 to 8 bytes.
func (es *expiries) width() int {
	return (bits.Len64(uint64(es.ttl)) + 7) / 8
}

// mask returns the bits of a time that an entry holds.
func (es *expiries) mask() uint64 {
	return 1<<(8*es.width()) - 1
}

// low returns entry i as it is stored.
func (es *expiries) low(i int) uint64 {
	w := es.width()
	if rest := es.entries[i*w:]; len(rest) >= 8 {
		return binary.BigEndian.Uint64(rest) >> (64 - 8*w)
	}
	var t uint64
	for _, b := range es.entries[i*w : (i+1)*w] {
		t = t<<8 | uint64(b)
	}
	return t
}

// appendLow appends the low n bytes of t to b.
func appendLow(b []byte, t uint64, n int) []byte {
	if len(b)+8 <= cap(b) {
		binary.BigEndian.PutUint64(b[len(b):len(b)+8], t<<(64-8*n))
		return b[:len(b)+n]
	}
	for n--; n >= 0; n-- {
		b = append(b, byte(t>>(8*n)))
	}
	return b
}

// stored returns the number of hits.
func (es *expiries) stored() int {
	n, w := uint32(len(es.entries)), uint32(es.width())
	switch w {
	// The usual widths, of a TTL of 17 ms up to 3 days: constants need no division.
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

// at returns when hit i expires: the latest time up to last that ends in its entry.
func (es *expiries) at(i int) uint64 {
	back := (es.last - es.low(i)) & es.mask()
	if back > es.last {
		return 0 // of a list that this package has not written
	}
	return es.last - back
}

// until returns how many hits expire at t or before it.
func (es *expiries) until(t uint64) int {
	if t >= es.last {
		return es.stored()
	}
	return sort.Search(es.stored(), func(i int) bool { return es.at(i) > t })
}

// all is a sequence of when hits expire, oldest first, and how many do so then.
func (es *expiries) all(yield func(Instant, int) bool) {
	for i := range es.stored() {
		if !yield(Instant(es.at(i)), 1) {
			return
		}
	}
}

// cutOff removes the hits that expire at t or before it.
func (es *expiries) cutOff(t uint64) {
	es.entries = es.entries[es.until(t)*es.width():]
}

// cut removes the hits from and up to, but not including, to.
func (es *expiries) cut(from, to int) {
	last := es.last
	if to == es.stored() {
		last = 0
		if from > 0 {
			last = es.at(from - 1)
		}
	}
	w := es.width()
	entries := append(make([]byte, 0, len(es.entries)-(to-from)*w), es.entries[:from*w]...)
	es.entries, es.last = append(entries, es.entries[to*w:]...), last
}

// setTTL makes ttl that of es. It is no less than the distance between any two hits.
func (es *expiries) setTTL(ttl Instant) {
	to := expiries{ttl: ttl, last: es.last}
	if w := to.width(); w == es.width() {
		to.entries = es.entries
	} else if n := es.stored(); n > 0 {
		to.entries = make([]byte, 0, n*w)
		for i := range n {
			to.entries = appendLow(to.entries, es.at(i), w)
		}
	}
	*es = to
}

// place adds n hits that expire at t, after those of the same time.
func (es *expiries) place(t uint64, n int) {
	es.entries = es.appendEntries(make([]byte, 0, len(es.entries)+n*es.width()), t, n)
	es.last = max(es.last, t)
}

// appendEntries appends the entries to b, with n more hits that expire at t.
func (es *expiries) appendEntries(b []byte, t uint64, n int) []byte {
	if n == 0 {
		return append(b, es.entries...)
	}
	w := es.width()
	at := es.until(t) * w
	b = append(b, es.entries[:at]...)
	for range n {
		b = appendLow(b, t, w)
	}
	return append(b, es.entries[at:]...)
}

// decode reads the section of a window, which is all of b.
func (es *expiries) decode(b []byte) (ok bool) {
	if len(b) <= 2*instantSize {
		return false
	}
	es.ttl, es.last, es.entries = getInstant(b), binary.BigEndian.Uint64(b[instantSize:]), b[2*instantSize:]
	if es.ttl <= 0 || es.last == 0 || es.last > math.MaxInt64 || es.stored()*es.width() != len(es.entries) {
		return false
	}
	// What was cut off or appended gives itself away here.
	return es.low(es.stored()-1) == es.last&es.mask()
}

// append appends the section of es to b, with n more hits that expire at t.
func (es *expiries) append(b []byte, t uint64, n int) []byte {
	b = appendInstant(b, es.ttl)
	b = binary.BigEndian.AppendUint64(b, max(es.last, t))
	return es.appendEntries(b, t, n)
}

// size returns how many bytes append appends with n more hits.
func (es *expiries) size(n int) int {
	return 2*instantSize + len(es.entries) + n*es.width()
}
