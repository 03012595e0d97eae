package record

import "time"

// The sliding window: a list of the times at which the hits expire. A call is
// refused if the hits that it needs and those that have not expired exceed Max
// together; otherwise it adds its hits. It is the algorithm of
// Schedule::AdaptiveThrottler, and the only one that admits exactly Max hits in
// any window of TTL, whenever that begins.
//
// A hit counted at t expires at t+TTL, to the nanosecond in a window of up to 32
// hits, and otherwise rounded up to the next tenth of a millisecond. When more than
// maxTimes hits are in a window, it is rounded up by TTL/1024 at most: see [cells]. It
// counts at now if its expiry is later than now.
//
// Two kinds of hits are later than now+TTL, the expiry of a hit counted now:
//
//   - Hits that were counted under a longer TTL, when a rule was changed. They
//     keep their time as long as they block no call.
//   - Hits of a caller whose clock is ahead. They are known by being later than
//     now plus the longest TTL that the list was counted under.
//
// Both count as if they expired at now+TTL. They are stored so when they block or
// when the clock is to blame, or else they would count as now+TTL for ever. So a
// wrong clock, here or elsewhere, blocks a value for TTL at most. The same
// holds when the clock goes backwards and all hits are later than now+TTL.

// lookAtWindow decides a call at now on h, of which none has expired, and reports whether h
// must be stored.
func (v *Verdict) lookAtWindow(now Instant, limit *Limit, h *hits, count bool) (store bool) {
	store, v.Again = h.decide(now, limit, count, &v.Outcome)
	if cost := v.Outcome.Cost; cost > 0 {
		v.Hit = Hit{Cost: cost, Expiry: h.named(now.Add(limit.TTL))}
	}
	return store
}

// decide decides a call at now on h, of which none has expired. It sets o, which is zero, and
// returns whether h must be stored, and the time until there is room for the same call.
func (h *hits) decide(now Instant, limit *Limit, count bool, o *Outcome) (store bool, again time.Duration) {
	expiry, needed := now.Add(limit.TTL), limit.Needed()
	corrected := h.correct(now, expiry)
	n := h.len()
	over := n + needed - limit.Max // how many hits have to expire first
	if over > 0 && h.time(over-1) <= now {
		*h, n, over = hits{}, 0, 0 // a list out of order is none
	}
	o.Remaining = max(limit.Max-n, 0)
	switch {
	case over > 0:
		o.Blocked = true
		end := h.end()
		h.cap(now, expiry)
		store = corrected || h.end() < end
	case count:
		o.Cost = min(limit.Hits(), limit.Max-n)
		o.Remaining -= o.Cost
		h.add(o.Cost, expiry, limit)
		store = true
	}
	latest := h.latest(now, expiry) // no hit counts for longer
	o.ResetAfter = min(h.end(), latest).Since(now)
	again = h.untilFits(needed, limit.Max, now, latest)
	o.RetryAfter = again
	if needed > 1 && !o.Blocked {
		o.RetryAfter = h.untilFits(1, limit.Max, now, latest)
	}
	return store, again
}

// untilFits returns how long after now cost more hits fit into h under max, if
// no hit counts after latest.
func (h *hits) untilFits(cost, max int, now, latest Instant) time.Duration {
	last := h.len() + cost - max - 1 // of the hits that have to expire first
	if last < 0 {
		return 0
	}
	return min(h.time(last), latest).Since(now)
}
