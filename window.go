package throttler

import "time"

// The sliding window: a list of the times at which the hits expire. A call is
// refused while Max of them have not, and adds one of its own otherwise. It is
// the algorithm of Schedule::AdaptiveThrottler, and the only one that admits
// exactly Max hits in any window of TTL, whenever that begins.
//
// A hit counted at t expires at t+TTL, to the nanosecond in a window of up to 32
// hits, and otherwise rounded up to the next tenth of a millisecond. It counts at
// now if its expiry is later than now.
//
// Two kinds of hits are later than now+TTL, the expiry of a hit counted now:
//
//   - Hits that were counted under a longer TTL, when a rule was changed. They
//     keep their time as long as they block nobody.
//   - Hits of a caller whose clock is ahead. They are known by being later than
//     now plus the longest TTL that the list was counted under.
//
// Both count as if they expired at now+TTL. They are stored so when they block,
// or when the clock is to blame, lest they count as now+TTL for ever: nobody is
// locked out for longer than TTL by a wrong clock, here or elsewhere. When the
// clock goes backwards, all hits may look so, and the same holds.

// look decides a call at now on the hits h of c. It returns what it comes to,
// and the hits as they are to be stored if store is set; otherwise they stay as
// they are. A hit is counted if there is room for one and count is set.
func (h hits) look(now instant, c *Condition, count bool) (o Outcome, next hits, store bool) {
	expiry := now.add(c.TTL)
	h, corrected := h.after(now).at(now, expiry)
	o = Outcome{Name: c.Name, Limit: c.Max}
	n := h.stored()
	if n >= c.Max && h.time(n-c.Max) <= now {
		h, n = hits{}, 0 // a list out of order is none
	}
	if n >= c.Max {
		blocking := h.capped(expiry)
		o.Blocked = true
		o.RetryAfter = blocking.time(n - c.Max).since(now)
		o.ResetAfter = min(h.end(), expiry).since(now)
		return o, blocking, corrected || blocking.last < h.last
	}
	o.Remaining = c.Max - n
	o.ResetAfter = min(h.end(), expiry).since(now)
	if !count {
		return o, h, false
	}
	next = h.with(expiry, c)
	o.Remaining--
	o.ResetAfter = expiry.since(now)
	if o.Remaining == 0 {
		o.RetryAfter = min(next.first(), next.rounded(expiry)).since(now)
	}
	return o, next, true
}

// at returns h as it stands at now, when a hit would be counted to expire at
// expiry. Hits that would count for longer than any of the list was counted
// for are those of a clock that is ahead, and are set to expiry with all that
// are later; corrected says so.
func (h hits) at(now, expiry instant) (current hits, corrected bool) {
	if h.stored() == 0 {
		return h, false
	}
	// A unit more, for the one that rounding up may add.
	honest := now.add(time.Duration(h.ttl) * time.Duration(h.unit)).add(time.Duration(h.unit))
	if h.end() <= max(h.rounded(expiry), honest) {
		return h, false
	}
	return h.capped(expiry), true
}

// rounded returns t as it would be stored in h.
func (h hits) rounded(t instant) instant {
	return instant(h.up(t)) * h.unit
}

// first returns when the first of the hits expires.
func (h hits) first() instant {
	first := h.added
	if h.stored() > 0 && (first == 0 || h.full(0) < first) {
		first = h.full(0)
	}
	return instant(first) * h.unit
}

// with returns h with a hit of c that expires at expiry.
func (h hits) with(expiry instant, c *Condition) hits {
	unit := unitFor(c.Max)
	ttl := hits{unit: unit}.up(instant(c.TTL))
	if h.end() > expiry {
		// As long as there are hits of a longer TTL, it is the list's.
		longest := instant(h.ttl) * h.unit
		ttl = max(ttl, hits{unit: unit}.up(longest))
	}
	h = h.under(unit, ttl)
	h.added = h.up(expiry)
	return h
}

// without returns h without one hit that expires at expiry, and whether there
// was one.
func (h hits) without(expiry instant) (hits, bool) {
	if h.stored() == 0 {
		return h, false
	}
	i := h.search(uint64(expiry/h.unit)) - 1
	if i < 0 || h.time(i) != expiry {
		return h, false
	}
	if h.stored() == 1 {
		return hits{}, true
	}
	w := h.width()
	entries := append(make([]byte, 0, len(h.entries)-w), h.entries[:i*w]...)
	entries = append(entries, h.entries[(i+1)*w:]...)
	if i == h.stored()-1 {
		h.last = h.full(i - 1)
	}
	h.entries = entries
	return h, true
}
