package throttler

import (
	"errors"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// ErrNewerRecord matches, by errors.Is, the error of a condition whose record was
// written by a later release of this package. The record is neither read nor
// overwritten: the condition fails open, or [Throttler.Fallback] decides it. To
// roll back to this release, reset the values concerned or let their records
// expire.
var ErrNewerRecord = record.ErrNewerRecord

// A Record is what is stored for one value of one condition, for tools that show it: see
// [Inspect]. Its times may be past.
type Record struct {
	// BannedUntil is the end of the ban. Zero means no ban.
	BannedUntil time.Time

	// BanLength is the length of the ban when it was set.
	BanLength time.Duration

	// Bans is the number of bans in a row. 0 if the rule has no LockoutGrowth.
	Bans int

	// Expiries are the times at which the hits of a [SlidingWindow] expire,
	// oldest first; in a long one, rounded up as they are stored. Hits beside a ban do
	// not count.
	Expiries []time.Time

	// WindowTTL is the longest TTL that a hit in Expiries was counted under.
	WindowTTL time.Duration

	// EmptyAt is when a [LeakyBucket] is empty. Zero means no bucket. A bucket
	// beside a ban does not count.
	EmptyAt time.Time

	// Counted is the number of hits of a [Calendar] in the period from PeriodStart to
	// PeriodEnd. Hits beside a ban do not count.
	Counted                int
	PeriodStart, PeriodEnd time.Time

	// Leases are those of [InFlight] hits, in the order in which they were counted.
	Leases []StoredLease
}

// A StoredLease is one lease in a [Record], for tools that show who holds what.
type StoredLease struct {
	ID   uint64
	End  time.Time     // when it ends unless it is renewed
	TTL  time.Duration // for which it is renewed
	Hits int
}

// Inspect decodes the value of a stored item, for tools that show records. The error matches
// [ErrNewerRecord], or says that the value is no record. The item of a condition has the key [RecordKey].
func Inspect(value []byte) (Record, error) {
	r, err := record.Decode(value)
	switch {
	case errors.Is(err, ErrNewerRecord):
		return Record{}, err
	case err != nil:
		return Record{}, errors.New("throttler: not a record of this package")
	}
	f := r.Facts()
	seen := Record{
		BannedUntil: timeOf(f.BanEnd),
		BanLength:   f.BanLength,
		Bans:        f.Bans,
		EmptyAt:     timeOf(f.EmptyAt),
		WindowTTL:   f.WindowTTL,
		Counted:     int(f.Counted),
		PeriodStart: timeOf(f.PeriodStart),
		PeriodEnd:   timeOf(f.PeriodEnd),
	}
	for _, l := range f.Leases {
		seen.Leases = append(seen.Leases, StoredLease{l.ID, timeOf(l.End), l.TTL, l.Hits})
	}
	for _, at := range f.Expiries {
		seen.Expiries = append(seen.Expiries, timeOf(at))
	}
	return seen, nil
}

// RecordKey returns the key under which the record of a condition's value is stored, for
// tools that look it up: identifier#name#value, or a hash if that is not a legal key that
// [SplitRecordKey] can take apart.
func RecordKey(identifier, name, value string) string {
	return record.Key(identifier, name, value)
}

// SplitRecordKey takes a key of [RecordKey] apart, for tools that list keys. ok is false
// for a hash, and for a key that is not of the form identifier#name#value.
func SplitRecordKey(key string) (identifier, name, value string, ok bool) {
	identifier, rest, ok := strings.Cut(key, "#")
	if !ok || identifier == "" {
		return "", "", "", false
	}
	name, value, ok = strings.Cut(rest, "#")
	if !ok {
		return "", "", "", false
	}
	return identifier, name, value, true
}

// timeOf returns i as a time of the wall clock, and the zero Time for 0.
func timeOf(i record.Instant) time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i))
}
