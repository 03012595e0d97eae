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
//	byte 0      version, 1
//	byte 1      the sections that follow, a bit each
//	ban         end (8 bytes), length (8)                 if bit 0 is set
//	repeats     bans in a row (1)                         if bit 1 is set
//	kept        set (8), before (8)                       if bit 2 is set
//	leases      how many (4), leases (28 each)            if bit 3 is set
//	calendar    start (8), end (8), begun (8), count (8)  if bit 4 is set
//	bucket      score (8), parts (8), at (8), ttl (8),
//	            max (8), cancels (2)                      if bit 5 is set
//	times       ttl (8), last (8), entries (w each)       if bit 6 is set
//	cells       ttl (8), since (8), last (8), total (4),
//	            w (1), counts (w each)                    if bit 7 is set
//
// All numbers are big endian. Times are in nanoseconds, since the Unix epoch where they are
// points in time; last of cells is a number of cells. Repeats and kept come only with a ban, and
// only one of bits 6 and 7 is set. A record without sections is one that holds nothing.
//
// Several algorithms have sections while that of a condition is being changed, and some
// processes count by the one and some by the other. As it is one record, a ban or a Reset
// reaches all of them.
//
// A lease is the ID of the call that took it (8), its end (8), its TTL (8) and its hits
// (4).
//
// Entries are the times at which the hits of a window expire, oldest first, and counts how many
// do so in each cell: see [expiries] and [cells]. Nothing of them is unpacked.
//
// The encoding is canonical: there is one for each record, and Decode takes no
// other. Bytes of any other form are treated as absent and overwritten. testdata/records.txt
// has samples, which later releases must read. The versions up to lastVersion are known to
// come: their records are left alone, see [ErrNewerRecord].

const (
	version     = 1
	lastVersion = 4
	leastRecord = 3 // bytes that a record of a later version has at least
)

// ErrNewerRecord is the error of a record that was written by a later release. It must be
// neither read nor overwritten.
var ErrNewerRecord = errors.New("throttler: the stored record is of a later version: update this program, or reset the value")

// ErrForeign is the error of bytes that are no record of this package.
var ErrForeign = errors.New("throttler: not a record")

// sections are bits that say which sections a record has.
type sections uint8

const (
	banSection sections = 1 << iota
	repeatsSection
	keptSection
	leasesSection
	calendarSection
	bucketSection
	timesSection
	cellsSection
)

// A Record is all that is known of one value of one condition. Its hits and leases refer
// to the bytes it was decoded from, which must not change.
type Record struct {
	ban      ban
	leases   leases
	calendar calendar
	bucket   bucket
	hits     hits
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
	if len(b) >= leastRecord && b[0] > version && b[0] <= lastVersion {
		return ErrNewerRecord
	}
	return ErrForeign
}

// Clear empties r. It writes no pointer where there is none: while garbage is collected,
// that costs more than all else.
func (r *Record) Clear() {
	r.ban, r.calendar, r.bucket = ban{}, calendar{}, bucket{}
	if r.hits.entries != nil || r.hits.run != 0 {
		r.hits = hits{}
	}
	if r.leases.entries != nil {
		r.leases = leases{}
	}
}

// read sets r, which is empty, to the record that b is the stored form of, and
// reports whether it is any.
func (r *Record) read(b []byte) (ok bool) {
	if len(b) < 2 || b[0] != version {
		return false
	}
	has := sections(b[1])
	in := reader{b: b[2:]}
	if has&banSection != 0 {
		r.ban.end, r.ban.length = in.instant(), in.instant()
		in.require(r.ban.end > 0 && r.ban.length >= 0)
	}
	if has&repeatsSection != 0 {
		r.ban.repeats = int(in.next(1)[0])
		in.require(r.ban.repeats != 0 && r.ban.end != 0)
	}
	if has&keptSection != 0 {
		r.ban.set, r.ban.before = in.instant(), in.instant()
		in.require(r.ban.set > 0 && r.ban.before >= 0 && r.ban.end != 0)
	}
	if has&leasesSection != 0 {
		n := int64(binary.BigEndian.Uint32(in.next(leasesHead))) * leaseSize
		if in.require(n > 0 && n <= int64(len(in.b))); !in.bad {
			r.leases.entries = in.next(int(n))
		}
	}
	if c := &r.calendar; has&calendarSection != 0 {
		c.start, c.end, c.begun, c.count = in.instant(), in.instant(), in.instant(), in.uint64()
		in.require(c.end > 0 && c.count <= math.MaxInt64)
	}
	if bk := &r.bucket; has&bucketSection != 0 {
		bk.decode(in.next(bucketSize))
		in.require(bk.sound())
	}
	return !in.bad && r.hits.decode(has, in.b)
}

