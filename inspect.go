package throttler

import (
	"errors"
	"strings"
	"time"
)

// ErrNotRecord is the error of [Inspect] for bytes that are no record.
var ErrNotRecord = errors.New("throttler: not a record")

// A Record is what is stored for one value of one condition. It says when its
// parts end and leaves it to the reader whether that is past.
type Record struct {
	// BannedUntil is when the ban ends. Zero: no ban was set.
	BannedUntil time.Time

	// BanLength is how long the ban was when it was set.
	BanLength time.Duration

	// Bans is the number of bans in a row, under a rule with LockoutGrowth.
	// 0: the rule has none.
	Bans int

	// Expiries is when each hit of a [SlidingWindow] expires, oldest first. Hits
	// stored beside a ban do not count.
	Expiries []time.Time

	// WindowTTL is the longest TTL that a hit in Expiries was counted under.
	WindowTTL time.Duration

	// EmptyAt is when a [LeakyBucket] has leaked empty. Zero: no bucket.
	EmptyAt time.Time
}

// Inspect returns what the value of a stored item means, for tools that show it.
// The item of a condition is stored under [RecordKey]. The error is ErrNotRecord
// or [ErrNewerRecord].
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

// RecordKey returns the key that the record of a condition's value is stored
// under: identifier#name#value, or a hash where that is no legal key.
func RecordKey(identifier, name, value string) string {
	return key(identifier, name, value)
}

// SplitRecordKey takes a key of [RecordKey] apart. ok is false for a hash, which
// cannot be, and for any other key.
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

// IsHashedKey reports whether a key of [RecordKey] is a hash, which tells neither
// rule nor value.
func IsHashedKey(key string) bool { return strings.HasPrefix(key, hashedKey) }

// time returns i as a time of the wall clock, the zero Time for 0.
func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i))
}
