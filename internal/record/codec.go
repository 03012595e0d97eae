package record

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// # The stored record
//
// What is stored for one value of one condition is one memcached item:
//
//	byte 0      version, 1 to 3
//	byte 1      the sections that follow, a bit each; two bytes in version 3
//	ban         end (8 bytes), length (8)                if bit 0 is set
//	repeats     bans in a row (1)                        if bit 1 is set
//	leases      how many (4), leases (28 each)           if bit 5 is set
//	calendar    start (8), end (8), begun (8), count (8) if bit 6 is set
//	debt        of the bucket (8)                        if bit 7 is set
//	window      ttl (8), last (8), entries (w each)      if bit 2 or 3 is set
//	cells       ttl (8), since (8), last (8), total (4),
//	            w (1), counts (w each)                   if bit 8 is set
//	bucket      score (8), cancels (2)                   if bit 4 is set
//
// All numbers are big endian. Times are in nanoseconds, since the Unix epoch
// where they are points in time; those of a window are so if bit 2 is set, and
// in ticks of 100 microseconds if bit 3 is. Repeats come only with a ban, and
// only one of bits 2, 3 and 8 is set. A debt comes only with a bucket. A record without
// sections is one that holds nothing.
//
// A record with a section of bit 5 or higher has version 3. Of the others, one with
// both a window and a bucket has version 2, and every other one version 1: releases
// that know version 1 only go on reading all that they could have written. Both are
// there while the Algorithm of a condition is being changed, and some processes count
// by the one and some by the other; and beside a repeated ban that keeps its hits, see
// [Record.kept].
//
// A lease is the ID of the call that took it (8), its end (8), its TTL (8) and its hits
// (4).
//
// A window lists the expiry times of its hits, oldest first. An entry is the
// low w bytes of such a time, where w is the number of bytes that hold ttl, the
// longest TTL that one of the hits was counted under: since no two unexpired
// hits are further apart than that, each full time follows from last, the full
// time of the last entry. Entries are thus of equal size and independent of
// each other: hits are dropped from the head by skipping bytes, found by binary
// search and added by copying, whatever their number; nothing is unpacked.
//
// The encoding is canonical: there is one for each record, and Decode takes no
// other. Bytes of any other form are treated as absent and overwritten. Later
// versions of this package read every version ever written; testdata/records has
// samples of each. Of the versions that are not written yet the next one is
// known to come, and so are further sections of version 3: such records are left
// alone, see [ErrNewerRecord].

const (
	version1 = 1 + iota
	version2
	version3
	nextVersion
)

// ErrNewerRecord is the error of a record that was written by a later release. It must be
// neither read nor overwritten.
var ErrNewerRecord = errors.New("throttler: the stored record is of a later version: update this program, or reset the value")

// ErrForeign is the error of bytes that are no record of this package.
var ErrForeign = errors.New("throttler: not a record")

// sections are bits that say which sections a record has.
type sections uint16

const (
	banSection sections = 1 << iota
	offencesSection
	windowSection
	coarseWindowSection
	bucketSection
	leasesSection
	calendarSection
	debtSection
	cellsSection

	sectionsOf2 = bucketSection<<1 - 1
	sectionsOf3 = sectionsOf2 | leasesSection | calendarSection | debtSection | cellsSection
)

// A Record is all that is known of one value of one condition. Its hits refer
// to the bytes it was decoded from, which must not change.
type Record struct {
	ban    ban
	hits   hits
	bucket bucket
	extra  *extra // nil: nothing that only version 3 has
}

// Decode reads a stored record. It looks at a fixed number of bytes, however
// many hits there are, and allocates nothing. The error is [ErrNewerRecord], or
// ErrForeign for anything that Encode does not write, as far as that shows
// without reading every entry: a list of hits out of order is not noticed here and
// does no harm, since [hits.expire] and all else work with whatever times they find.
func Decode(b []byte) (r Record, err error) {
	err = r.Decode(b)
	return r, err
}

// Decode is [Decode] into r, which is empty afterwards if there is an error.
func (r *Record) Decode(b []byte) error {
	r.Clear()
	if r.read(b) {
		return nil
	}
	r.Clear()
	if isNewer(b) {
		return ErrNewerRecord
	}
	return ErrForeign
}

// Clear empties r. It writes no pointer where there is none: while garbage is collected,
// that costs more than all else.
func (r *Record) Clear() {
	r.ban, r.bucket = ban{}, bucket{}
	if r.hits.unit != 0 {
		r.hits = hits{}
	}
	if r.extra != nil {
		r.extra = nil
	}
}

// isNewer reports whether b is of the next version, or of version 3 with sections that
// this release does not know.
func isNewer(b []byte) bool {
	if len(b) < 3 || b[0] != version3 {
		return len(b) > 0 && b[0] == nextVersion
	}
	return (sections(b[1])<<8|sections(b[2]))&^sectionsOf3 != 0
}

// read sets r, which is empty, to the record that b is the stored form of, and
// reports whether it is any.
func (r *Record) read(b []byte) (ok bool) {
	if len(b) < 2 || b[0] < version1 {
		return false
	}
	version, has, b := b[0], sections(b[1]), b[2:]
	known := sectionsOf2
	if version == version3 && len(b) > 0 {
		has, known, b = has<<8|sections(b[0]), sectionsOf3, b[1:]
	}
	if has&^known != 0 {
		return false
	}
	if b, ok = r.ban.decode(has, b); !ok {
		return false
	}
	if has > sectionsOf2 {
		var x extra
		if b, ok = x.decode(has, b); !ok {
			return false
		}
		r.setExtras(x)
	}
	if b, ok = r.bucket.decode(has, b); !ok || has&(debtSection|bucketSection) == debtSection {
		return false
	}
	return r.hits.decode(has, b) && version == r.version()
}

