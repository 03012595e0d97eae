package throttler

import (
	"math"
	"time"
)

type hit struct {
	expiry instant
	share  share
}

type verdict struct {
	outcome Outcome
	next    record
	store   bool
	hit     hit
}

func decide(now instant, c *Condition, l lockout, stored record, count bool) verdict {
	if stored.hits.added != 0 {
		stored, _ = decode(stored.encode())
	}
	o, next, store := decideOne(now, c, l, stored, count)
	v := verdict{outcome: o, next: next, store: store}
	if store && count && !o.Blocked {
		v.hit = hit{next.hits.addedTime(), next.bucket.added}
	}
	return v
}

func (r record) without(h hit, now instant) (record, bool) {
	if r.hits.added != 0 {
		r, _ = decode(r.encode())
	}
	var found bool
	if h.expiry != 0 {
		r.hits, found = r.hits.after(now).without(h.expiry)
	} else {
		r.bucket, found = r.bucket.without(h.share, now)
	}
	return r, found
}

func (r record) withdrawn(h hit, now instant, _ *Condition) (record, bool) { return r.without(h, now) }

func (r record) banned(now instant, d time.Duration) (record, bool) {
	b, _ := r.ban.at(now)
	if end := now.add(d); end > b.end {
		return record{ban: ban{end: end, length: instant(d), offences: b.offences}}, true
	}
	return record{}, false
}

// expiration returns the Expiration of an item that must not go before end.
//
// memcached keeps whole seconds and may drop an item one early, so two are
// added, one of them for callers whose clocks are behind. It takes what is
// beyond 30 days as a date by its own clock, which gets an hour to be wrong.
// Dates end with an int32, in 2038, and what should last longer ends there, or
// after 30 days if that is later.
func expiration(now, end instant) int32 {
	const month, hour = 30 * 24 * 60 * 60, 60 * 60
	seconds := int64(end.since(now)/time.Second) + 3
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
