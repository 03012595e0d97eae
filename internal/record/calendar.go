package record

// A calendar counts the hits of one period of a [Period]. A call is refused if its Cost
// and the hits of the period exceed Max together. When the next period begins, counting
// starts anew.
//
// Callers whose clocks differ pass from one period to the next at different moments.
// Periods never go back: a caller that finds the count of the next period adds to that,
// though its own clock is not there yet. So no two counts of one period are ever begun. A
// period further ahead than the next one is that of a wrong clock, and counts as none.
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
	c.enter(now, limit.period())
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

// enter makes c, which has not ended, the count of the period that a call at now belongs to.
func (c *calendar) enter(now Instant, p Period) {
	start, end := p.Around(now)
	if c.enterBetween(now, start, end) {
		c.start, c.end = p.Around(c.start)
	}
}

// enterBetween is enter for the period of now, from start to end. It reports whether c is
// the count of a later one, which stays.
func (c *calendar) enterBetween(now, start, end Instant) (later bool) {
	c.expire(now)
	if start < c.start && c.start <= end {
		return true
	}
	if c.start != start {
		*c = calendar{}
	}
	c.start, c.end = start, end
	return false
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
