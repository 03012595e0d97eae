package throttler

import "time"

// The sliding window: a list of the times at which the hits expire. A call is
// refused while Max of them have not, and adds one of its own otherwise. It is
// the algorithm of Schedule::AdaptiveThrottler, and the only one that admits
// exactly Max hits in any window of TTL, whenever that begins.
//
// A hit counted at t expires at t+TTL, rounded up to the next [tick]. It counts
// at now if its expiry is later than now.
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
func (h hits) look(now time.Time, c *Condition, count bool) (o Outcome, next hits, store bool) {
	expiry := instantAfter(now, c.TTL)
	h, corrected := h.after(instantOf(now)).at(now, expiry)
	o = Outcome{Name: c.Name, Limit: c.Max}
	n := h.stored()
	if n >= c.Max {
		ahead := h.last > expiry
		h = h.capped(expiry)
		o.Blocked = true
		o.RetryAfter = h.time(n - c.Max).since(now)
		o.ResetAfter = h.last.since(now)
		return o, h, corrected || ahead
	}
	o.Remaining = c.Max - n
	o.ResetAfter = min(h.last, expiry).since(now)
	if !count {
		return o, h, false
	}
	o.Remaining--
	o.ResetAfter = expiry.since(now)
	if o.Remaining == 0 {
		o.RetryAfter = h.first(expiry).since(now)
	}
	return o, h.with(expiry, ticks(c.TTL)), true
}

// at returns h as it stands at now, when a hit would be counted to expire at
// expiry. Hits that would count for longer than any of the list was counted
// for are those of a clock that is ahead, and are set to expiry with all that
// are later; corrected says so.
func (h hits) at(now time.Time, expiry instant) (current hits, corrected bool) {
	// A tick more, for the one that rounding up may add.
	latest := max(expiry, instantOf(now)+h.ttl+1)
	if h.last <= latest {
		return h, false
	}
	return h.capped(expiry), true
}

// first returns when the first of h and of a hit that expires at expiry does.
// A later one counts as if it expired at expiry.
func (h hits) first(expiry instant) instant {
	if h.stored() == 0 {
		return expiry
	}
	return min(h.time(0), expiry)
}

// with returns h with a hit that expires at expiry and is counted under ttl.
func (h hits) with(expiry, ttl instant) hits {
	if h.last > expiry {
		ttl = max(ttl, h.ttl)
	}
	h = h.under(ttl)
	h.added = expiry
	return h
}

// without returns h without one hit that expires at expiry, and whether there
// was one.
func (h hits) without(expiry instant) (hits, bool) {
	i := h.search(expiry) - 1
	if i < 0 || h.time(i) != expiry {
		return h, false
	}
	if h.stored() == 1 {
		return hits{}, true
	}
	w := h.width()
	entries := append(make([]byte, 0, len(h.entries)-w), h.entries[:i*w]...)
	entries = append(entries, h.entries[(i+1)*w:]...)
	if expiry == h.last { // search has found the last of them
		h.last = h.time(i - 1)
	}
	h.entries = entries
	return h, true
}
