package record

import "time"

// The sliding window: a list of the times at which the hits expire. A call is
// refused if the hits that it needs and those that have not expired exceed Max
// together; otherwise it adds its hits. It is the algorithm of
// Schedule::AdaptiveThrottler, and the only one that admits exactly Max hits in
// any window of TTL, whenever that begins.
//
// A hit counted at t expires at t+TTL, to the nanosecond. When more than maxTimes hits are in a
// window, that is rounded up by TTL/1024 at most: see [cells]. It counts at now if its expiry
// is later than now. Hits that were taken ahead expire TTL after the last moment at which they
// may be spent, by [Limit.Ahead].
//
// A hit that was counted under a longer TTL, or by a clock that is ahead, counts as if it expired
// at now+TTL. When it is stored so, Clocks in the package comment says.

// lookAtWindow decides a call at now on h, of which none has expired, and reports whether h
// must be stored. It sets v, whose Outcome and Hit are zero.
func (v *Verdict) lookAtWindow(now Instant, limit *Limit, h *hits, count bool) (store bool) {
	o, needed := &v.Outcome, limit.Needed()
	latest := now.Add(limit.TTL).Add(h.ahead(limit)) // no hit counts for longer
	corrected := h.correct(now, latest)
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
		h.cap(now, latest)
		store = corrected || h.end() < end
	case count:
		o.Cost = min(limit.Hits(), limit.Max-n)
		o.Remaining -= o.Cost
		expiry, ttl := limit.spent(now, o.Cost).Add(limit.TTL), limit.TTL+h.ahead(limit)
		if expiry > now.Add(limit.TTL) {
			latest, ttl = max(latest, expiry), limit.TTL+limit.MostAhead()
		}
		h.add(o.Cost, expiry, Instant(ttl))
		v.Hit = Hit{Cost: o.Cost, Expiry: expiry}
		store = true
	}
	latest = h.latest(now, latest)
	o.ResetAfter = min(h.end(), latest).Since(now)
	v.Again = h.untilFits(needed, limit.Max, now, latest)
	if o.Blocked && v.Again == 0 { // nor is one whose counts are not what it says
		*h, *o = hits{}, Outcome{}
		return v.lookAtWindow(now, limit, h, count)
	}
	o.RetryAfter = v.Again
	if needed > 1 && !o.Blocked {
		o.RetryAfter = h.untilFits(1, limit.Max, now, latest)
	}
	return store
}

// ahead returns how much later than now+TTL honest hits of h may expire because they were
// taken ahead: as the list says, until it is empty, whether limit takes any ahead or not.
func (h *hits) ahead(limit *Limit) time.Duration {
	most, beyond := limit.MostAhead(), time.Duration(h.ttl)-limit.TTL
	if beyond < 0 || beyond > most {
		return 0 // of another TTL
	}
	return beyond
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
