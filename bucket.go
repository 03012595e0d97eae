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
// A call that costs several hits adds as many intervals, or none.
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
}

// A share is what one call pours into a bucket: it leaks when all that was there
// before has, in the time amount that ends at until. The zero share is no call's.
type share struct {
	at       instant // when it was counted
	until    instant // the score that it made
	interval instant // of one hit
	amount   instant // of all its hits
	cancels  uint16  // of the bucket, at the time
}

// interval returns in how much time a hit leaks out of a bucket of c.
func (c *Condition) interval() instant {
	return (instant(c.TTL)-1)/instant(c.Max) + 1
}

// bucketSize returns how long a full bucket of c takes to leak empty.
func (c *Condition) bucketSize() instant {
	return c.interval() * instant(c.Max)
}

// look decides a call at now on the bucket b of c. The bucket that it returns is
// in the record next.
func (b bucket) look(now instant, c *Condition, count bool) verdict {
	interval := c.interval()
	limit, amount := now+c.bucketSize(), interval*instant(c.cost())
	next := bucket{score: min(max(b.score, now), limit), cancels: b.cancels}
	if b.score == 0 {
		next.cancels = uint16(now) // so that shares of an earlier bucket do not fit
	}
	v := verdict{outcome: Outcome{Name: c.Name, Limit: c.Max}}
	switch {
	case amount > limit-next.score:
		v.outcome.Blocked = true
		v.store = b.score > limit
	case count:
		next.score += amount
		v.store = true
		v.hit = hit{cost: c.cost(), share: share{at: now, until: next.score, interval: interval, amount: amount, cancels: next.cancels}}
	}
	v.next.bucket = next
	room := limit - next.score
	v.again = amount.since(room)
	v.outcome.RetryAfter = v.again
	if !v.outcome.Blocked {
		v.outcome.RetryAfter = interval.since(room)
	}
	v.outcome.Remaining = int(room / interval)
	v.outcome.ResetAfter = next.score.since(now)
	return v
}

// after returns b as it stands at now: empty once all has leaked.
func (b bucket) after(now instant) bucket {
	if b.score <= now {
		return bucket{}
	}
	return b
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
	left = min(left, s.amount, b.score-now)
	if left <= 0 {
		return b, false
	}
	next := bucket{score: b.score - left, cancels: b.cancels}
	if moved > 0 || b.score != s.until {
		next.cancels++
	}
	return next, true
}
