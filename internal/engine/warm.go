package engine

import (
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A narrowing keeps the fallback from allowing Max once more: it counts in a record of its own,
// of which this process allows a share, and never more than what was last seen in the backend's
// record leaves of Max.
type narrowing struct {
	max  int    // hits of the fallback's own record
	seen []byte // the backend's record as it is stored; empty: none was seen
}

// narrow makes c the change of an entry on the record of key that b, the fallback, decides.
func (b *backend) narrow(c *change, key string) {
	c.narrowing = &narrowing{max: b.allows(c.limit.Max), seen: b.engine.main.LastSeen(key)}
}

// allows returns how many of limit hits b allows of its own.
func (b *backend) allows(limit int) int {
	if s := b.share; s > 0 && s < 1 {
		const rounding = 1e-9 // 0.29 of 100 is 29
		return max(1, min(limit, int(s*float64(limit)+rounding)))
	}
	return limit
}

// record returns the backend's record. A decision on it may change it.
func (n *narrowing) record() (r record.Record) {
	if len(n.seen) > 0 {
		r, _ = record.Decode(n.seen) // of a later version: as if it was not seen
	}
	return r
}

// decide is [record.Verdict.Decide] on r, a record of the fallback.
func (n *narrowing) decide(v *record.Verdict, now record.Instant, limit *record.Limit, l record.Lockout, r *record.Record, count bool) (store bool) {
	store = n.decideOnce(v, now, limit, l, r, count)
	// Each of the two records says when it takes the call, not when both do.
	for range retries {
		o := &v.Outcome
		if !o.Blocked || o.Banned {
			break
		}
		later, at := *r, now.Add(o.RetryAfter)
		var next record.Verdict
		if n.decideOnce(&next, at, limit, record.Lockout{}, &later, false); !next.Outcome.Blocked {
			break
		}
		o.RetryAfter += next.Outcome.RetryAfter
		v.Again = o.RetryAfter
	}
	return store
}

// retries is how often the time of the next try is put off at most.
const retries = 32

func (n *narrowing) decideOnce(v *record.Verdict, now record.Instant, limit *record.Limit, l record.Lockout, r *record.Record, count bool) (store bool) {
	own, seen := limit.WithMax(n.max), n.record()
	one := own
	one.Cost, one.Least = 0, 0
	mine := look(now, &one, *r)
	switch {
	case mine.Banned:
		return v.Decide(now, &one, l, r, count)
	case own.Needed() > own.Max: // whatever expires
		*v = record.Verdict{Outcome: mine, Again: lifetime(limit)}
		v.Outcome.Blocked, v.Outcome.RetryAfter = true, v.Again
		return false
	case limit.Algorithm == record.Bucket:
		if look(now, limit, seen).Banned {
			v.Decide(now, limit, l, &seen, false)
			return false
		}
		r.Join(seen, now, limit, &own)
		return v.Decide(now, &own, l, r, count)
	case mine.Remaining < own.Needed():
		return v.Decide(now, &own, l, r, count)
	}
	if v.Decide(now, limit, l, &seen, false); v.Outcome.Blocked {
		if v.Outcome.NewBan {
			*r = seen
		}
		return v.Outcome.NewBan
	}
	theirs, used := v.Outcome, own.Max-mine.Remaining
	left := theirs.Remaining - used
	if left < own.Needed() {
		if left > 0 {
			l.Length = 0 // there is room for a hit, if not for all of the call
		}
		one.Max = used
		store = v.Decide(now, &one, l, r, count)
	} else {
		if own.Least > 0 {
			own.Cost = min(own.Hits(), left)
		}
		store = v.Decide(now, &own, l, r, count)
	}
	if o := &v.Outcome; !o.Banned {
		o.Remaining = max(min(left, mine.Remaining)-o.Cost, 0)
		o.ResetAfter = max(o.ResetAfter, theirs.ResetAfter)
		if o.Remaining == 0 && theirs.Remaining < limit.Max { // until a hit of the one or the other expires
			more := *limit
			more.Cost, more.Least = theirs.Remaining+1, 0
			next := look(now, &more, n.record()).RetryAfter
			if o.RetryAfter == 0 || next < o.RetryAfter {
				o.RetryAfter = next
			}
		}
		if o.Blocked {
			v.Again = o.RetryAfter
		}
	}
	return store
}

// look decides a call on r without counting it.
func look(now record.Instant, limit *record.Limit, r record.Record) record.Outcome {
	var v record.Verdict
	v.Decide(now, limit, record.Lockout{}, &r, false)
	return v.Outcome
}

// lifetime returns how long a hit counts at most.
func lifetime(limit *record.Limit) time.Duration {
	if limit.Algorithm == record.Calendar {
		_, longest := limit.Period.Length()
		return longest
	}
	return limit.TTL
}