// version returns the version that r is encoded in.
func (r *Record) version() byte {
	if r.extra != nil || r.hits.inCells() {
		return version3
	}
	if !r.hits.empty() && r.bucket.score != 0 {
		return version2
	}
	return version1
}

// Encode returns the stored form of r, in a slice of its own.
func (r Record) Encode() []byte { return r.Append(make([]byte, 0, r.Size())) }

// Append appends the stored form of r to b, which is empty and has room for it.
func (r *Record) Append(b []byte) []byte {
	sections := r.sections()
	if version := r.version(); version == version3 {
		b = append(b, version, byte(sections>>8), byte(sections))
	} else {
		b = append(b, version, byte(sections))
	}
	if r.ban.end != 0 {
		b = appendInstant(b, r.ban.end)
		b = appendInstant(b, r.ban.length)
	}
	if r.ban.repeats != 0 {
		b = append(b, byte(r.ban.repeats))
	}
	if r.extra != nil {
		b = r.extra.append(b)
	}
	if !r.hits.empty() {
		b = r.hits.append(b)
	}
	if r.bucket.score != 0 {
		b = r.bucket.append(b)
	}
	return b
}

// sections returns the sections that r has.
func (r *Record) sections() (s sections) {
	if r.ban.end != 0 {
		s |= banSection
	}
	if r.ban.repeats != 0 {
		s |= offencesSection
	}
	if !r.hits.empty() {
		s |= r.hits.section()
	}
	if r.bucket.score != 0 {
		s |= bucketSection
	}
	if r.extra != nil {
		s |= r.extra.sections()
	}
	return s
}

const (
	instantSize = 8
	banSize     = 2*instantSize + 1 // with repeats
	bucketSize  = instantSize + 4 + 4 + 2

	calendarSize = 4 * instantSize
)

// Size returns how many bytes Encode needs at most.
func (r *Record) Size() int {
	size := 2
	if r.ban.end != 0 {
		size += banSize
	}
	if !r.hits.empty() {
		size += r.hits.size()
	}
	if r.bucket.score != 0 {
		size += bucketSize
	}
	if r.extra != nil {
		size += r.extra.size()
	}
	if r.extra != nil || r.hits.inCells() {
		size++ // the second byte of sections
	}
	return size
}

// End returns when r holds nothing any more.
func (r *Record) End() Instant {
	end := max(r.ban.forgotten(), r.hits.end(), r.bucket.time().up())
	if r.extra != nil {
		end = max(end, r.extra.end())
	}
	return end
}

// Expiration returns the Expiration of an item that must not go before end.
//
// memcached keeps whole seconds and may drop an item one early, so two are
// added, one of them for callers whose clocks are behind. It takes what is
// beyond 30 days as a date by its own clock, which gets an hour to be wrong.
// Dates end with an int32, in 2038, and what should last longer ends there, or
// after 30 days if that is later.
func Expiration(now, end Instant) int32 {
	const month, hour = 30 * 24 * 60 * 60, 60 * 60
	seconds := int64(end.Since(now)/time.Second) + 3
	if seconds <= month {
		return int32(seconds)
	}
	today := int64(now) / int64(time.Second)
	date := min(today+seconds+hour, math.MaxInt32)
	if date < today+month {
		return month
	}
	return int32(date)
}

// decode reads the sections of a ban from the head of b, and returns the rest.
func (bn *ban) decode(sections sections, b []byte) (rest []byte, ok bool) {
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
		bn.repeats, b = int(b[0]), b[1:]
	}
	return b, bn.end > 0 && bn.length >= 0
}

// decode reads the section of a calendar from the head of b, and returns the rest.
func (c *calendar) decode(sections sections, b []byte) (rest []byte, ok bool) {
	if sections&calendarSection == 0 {
		return b, true
	}
	if len(b) < calendarSize {
		return nil, false
	}
	c.start, c.end, c.begun = getInstant(b), getInstant(b[instantSize:]), getInstant(b[2*instantSize:])
	c.count = binary.BigEndian.Uint64(b[3*instantSize:])
	return b[calendarSize:], c.end > 0 && c.count <= math.MaxInt64
}

// append appends the section of c to b.
func (c *calendar) append(b []byte) []byte {
	for _, i := range [...]Instant{c.start, c.end, c.begun} {
		b = appendInstant(b, i)
	}
	return binary.BigEndian.AppendUint64(b, c.count)
}

// decode reads the section of a bucket from the tail of b, and returns the rest.
func (bk *bucket) decode(sections sections, b []byte) (rest []byte, ok bool) {
	if sections&bucketSection == 0 {
		return b, true
	}
	at := len(b) - bucketSize
	if at < 0 {
		return nil, false
	}
	stored := b[at:]
	bk.score, bk.part = getInstant(stored), binary.BigEndian.Uint32(stored[instantSize:])
	bk.rate = math.Float32frombits(binary.BigEndian.Uint32(stored[instantSize+4:]))
	bk.cancels = binary.BigEndian.Uint16(stored[instantSize+8:])
	return b[:at], bk.score > 0 && bk.rate >= 0 && bk.rate <= math.MaxFloat32 && !math.Signbit(float64(bk.rate))
}

// append appends the section of bk to b.
func (bk *bucket) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(appendInstant(b, bk.score), bk.part)
	b = binary.BigEndian.AppendUint32(b, math.Float32bits(bk.rate))
	return binary.BigEndian.AppendUint16(b, bk.cancels)
}

func getInstant(b []byte) Instant {
	return Instant(binary.BigEndian.Uint64(b))
}

func appendInstant(b []byte, i Instant) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(i))
}
