package record

import "time"

// What the tests of decisions on stored bytes share.

const (
	longestBucket = 100 * 365 * 24 * time.Hour
)

// decided is a verdict with the record that is to be stored, if it is. Otherwise Next is
// the record as it was.
type decided struct {
	Verdict
	Next  Record
	Store bool
}

// decide decides on a record by its value.
func decide(now Instant, limit *Limit, l Lockout, stored Record, count bool) decided {
	d := decided{Next: stored}
	if d.Store = d.Verdict.Decide(now, limit, l, &d.Next, count); !d.Store {
		d.Next = stored
	}
	return d
}

// decideBytes decides on the record stored, as a call does that may set a ban of length.
// The record to be stored is nil if stored stays as it is.
func decideBytes(now time.Time, limit Limit, length time.Duration, stored []byte) (Outcome, []byte) {
	return decideWith(now, limit, Lockout{Length: length, Longest: length}, stored)
}

// decideWith is decideBytes for bans of any kind.
func decideWith(now time.Time, limit Limit, l Lockout, stored []byte) (Outcome, []byte) {
	r, _ := Decode(stored)
	v := decide(InstantOf(now), &limit, l, r, true)
	if !v.Store {
		return v.Outcome, nil
	}
	return v.Outcome, v.Next.Encode()
}

// takeBackEveryWay counts a call on the record stored, with a ban by hand and one of a
// lockout after it, and takes it back in every way there is.
func takeBackEveryWay(now time.Time, limit Limit, stored []byte) {
	r, _ := Decode(stored)
	at, l := InstantOf(now), Lockout{Length: 1, Growth: 2, Longest: 1, KeepHits: true}
	v := decide(at, &limit, l, r, true)
	for _, r := range []Record{r, v.Next, decide(at, &limit, l, v.Next, true).Next} {
		r.Without(v.Hit, at)
		r.Withdrawn(v.Hit, at, &limit)
		r.Banned(at, 1)
	}
}

// recode decodes b and encodes the result.
func recode(b []byte) (recoded []byte, ok bool) {
	r, err := Decode(b)
	if err != nil {
		return nil, false
	}
	return r.Encode(), true
}

func decodeError(b []byte) error {
	_, err := Decode(b)
	return err
}

// bothRecord returns the record of all that records hold.
func bothRecord(records ...[]byte) []byte {
	var both Record
	for _, b := range records {
		r, _ := Decode(b)
		if r.ban.end != 0 {
			both.ban = r.ban
		}
		if r.hits.len() > 0 {
			both.hits = r.hits
		}
		if r.bucket.rate.ttl != 0 {
			both.bucket = r.bucket
		}
		if r.leases.len() > 0 {
			both.leases = r.leases
		}
		if r.calendar.end != 0 {
			both.calendar = r.calendar
		}
	}
	return both.Encode()
}

// windowRecord returns the record of a window that holds hits which expire at the given times,
// in order, the longest of them counted under ttl.
func windowRecord(ttl time.Duration, expiries ...time.Time) []byte {
	var h hits
	h.ttl = Instant(ttl)
	for _, t := range expiries {
		h.last = uint64(InstantOf(t))
		h.entries = appendLow(h.entries, h.last, h.expiries().width())
	}
	return Record{hits: h}.Encode()
}

// cellsRecord returns the record of a window that has so many hits of a TTL in each of some
// cells, the last of which contains epoch.
func cellsRecord(ttl time.Duration, counts ...uint32) []byte {
	h := hits{cells: cells{list: list{unit: cellFor(Instant(ttl)), ttl: Instant(ttl)}, since: InstantOf(epoch)}}
	h.pack(h.up(InstantOf(epoch))+1-uint64(len(counts)), counts)
	return Record{hits: h}.Encode()
}

// banRecord returns the record of a ban, the last of so many in a row; 0 if they do not
// grow.
func banRecord(end time.Time, length time.Duration, repeats int) []byte {
	return Record{ban: ban{end: InstantOf(end), length: Instant(length), repeats: repeats}}.Encode()
}

// bucketRecord returns the record of a bucket that was poured at epoch, and is empty at score
// and a part of a nanosecond.
func bucketRecord(limit Limit, score time.Time, parts uint64, cancels uint16) []byte {
	return Record{bucket: bucket{
		score: amount{InstantOf(score), parts}, at: InstantOf(epoch), rate: limit.rate(), cancels: cancels,
	}}.Encode()
}

func leasesRecord(all ...lease) []byte {
	var ls leases
	for _, l := range all {
		ls = ls.append(l)
	}
	return Record{leases: ls}.Encode()
}

func calendarRecord(start, end, begun time.Time, count uint64) []byte {
	return Record{calendar: calendar{InstantOf(start), InstantOf(end), InstantOf(begun), count}}.Encode()
}

// expiriesIn returns the expiry times of the hits in a record, as stored.
func expiriesIn(b []byte) []time.Time {
	r, err := Decode(b)
	if err != nil {
		return nil
	}
	var times []time.Time
	for i := range r.hits.stored() {
		times = append(times, time.Unix(0, int64(r.hits.time(i))))
	}
	return times
}

// banIn returns when the ban in a record ends, and how long it was.
func banIn(b []byte) (end time.Time, length time.Duration, ok bool) {
	r, err := Decode(b)
	if err != nil || r.ban.end == 0 {
		return time.Time{}, 0, false
	}
	return time.Unix(0, int64(r.ban.end)), time.Duration(r.ban.length), true
}

func expirationOf(now time.Time, content time.Duration) int32 {
	return Expiration(InstantOf(now), InstantOf(now).Add(content))
}

// allowed reports whether the rules of the throttler may ask for limit.
func allowed(limit Limit) bool {
	most := int64(MaxHits)
	if limit.Algorithm == Bucket {
		most = int64(limit.TTL)
	}
	if limit.Algorithm == Calendar {
		return limit.Max >= 1 && limit.Cost >= 0 && limit.Cost <= limit.Max
	}
	return limit.TTL >= time.Millisecond && (limit.Algorithm != Bucket || limit.TTL <= longestBucket) &&
		limit.Max >= 1 && int64(limit.Max) <= most && limit.Cost >= 0 && limit.Cost <= limit.Max
}
