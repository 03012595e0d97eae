package throttler

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sort"
	"time"
)

// # The stored record
//
// What is stored for one value of one condition is one memcached item:
//
//	byte 0      version, 1
//	byte 1      the sections that follow, a bit each, in this order
//	ban         end (6 bytes), length (6)                if bit 0 is set
//	offences    bans in a row (1)                        if bit 1 is set
//	window      ttl (6), last (6), entries (w each)      if bit 2 is set
//	bucket      score (8), cancels (2)                   if bit 3 is set
//
// All numbers are unsigned and big endian. Times count ticks of 100
// microseconds, since the Unix epoch where they are points in time; only a
// score counts nanoseconds. Offences come only with a ban, and there is a window
// or a bucket, not both. A record without sections is one that holds nothing.
//
// A window lists the expiry times of its hits, oldest first. An entry is the
// low w bytes of such a time, where w is the number of bytes that hold ttl, the
// longest TTL that one of the hits was counted under: since no two unexpired
// hits are further apart than that, each full time follows from last, the full
// time of the last entry. Entries are thus of equal size and independent of
// each other: hits are dropped from the head by skipping bytes, found by binary
// search and added by copying, whatever their number; nothing is unpacked.
//
// The encoding is canonical: there is one for each record, and decode takes no
// other. Bytes of any other form, of another version too, are no record, and
// whoever meets them replaces them. Later versions of this package read every
// version ever written; testdata/records has samples of each.

const version = 1

const (
	banSection byte = 1 << iota
	offencesSection
	windowSection
	bucketSection
	knownSections = banSection | offencesSection | windowSection | bucketSection
)

// tick is the resolution of stored times. A hit or a ban never ends early by
// rounding, and late by less than a tick.
const tick = 100 * time.Microsecond

// An instant is a point in time, in ticks since the Unix epoch, or the distance
// between two. 48 bits hold it until the year 2861.
type instant int64

const instantSize = 6

// instantOf returns the last instant that is not after t.
func instantOf(t time.Time) instant {
	return instant(t.UnixNano() / int64(tick))
}

// instantAfter returns the first instant that is not before t+d.
func instantAfter(t time.Time, d time.Duration) instant {
	ns := t.UnixNano()
	// Unsigned, so that the longest durations do not overflow.
	rest := uint64(ns%int64(tick)) + uint64(d)
	return instant(ns/int64(tick)) + instant((rest+uint64(tick)-1)/uint64(tick))
}

// ticks returns d as a distance, rounded up.
func ticks(d time.Duration) instant {
	return instant((uint64(d) + uint64(tick) - 1) / uint64(tick))
}

// since returns how long i is after t, 0 if it is not.
func (i instant) since(t time.Time) time.Duration {
	ticks := i - instantOf(t)
	switch {
	case ticks <= 0:
		return 0
	case ticks > instant(math.MaxInt64/tick):
		return math.MaxInt64
	}
	return time.Duration(ticks)*tick - time.Duration(t.UnixNano()%int64(tick))
}

// A record is all that is known of one value of one condition. Its hits refer
// to the bytes it was decoded from, which nobody may change.
type record struct {
	ban    ban
	hits   hits
	bucket bucket
}

// decode reads a stored record. It looks at a fixed number of bytes, however
// many hits there are, and allocates nothing. ok is false for anything that
// encode does not write, as far as that shows without reading every entry: a
// list of hits out of order is not noticed here and does no harm, since
// [hits.after] and all else work with whatever times they find.
func decode(b []byte) (r record, ok bool) {
	if len(b) < 2 || b[0] != version {
		return record{}, false
	}
	sections, b := b[1], b[2:]
	if b, ok = r.ban.decode(sections, b); !ok {
		return record{}, false
	}
	switch sections &^ (banSection | offencesSection) {
	case 0:
		ok = len(b) == 0
	case windowSection:
		r.hits, ok = decodeHits(b)
	case bucketSection:
		r.bucket, ok = decodeBucket(b)
	default:
		ok = false
	}
	if !ok {
		return record{}, false
	}
	return r, true
}

// encode returns the stored form of r, in a slice of its own.
func (r record) encode() []byte {
	b := append(make([]byte, 0, r.size()), version, 0)
	sections := &b[1]
	if r.ban.end != 0 {
		*sections |= banSection
		b = appendInstant(b, r.ban.end, instantSize)
		b = appendInstant(b, r.ban.length, instantSize)
	}
	if r.ban.offences != 0 {
		*sections |= offencesSection
		b = append(b, byte(r.ban.offences))
	}
	if r.hits.len() > 0 {
		*sections |= windowSection
		b = r.hits.append(b)
	}
	if r.bucket.score != 0 {
		*sections |= bucketSection
		b = binary.BigEndian.AppendUint64(b, uint64(r.bucket.score))
		b = binary.BigEndian.AppendUint16(b, r.bucket.cancels)
	}
	return b
}

const (
	banSize    = 2*instantSize + 1 // with offences
	bucketSize = 8 + 2
)

// size returns how many bytes encode needs at most.
func (r record) size() int {
	size := 2
	if r.ban.end != 0 {
		size += banSize
	}
	if r.hits.len() > 0 {
		size += r.hits.size()
	}
	if r.bucket.score != 0 {
		size += bucketSize
	}
	return size
}

// end returns when r holds nothing any more.
func (r record) end() instant {
	return max(r.ban.forgotten(), r.hits.end(), r.bucket.end())
}

