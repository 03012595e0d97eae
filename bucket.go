package throttler

// A bucket is the leaky bucket of the generic cell rate algorithm: one time, its
// score S, at which everything that was poured in has leaked out again. With
//
//	I = TTL / Max
//
// the interval at which hits leak, a hit at now is
//
//	S' = max(S, now) + I
//
// It is refused, and changes nothing, if S' > now+TTL; otherwise S becomes S'.
// An empty bucket thus takes a burst of Max hits at once and then one every I.
// Over any time T no more than Max + T/I hits are authorized.
//
// I is rounded up to a whole nanosecond, and TTL above is then Max times I, so
// that a burst is exactly Max and the rate never more than Max/TTL.
//
// A score further ahead than now+TTL comes from a caller whose clock is ahead,
// or from a rule that has been changed. It counts as now+TTL, and is stored so
// when it blocks, or else it would for longer than TTL.
//
// The algorithm is the one of ATM's virtual scheduling (ITU-T I.371), known as
// simple cooldown where the score is kept in Redis.
//
// The zero bucket is empty.
type bucket struct {
	score   instant
	cancels uint16 // goes up as hits are taken back from before others, see without

	added share // of the hit that made it; not stored
}

// A share is what one hit puts into a bucket: it leaks when all that was there
// before has, in the interval that ends at until. The zero share is no hit's.
type share struct {
	until    instant
	interval instant
	cancels  uint16 // of the bucket, at the time
}

// look decides a call at now on the bucket b of c. It returns what it comes to,
// and the bucket as it is to be stored if store is set; otherwise it stays as it
// is. A hit is counted if there is room for one and count is set.
func (b bucket) look(now instant, c *Condition, count bool) (o Outcome, next bucket, store bool) {
	interval := (instant(c.TTL)-1)/instant(c.Max) + 1
	limit := now + interval*instant(c.Max)
	next = bucket{score: min(max(b.score, now), limit), cancels: b.cancels}
	if b.score == 0 {
		next.cancels = uint16(now) // so that shares of an earlier bucket do not fit
	}
	o = Outcome{Name: c.Name, Limit: c.Max}
	switch {
	case next.score+interval > limit:
		o.Blocked = true
		store = b.score > limit
	case count:
		next.score += interval
		next.added = share{until: next.score, interval: interval, cancels: next.cancels}
		store = true
	}
	o.Remaining = int((limit - next.score) / interval)
	o.RetryAfter = (next.score + interval).since(limit)
	o.ResetAfter = next.score.since(now)
	return o, next, store
}

// without returns b at now without what has not leaked yet of a share, and
// whether there is anything.
//
// The share leaks in an interval that ends at until, unless shares before it
// were taken back, which moves it forward. The bucket counts how often a share
// was taken back that was not the last one; each of them may have been before
// this one, by no more than its interval, and counts as if it had been. So what
// is given back is all that is left if the latest hits are taken back first, or
// the oldest, and otherwise rather too little than too much. (Unless the rule's
// interval was longer for the others, and was changed since, or the count has
// come round to where it was, after 65,536.)
func (b bucket) without(s share, now instant) (bucket, bool) {
	left := s.until - now
	moved := instant(b.cancels - s.cancels)
	if moved > 0 {
		if s.interval > left/moved {
			return b, false
		}
		left -= s.interval * moved
	}
	left = min(left, s.interval, b.score-now)
	if left <= 0 {
		return b, false
	}
	next := bucket{score: b.score - left, cancels: b.cancels}
	if moved > 0 || b.score != s.until {
		next.cancels++
	}
	return next, true
}
