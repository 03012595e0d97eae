package throttler

import "time"

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

// A share is what one call pours into a bucket. The zero share is no call's.
type share struct {
	at      instant // when it was counted
	until   instant // the score that it made
	amount  instant // how long it takes to leak
	grain   instant // the most that a share taken back moves others by for each that cancels goes up
	weight  uint16  // by how much cancels goes up for this one
	most    uint16  // by how much cancels may have gone up, or else it counts as another bucket's
	cancels uint16  // of the bucket, at the time
}

const (
	// maxMoved is how many grains fill a large bucket, and the most of them
	// that may be taken back from before a share while it is still found.
	maxMoved = 1024

	// minMoved is that most in a small bucket.
	minMoved = 128
)

// share returns the share of a call of c, counted at now, that left b so.
func (b bucket) share(now instant, c *Condition) share {
	hitsInGrain := (c.Max-1)/maxMoved + 1
	return share{
		at:      now,
		until:   b.score,
		amount:  c.interval() * instant(c.cost()),
		grain:   c.interval() * instant(hitsInGrain),
		weight:  uint16((c.cost()-1)/hitsInGrain + 1),
		most:    uint16(max(min(c.Max, maxMoved/2)*2, minMoved)),
		cancels: b.cancels,
	}
}

// interval returns in how much time a hit leaks out of a bucket of c.
func (c *Condition) interval() instant {
	return (instant(c.TTL)-1)/instant(c.Max) + 1
}

// bucketSize returns how long a full bucket of c takes to leak empty.
func (c *Condition) bucketSize() instant {
	return c.interval() * instant(c.Max)
}

// leftBehind returns how much longer than it should a bucket of c may stay closed
// to a call of c because of hits that were given back, see without: what leaks in
// the time that a call takes, with a margin.
func (c *Condition) leftBehind() time.Duration {
	others := c.interval() * instant(c.cost()-1)
	return time.Duration(others + min(c.interval()/2, instant(time.Second)))
}

// lookAtBucket decides a call at now on the bucket of v.next.
func (v *verdict) lookAtBucket(now instant, c *Condition, count bool) {
	b, interval := &v.next.bucket, c.interval()
	limit, amount := now+interval*instant(c.Max), interval*instant(c.cost())
	tooFull := b.score > limit
	if b.score == 0 {
		b.cancels = nonce(now)
	}
	b.score = min(max(b.score, now), limit)
	switch {
	case amount > limit-b.score:
		v.outcome.Blocked = true
		v.store = tooFull
	case count:
		b.score += amount
		v.store = true
		v.hit = hit{cost: c.cost(), share: b.share(now, c)}
	}
	room := limit - b.score
	v.again = amount.since(room)
	v.outcome.RetryAfter = v.again
	if !v.outcome.Blocked {
		v.outcome.RetryAfter = interval.since(room)
	}
	v.outcome.Remaining = int(room / interval)
	v.outcome.ResetAfter = b.score.since(now)
}

// expire empties b if all has leaked at now.
func (b *bucket) expire(now instant) {
	if b.score <= now {
		*b = bucket{}
	}
}

// nonce returns where cancels of a new bucket begins: far from where that of an
// earlier bucket was, most probably, so that no share of it is found in this one.
func nonce(now instant) uint16 {
	const golden = 0x9e3779b97f4a7c15 // 1<<64 over the golden ratio: spreads what differs little
	return uint16(uint64(now) * golden >> 48)
}

// without returns b at now without what surely has not leaked yet of a share, and
// whether there is anything.
//
// A share leaks last of all that was there when it was counted, in the time that
// ends at until. Shares before it that are taken back move it forward. How many
// there were is not known, but cancels counts all that were taken back and were
// not the last ones: by a grain for each of these at most. Nor can it have leaked
// by more than the time since it was counted. Whichever of the two leaves more is
// true, and that much is taken back. docs/refunds.md has the proof that it is never
// too much, and why a record of this size allows no more.
//
// A bucket whose score is lower than all that was taken back explains, or from
// which more was taken back than there may have been, is another one: the share's
// was reset or expired.
func (b bucket) without(s share, now instant) (bucket, bool) {
	moved := b.cancels - s.cancels
	earliest := s.movedBy(moved)
	if moved > s.most || b.score < earliest {
		return b, false
	}
	left := min(max(earliest, s.at+s.amount)-now, s.amount, b.score-now)
	if left <= 0 {
		return b, false
	}
	if moved > 0 || b.score != s.until {
		b.cancels += s.weight
	}
	b.score -= left
	return b, true
}

// movedBy returns when s has leaked at the earliest, if so many grains were taken
// back since it was counted.
func (s share) movedBy(grains uint16) instant {
	if grains > 0 && s.grain > s.until/instant(grains) {
		return 0
	}
	return s.until - s.grain*instant(grains)
}
