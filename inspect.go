package throttler

import (
	"errors"
	"strings"
	"time"
)

// ErrNotRecord is the error of [Inspect] for bytes that are not a record.
var ErrNotRecord = errors.New("throttler: not a record of this package")

// A Record is what is stored for one value of one condition. Its times may be past.
type Record struct {
	// BannedUntil is the end of the ban. Zero means no ban.
	BannedUntil time.Time

	// BanLength is the length of the ban when it was set.
	BanLength time.Duration

	// Bans is the number of bans in a row. 0 if the rule has no LockoutGrowth.
	Bans int

	// Expiries are the times at which the hits of a [SlidingWindow] expire,
	// oldest first. Hits beside a ban do not count.
	Expiries []time.Time

	// WindowTTL is the longest TTL that a hit in Expiries was counted under.
	WindowTTL time.Duration

	// EmptyAt is when a [LeakyBucket] is empty. Zero means no bucket.
	EmptyAt time.Time
}

// Inspect decodes the value of a stored item, for tools that show it. The error is
// [ErrNotRecord] or [ErrNewerRecord]. The item of a condition has the key [RecordKey].
func Inspect(value []byte) (Record, error) {
	r, err := decode(value)
	switch {
	case errors.Is(err, ErrNewerRecord):
		return Record{}, err
	case err != nil:
		return Record{}, ErrNotRecord
	}
	seen := Record{
		BannedUntil: r.ban.end.time(),
		BanLength:   time.Duration(r.ban.length),
		Bans:        r.ban.repeats,
		EmptyAt:     r.bucket.score.time(),
	}
	for i := range r.hits.stored() {
		seen.Expiries = append(seen.Expiries, r.hits.time(i).time())
	}
	if len(seen.Expiries) > 0 {
		seen.WindowTTL = time.Duration(instant(r.hits.ttl) * r.hits.unit)
	}
	return seen, nil
}

// RecordKey returns the key under which the record of a condition's value is stored:
// identifier#name#value, or a hash if that is not a legal key that [SplitRecordKey]
// can take apart.
func RecordKey(identifier, name, value string) string {
	return key(identifier, name, value)
}

// SplitRecordKey takes a key of [RecordKey] apart. ok is false for a hash, and for a
// key that is not of the form identifier#name#value.
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

// IsHashedKey reports whether a key of [RecordKey] is a hash. A hash does not reveal
// rule or value.
func IsHashedKey(key string) bool { return strings.HasPrefix(key, hashedKey) }

// time returns i as a time of the wall clock, and the zero Time for 0.
func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i))
}
