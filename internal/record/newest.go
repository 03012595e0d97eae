package record

// WithoutNewest returns r at now without the newest n hits that limit counts, or without
// all of them if there are fewer, whoever counted them. found says whether there was one.
// Beside a ban no hit counts, and leases are known by their holders: these stay.
//
// A hit of a bucket or a calendar that was counted before is then no longer found by
// [Record.Without]: it may be one of those that are gone.
func (r Record) WithoutNewest(n int, now Instant, limit *Limit) (next Record, found bool) {
	if r.ban.holds(now) {
		return r, false
	}
	next = r
	next.begin(r.ban)
	switch limit.Algorithm {
	case Window:
		next.hits.expire(now)
		found = next.hits.removeNewest(n)
	case Bucket:
		found = next.bucket.removeNewest(n, now, limit)
	case Calendar:
		found = next.calendar.removeNewest(n, now)
	}
	if !found {
		return r, false
	}
	return next, true
}

// removeNewest removes the n hits that expire last, or all of them, and reports whether
// there was one.
func (h *hits) removeNewest(n int) (found bool) {
	if h.len() == 0 {
		return false
	}
	h.merge()
	h.cut(max(h.stored()-n, 0), h.stored())
	if h.len() == 0 {
		*h = hits{}
	}
	return true
}

// removeNewest removes the n hits that were poured into b last, or all of them, and reports
// whether there was anything.
func (b *bucket) removeNewest(n int, now Instant, limit *Limit) (found bool) {
	b.enter(now, limit)
	now = max(now, b.at)
	if b.score.up() <= now {
		return false
	}
	all := b.rate.minus(b.score, amount{whole: now})
	part := limit.amount(n)
	if !part.less(all) {
		*b = bucket{}
		return true
	}
	b.score = b.rate.minus(b.score, part)
	b.cancels += strange
	return true
}

// strange is added to the cancels of a bucket to make it another one to all shares that
// were poured in before, most probably, however often that happens: 1<<16 over the golden
// ratio.
const strange = 0x9e37

// removeNewest removes n hits from c, or all of them, and reports whether there was one.
func (c *calendar) removeNewest(n int, now Instant) (found bool) {
	c.expire(now)
	if c.count == 0 {
		return false
	}
	c.count -= min(c.count, uint64(n))
	c.begun = max(c.begun+1, now)
	return true
}