// decode reads the sections of a ban from the head of b, and returns the rest.
func (bn *ban) decode(sections byte, b []byte) (rest []byte, ok bool) {
	if sections&banSection == 0 {
		return b, sections&offencesSection == 0
	}
	if len(b) < 2*instantSize {
		return nil, false
	}
	bn.end, bn.length, b = getInstant(b), getInstant(b[instantSize:]), b[2*instantSize:]
	if sections&offencesSection == 0 {
		return b, bn.end != 0
	}
	if len(b) < 1 || b[0] == 0 {
		return nil, false
	}
	bn.offences, b = int(b[0]), b[1:]
	return b, bn.end != 0
}

// decodeBucket reads a bucket section, which reaches to the end of the record.
func decodeBucket(b []byte) (bucket, bool) {
	if len(b) != bucketSize {
		return bucket{}, false
	}
	score := int64(binary.BigEndian.Uint64(b))
	return bucket{score: score, cancels: binary.BigEndian.Uint16(b[8:])}, score > 0
}

// hits is the list of the expiry times of a window, oldest first, as it is
// stored, and at most one that is not stored yet. The zero hits is empty.
type hits struct {
	ttl     instant // the longest TTL that one of the hits was counted under
	last    instant // the last time in entries
	entries []byte  // the low bytes of the times, width each
	added   instant // one more time, in its place when it is encoded; 0: none
}

// decodeHits reads a window section, which reaches to the end of the record.
func decodeHits(b []byte) (hits, bool) {
	if len(b) < 2*instantSize {
		return hits{}, false
	}
	h := hits{ttl: getInstant(b), last: getInstant(b[instantSize:]), entries: b[2*instantSize:]}
	if h.ttl == 0 || len(h.entries) == 0 || len(h.entries)%h.width() != 0 {
		return hits{}, false
	}
	// What was cut off or appended gives itself away here.
	n := h.stored()
	return h, h.low(n-1) == h.last&h.mask()
}

// append appends the window section of h to b.
func (h hits) append(b []byte) []byte {
	w := h.width()
	b = appendInstant(b, h.ttl, instantSize)
	b = appendInstant(b, max(h.last, h.added), instantSize)
	if h.added == 0 {
		return append(b, h.entries...)
	}
	at := h.search(h.added) * w
	b = append(b, h.entries[:at]...)
	b = appendInstant(b, h.added, w)
	return append(b, h.entries[at:]...)
}

// size returns how many bytes append appends.
func (h hits) size() int {
	return 2*instantSize + h.len()*h.width()
}

// len returns the number of hits.
func (h hits) len() int {
	n := h.stored()
	if h.added != 0 {
		n++
	}
	return n
}

// end returns when the last of the hits expires.
func (h hits) end() instant {
	return max(h.last, h.added)
}

// stored returns the number of entries.
func (h hits) stored() int {
	if len(h.entries) == 0 {
		return 0
	}
	return len(h.entries) / h.width()
}

// width returns the size of an entry: 1 to 6 bytes.
func (h hits) width() int {
	return (bits.Len64(uint64(h.ttl)) + 7) / 8
}

// mask returns the bits of a time that an entry holds.
func (h hits) mask() instant {
	return 1<<(8*h.width()) - 1
}

// low returns entry i as it is stored.
func (h hits) low(i int) instant {
	w := h.width()
	var t instant
	for _, b := range h.entries[i*w : (i+1)*w] {
		t = t<<8 | instant(b)
	}
	return t
}

// time returns when hit i expires: the latest time up to last that ends in the
// bytes of entry i.
func (h hits) time(i int) instant {
	return h.last - (h.last-h.low(i))&h.mask()
}

// search returns how many entries are at t or before it.
func (h hits) search(t instant) int {
	return sort.Search(h.stored(), func(i int) bool { return h.time(i) > t })
}

// after returns h without the entries that expire at t or before it.
func (h hits) after(t instant) hits {
	n := h.stored()
	if n == 0 || h.time(0) > t {
		return h // nothing to drop, the usual case when it is full
	}
	if h.last <= t {
		return hits{}
	}
	h.entries = h.entries[h.search(t)*h.width():]
	return h
}

// capped returns h with every entry that is later than t set to t.
func (h hits) capped(t instant) hits {
	if h.stored() == 0 || h.last <= t {
		return h
	}
	n, w := h.search(t), h.width()
	entries := append(make([]byte, 0, len(h.entries)), h.entries[:n*w]...)
	for range h.stored() - n {
		entries = appendInstant(entries, t, w)
	}
	h.entries, h.last = entries, t
	return h
}

// under returns h as a list of hits that were counted under ttl at most, which
// must be no less than the distance between any two of them.
func (h hits) under(ttl instant) hits {
	to := hits{ttl: ttl, last: h.last, entries: h.entries}
	if to.width() == h.width() {
		return to
	}
	to.entries = make([]byte, 0, h.stored()*to.width())
	for i := range h.stored() {
		to.entries = appendInstant(to.entries, h.time(i), to.width())
	}
	return to
}

func getInstant(b []byte) instant {
	return instant(binary.BigEndian.Uint16(b))<<32 | instant(binary.BigEndian.Uint32(b[2:]))
}

// appendInstant appends the low n bytes of i to b.
func appendInstant(b []byte, i instant, n int) []byte {
	for n--; n >= 0; n-- {
		b = append(b, byte(i>>(8*n)))
	}
	return b
}
