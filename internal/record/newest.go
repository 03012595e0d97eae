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
	switch limit.Algorithm {
	case Window:
		next.hits.expire(now)
		found = next.hits.removeNewest(n)
	case Bucket:
		next.bucket.expire(now)
		if next.bucket.score == 0 {
			return r, false
		}
		next.openBucket(now, limit)
		before := next.bucket.score
		next.bucket, found = next.bucket.withoutNewest(n, now, limit)
		next.repay(before - next.bucket.score)
	case Calendar:
		x := r.extras()
		found = x.calendar.removeNewest(n, now)
		next.setExtras(x)
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

// withoutNewest returns b at now without the n hits that were poured in last, and whether
// there was anything.
func (b bucket) withoutNewest(n int, now Instant, limit *Limit) (bucket, bool) {
	b.setTime(limit.parts().minus(b.time(), limit.amount(n)))
	b.cancels += strange
	b.expire(now)
	return b, true
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