// A reader takes a record apart.
type reader struct {
	b   []byte
	bad bool // it is none
}

// zeros are read where a record has ended.
var zeros [bucketSize]byte

// next returns the next n bytes. If there are fewer, the record is none.
func (in *reader) next(n int) (b []byte) {
	if n > len(in.b) {
		in.bad, in.b = true, nil
		return zeros[:n]
	}
	b, in.b = in.b[:n:n], in.b[n:]
	return b
}

func (in *reader) uint64() uint64   { return binary.BigEndian.Uint64(in.next(8)) }
func (in *reader) instant() Instant { return Instant(in.uint64()) }
func (in *reader) require(ok bool)  { in.bad = in.bad || !ok }

// Encode returns the stored form of r, in a slice of its own.
func (r Record) Encode() []byte { return r.Append(make([]byte, 0, r.Size())) }

// Append appends the stored form of r to b, which is empty and has room for it.
func (r *Record) Append(b []byte) []byte {
	var has sections
	b = append(b, version, 0)
	if r.ban.end != 0 {
		has |= banSection
		b = appendInstant(appendInstant(b, r.ban.end), r.ban.length)
	}
	if r.ban.repeats != 0 {
		has |= repeatsSection
		b = append(b, byte(r.ban.repeats))
	}
	if r.ban.set != 0 {
		has |= keptSection
		b = appendInstant(appendInstant(b, r.ban.set), r.ban.before)
	}
	if len(r.leases.entries) > 0 {
		has |= leasesSection
		b = append(binary.BigEndian.AppendUint32(b, uint32(r.leases.len())), r.leases.entries...)
	}
	if c := &r.calendar; c.end != 0 {
		has |= calendarSection
		b = appendInstant(appendInstant(appendInstant(b, c.start), c.end), c.begun)
		b = binary.BigEndian.AppendUint64(b, c.count)
	}
	if r.bucket.rate.ttl != 0 {
		has |= bucketSection
		b = r.bucket.append(b)
	}
	if !r.hits.empty() {
		has |= r.hits.section()
		b = r.hits.append(b)
	}
	b[1] = byte(has)
	return b
}

const (
	instantSize  = 8
	banSize      = 4*instantSize + 1
	leasesHead   = 4
	calendarSize = 4 * instantSize
	bucketSize   = 5*instantSize + 2
)

// Size returns how many bytes Encode needs at most.
func (r *Record) Size() int {
	size := 2
	if r.ban.end != 0 {
		size += banSize
	}
	if len(r.leases.entries) > 0 {
		size += leasesHead + len(r.leases.entries)
	}
	if r.calendar.end != 0 {
		size += calendarSize
	}
	if r.bucket.rate.ttl != 0 {
		size += bucketSize
	}
	if !r.hits.empty() {
		size += r.hits.size()
	}
	return size
}

// End returns when r holds nothing any more.
func (r *Record) End() Instant {
	return max(r.ban.forgotten(), r.leases.end(), r.calendar.end, r.bucket.score.up(), r.hits.end())
}

// Expiration returns the Expiration of an item that must not go before end: see Expiry in the
// package comment. What should last longer than dates do ends with them, or after 30 days if that
// is later.
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

// decode reads a bucket from the bucketSize bytes of its section.
func (b *bucket) decode(from []byte) {
	at := func(i int) uint64 { return binary.BigEndian.Uint64(from[i*8:]) }
	b.score, b.at = amount{Instant(at(0)), at(1)}, Instant(at(2))
	b.rate = rate{Instant(at(3)), at(4)}
	b.cancels = binary.BigEndian.Uint16(from[5*8:])
}

// sound reports whether b, as it was stored, is a bucket.
func (b *bucket) sound() bool {
	return b.score.whole > 0 && b.at >= 0 && b.rate.ttl > 0 && b.rate.max > 0 && b.rate.max <= math.MaxInt64 && b.score.parts < b.rate.max
}

// append appends the section of b.
func (b *bucket) append(to []byte) []byte {
	for _, n := range [...]uint64{uint64(b.score.whole), b.score.parts, uint64(b.at), uint64(b.rate.ttl), b.rate.max} {
		to = binary.BigEndian.AppendUint64(to, n)
	}
	return binary.BigEndian.AppendUint16(to, b.cancels)
}

func getInstant(b []byte) Instant {
	return Instant(binary.BigEndian.Uint64(b))
}

func appendInstant(b []byte, i Instant) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(i))
}
