// Package inspect shows what a record holds, to the operator's commands and to tests.
package inspect

import (
	"errors"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Record is what is stored for one value of one condition. Its times may be past.
type Record struct {
	// BannedUntil is the end of the ban. Zero means no ban.
	BannedUntil time.Time

	// BanLength is the length of the ban when it was set.
	BanLength time.Duration

	// Bans is the number of bans in a row. 0 if the rule has no LockoutGrowth.
	Bans int

	// Expiries are the times at which the hits of a sliding window expire,
	// oldest first; in a long one, rounded up as they are stored. Hits beside a ban do
	// not count.
	Expiries []time.Time

	// WindowTTL is the longest TTL that a hit in Expiries was counted under.
	WindowTTL time.Duration

	// EmptyAt is when a leaky bucket is empty. Zero means no bucket. A bucket
	// beside a ban does not count.
	EmptyAt time.Time

	// Counted is the number of hits of a calendar in the period from PeriodStart to
	// PeriodEnd. Hits beside a ban do not count.
	Counted                int
	PeriodStart, PeriodEnd time.Time

	// Leases are those of hits in flight, in the order in which they were counted.
	Leases []Lease
}

// A Lease is one lease in a [Record].
type Lease struct {
	ID   uint64
	End  time.Time     // when it ends unless it is renewed
	TTL  time.Duration // for which it is renewed
	Hits int
}

// Decode decodes the value of a stored item. The error matches [record.ErrNewerRecord], or says
// that the value is no record. The item of a condition has the key [record.Key].
func Decode(value []byte) (Record, error) {
	r, err := record.Decode(value)
	switch {
	case errors.Is(err, record.ErrNewerRecord):
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
		seen.Leases = append(seen.Leases, Lease{l.ID, timeOf(l.End), l.TTL, l.Hits})
	}
	for _, at := range f.Expiries {
		seen.Expiries = append(seen.Expiries, timeOf(at))
	}
	return seen, nil
}

// SplitKey takes a key of [record.Key] apart. ok is false for a hash, and for a key that is not
// of the form identifier#name#value.
func SplitKey(key string) (identifier, name, value string, ok bool) {
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
