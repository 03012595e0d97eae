package throttler

import (
	"encoding/binary"
	"math"
	"time"
)

// # The stored record
//
// What is stored for one value of one condition is one memcached item:
//
//	byte 0      version, 1
//	byte 1      the sections that follow, a bit each, in this order
//	ban         end (8 bytes), length (8)                if bit 0 is set
//	offences    bans in a row (1)                        if bit 1 is set
//	window      ttl (8), last (8), entries (w each)      if bit 2 or 3 is set
//	bucket      score (8), cancels (2)                   if bit 4 is set
//
// All numbers are big endian. Times are in nanoseconds, since the Unix epoch
// where they are points in time; those of a window are so if bit 2 is set, and
// in ticks of 100 microseconds if bit 3 is. Offences come only with a ban, and
// of the last three bits only one is set. A record without sections is one that
// holds nothing.
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
	coarseWindowSection
	bucketSection
	endOfSections
)

// An instant is a point in time, in nanoseconds since the Unix epoch, or the
// distance between two.
type instant int64

// instantOf returns t, which must be before the year 2262.
func instantOf(t time.Time) instant {
	return instant(t.UnixNano())
}

// add returns i+d, or the last instant there is if that is later.
func (i instant) add(d time.Duration) instant {
	sum := i + instant(d)
	if sum < i {
		return math.MaxInt64
	}
	return sum
}

// since returns how long i is after now, 0 if it is not.
func (i instant) since(now instant) time.Duration {
	return time.Duration(max(i-now, 0))
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
	if len(b) < 2 || b[0] != version || b[1] >= endOfSections {
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
		r.hits, ok = decodeHits(fine, b)
	case coarseWindowSection:
		r.hits, ok = decodeHits(coarse, b)
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
		b = appendInstant(b, r.ban.end)
		b = appendInstant(b, r.ban.length)
	}
	if r.ban.offences != 0 {
		*sections |= offencesSection
		b = append(b, byte(r.ban.offences))
	}
	if r.hits.len() > 0 {
		*sections |= r.hits.section()
		b = r.hits.append(b)
	}
	if r.bucket.score != 0 {
		*sections |= bucketSection
		b = appendInstant(b, r.bucket.score)
		b = binary.BigEndian.AppendUint16(b, r.bucket.cancels)
	}
	return b
}

const (
	instantSize = 8
	banSize     = 2*instantSize + 1 // with offences
	bucketSize  = instantSize + 2
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
	return max(r.ban.forgotten(), r.hits.end(), r.bucket.score)
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
	if sections&offencesSection != 0 {
		if len(b) == 0 || b[0] == 0 {
			return nil, false
		}
		bn.offences, b = int(b[0]), b[1:]
	}
	return b, bn.end > 0 && bn.length >= 0
}

// decodeBucket reads a bucket section, which reaches to the end of the record.
func decodeBucket(b []byte) (bucket, bool) {
	if len(b) != bucketSize {
		return bucket{}, false
	}
	score := getInstant(b)
	return bucket{score: score, cancels: binary.BigEndian.Uint16(b[instantSize:])}, score > 0
}

// decodeHits reads a window section, which reaches to the end of the record.
func decodeHits(unit instant, b []byte) (hits, bool) {
	if len(b) < 2*instantSize {
		return hits{}, false
	}
	h := hits{
		unit:    unit,
		ttl:     binary.BigEndian.Uint64(b),
		last:    binary.BigEndian.Uint64(b[instantSize:]),
		entries: b[2*instantSize:],
	}
	longest := uint64(math.MaxInt64 / unit)
	if h.ttl == 0 || h.ttl > longest || h.last == 0 || h.last > longest {
		return hits{}, false
	}
	if len(h.entries) == 0 || len(h.entries)%h.width() != 0 {
		return hits{}, false
	}
	// What was cut off or appended gives itself away here.
	n := h.stored()
	return h, h.low(n-1) == h.last&h.mask()
}

// section returns the bit for the window section of h.
func (h hits) section() byte {
	if h.unit == fine {
		return windowSection
	}
	return coarseWindowSection
}

// append appends the window section of h to b.
func (h hits) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.ttl)
	b = binary.BigEndian.AppendUint64(b, max(h.last, h.added))
	if h.added == 0 {
		return append(b, h.entries...)
	}
	w := h.width()
	at := h.search(h.added) * w
	b = append(b, h.entries[:at]...)
	b = appendLow(b, h.added, w)
	return append(b, h.entries[at:]...)
}

// size returns how many bytes append appends.
func (h hits) size() int {
	return 2*instantSize + h.len()*h.width()
}

func getInstant(b []byte) instant {
	return instant(binary.BigEndian.Uint64(b))
}

func appendInstant(b []byte, i instant) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(i))
}

// appendLow appends the low n bytes of t to b.
func appendLow(b []byte, t uint64, n int) []byte {
	for n--; n >= 0; n-- {
		b = append(b, byte(t>>(8*n)))
	}
	return b
}
