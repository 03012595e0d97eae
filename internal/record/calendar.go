package record

// A calendar counts the hits of one period of a [Period]. A call is refused if its Cost
// and the hits of the period exceed Max together. When the next period begins, counting
// starts anew.
//
// Callers need not agree when periods begin: their clocks differ, and their zone data may,
// or their rules while those are changed. So a stored period that has not ended is counted in
// by all of them, and other bounds begin to hold at its end. A caller that finds the count of
// the next period adds to that, though its own clock is not there yet: periods never go back,
// and no two counts of one period are ever begun. A period further ahead than the next one is
// that of a wrong clock, and counts as none.
//
// The zero calendar has no period.
type calendar struct {
	start Instant // of the period
	end   Instant // of the period; the first instant that none of the hits counts at
	begun Instant // when its first hit was counted: tells it from one before a reset
	count uint64
}

// lookAtCalendar decides a call at now on c, and reports whether c must be stored.
func (v *Verdict) lookAtCalendar(now Instant, limit *Limit, c *calendar, count bool) (store bool) {
	c.enter(now, limit)
	return v.lookAtPeriod(now, limit, c, count)
}

// lookAtPeriod decides a call at now on c, which has the period that it belongs to.
func (v *Verdict) lookAtPeriod(now Instant, limit *Limit, c *calendar, count bool) (store bool) {
	most, needed := uint64(limit.Max), uint64(limit.Needed())
	left := most - min(c.count, most)
	switch {
	case needed > left:
		v.Outcome.Blocked = true
	case count:
		cost := min(uint64(limit.Hits()), left)
		v.Hit = c.add(int(cost), now)
		left -= cost
		v.Outcome.Cost = int(cost)
		store = true
	}
	rest := c.end.Since(now)
	v.Outcome.Remaining = int(left)
	if c.count > 0 {
		v.Outcome.ResetAfter = rest
	}
	if needed > left {
		v.Again = rest
	} else {
		v.Again = 0
	}
	if v.Outcome.Blocked || left == 0 {
		v.Outcome.RetryAfter = rest
	}
	return store
}

// enter makes c the count of the period that a call at now belongs to.
func (c *calendar) enter(now Instant, limit *Limit) {
	if !c.contains(now) {
		c.enterBetween(now, limit.bounds(now))
	}
}

// contains reports whether now is in the period of c.
func (c *calendar) contains(now Instant) bool { return c.start <= now && now < c.end }

// enterBetween is enter for a call that is in b by its own zone.
func (c *calendar) enterBetween(now Instant, b Bounds) {
	if later := now < c.start && c.start <= b.End; !later && !c.contains(now) {
		*c = calendar{start: b.Start, end: b.End}
	}
}

// add counts hits at now.
func (c *calendar) add(hits int, now Instant) Hit {
	if c.count == 0 {
		c.begun = now
	}
	c.count += uint64(hits)
	return Hit{Cost: hits, Expiry: c.end, Kind: Calendar, ID: uint64(c.begun)}
}

// expire empties c if its period has ended at now.
func (c *calendar) expire(now Instant) {
	if c.end <= now {
		*c = calendar{}
	}
}

// without returns c at now without the hits of h, and whether it had any of them.
func (c calendar) without(h Hit, now Instant) (calendar, bool) {
	c.expire(now)
	if c.count == 0 || uint64(c.begun) != h.ID {
		return c, false
	}
	c.count -= min(c.count, uint64(h.Cost)) // the period stays if it is empty: it must not go back
	return c, true
}
