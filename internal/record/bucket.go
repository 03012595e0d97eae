package record

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
// A call that costs several hits adds as many intervals, or none; one that makes do
// with less adds as many as fit.
// An empty bucket thus takes a burst of Max hits at once and then one every I.
// Over any time T no more than Max + T/I hits are authorized.
//
// I is rounded up to a whole nanosecond, and TTL above is then Max times I, so
// that a burst is exactly Max and the rate never more than Max/TTL.
//
// A score further ahead than now+TTL comes from a caller whose clock is ahead,
// or from a rule that has been changed. It counts as now+TTL, and is stored so
// when it blocks, or else it would for longer than TTL. Only a debt stands: the score
// that a settlement has made beyond now+TTL. It is stored beside the score, see
// [extra.debt], so that one is told from the other.
//
// The algorithm is the one of ATM's virtual scheduling (ITU-T I.371), known as
// simple cooldown where the score is kept in Redis.
//
// The zero bucket is empty.
type bucket struct {
	score   Instant
	cancels uint16 // goes up as hits are taken back from before others, see without
}

// A Share is what one call pours into a bucket. The zero Share is no call's.
type Share struct {
	at      Instant // when it was counted
	until   Instant // the score that it made
	amount  Instant // how long it takes to leak
	grain   Instant // the most that a share taken back moves others by for each that cancels goes up
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

// share returns the share of cost hits of limit, counted at now, that left b so.
func (b bucket) share(now Instant, limit *Limit, cost int) Share {
	hitsInGrain := (limit.Max-1)/maxMoved + 1
	most := max(min(limit.Max, maxMoved/2)*2, minMoved)
	return Share{
		at:      now,
		until:   b.score,
		amount:  limit.Interval() * Instant(cost),
		grain:   limit.Interval() * Instant(hitsInGrain),
		weight:  uint16(min((cost-1)/hitsInGrain, most) + 1), // more than most counts as that
		most:    uint16(most),
		cancels: b.cancels,
	}
}

// lookAtBucket decides a call at now on b, which owes debt, and reports whether b must be
// stored.
func (v *Verdict) lookAtBucket(now Instant, limit *Limit, b *bucket, debt Instant, count bool) (store bool) {
	store, v.Again = b.decide(now, limit, debt, count, &v.Outcome)
	if cost := v.Outcome.Cost; cost > 0 {
		v.Hit = Hit{Cost: cost, Share: b.share(now, limit, cost)}
	}
	return store
}

// decide decides a call at now on b, which owes debt. It sets o, which is zero, and returns
// whether b must be stored, and the time until there is room for the same call.
func (b *bucket) decide(now Instant, limit *Limit, debt Instant, count bool, o *Outcome) (store bool, again time.Duration) {
	interval := limit.Interval()
	brim, needed := now+interval*Instant(limit.Max), interval*Instant(limit.Needed())
	tooFull := b.score > max(brim, debt)
	b.open(now, max(brim, debt))
	switch {
	case needed > brim-b.score:
		o.Blocked = true
		store = tooFull
	case count:
		cost := limit.Hits()
		if limit.Least > 0 {
			cost = min(cost, int((brim-b.score)/interval))
		}
		o.Cost = cost
		b.score += interval * Instant(cost)
		store = true
	}
	room := brim - b.score
	again = needed.Since(room)
	o.RetryAfter = again
	if !o.Blocked {
		o.RetryAfter = interval.Since(room)
	}
	o.Remaining = int(max(room, 0) / interval)
	o.ResetAfter = b.score.Since(now)
	return store, again
}

// open has b be at now, with a score of most at most.
func (b *bucket) open(now, most Instant) {
	if b.score == 0 {
		b.cancels = nonce(now)
	}
	b.score = min(max(b.score, now), most)
}

// expire empties b if all has leaked at now.
func (b *bucket) expire(now Instant) {
	if b.score <= now {
		*b = bucket{}
	}
}

// nonce returns where cancels of a new bucket begins: far from where that of an
// earlier bucket was, most probably, so that no share of it is found in this one.
func nonce(now Instant) uint16 {
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
// true, and that much is taken back. The package comment has the proof that it is never
// too much, and why a record of this size allows no more.
//
// A bucket whose score is lower than all that was taken back explains, or from
// which more was taken back than there may have been, is another one: the share's
// was reset or expired.
func (b bucket) without(s Share, now Instant) (next bucket, found bool) {
	next, _, found = b.withoutPart(s, s.amount, now)
	return next, found
}

// withoutPart returns b at now without what has not leaked yet of the last part of a
// share, what then is left of the share, and whether there was anything.
func (b bucket) withoutPart(s Share, part, now Instant) (next bucket, rest Share, found bool) {
	moved := b.cancels - s.cancels
	earliest := s.movedBy(moved)
	if moved > s.most || b.score < earliest {
		return b, Share{}, false
	}
	left := min(part, max(earliest, s.at+s.amount)-now, s.amount, b.score-now)
	if left <= 0 {
		return b, Share{}, false
	}
	rest = s
	if moved > 0 || b.score != s.until {
		weight := s.weight
		if part < s.amount {
			weight = uint16(min((left-1)/max(s.grain, 1), Instant(s.most)) + 1)
		}
		b.cancels += weight
		rest.cancels += weight // this one has not moved the rest
	}
	b.score -= left
	rest.until -= left
	rest.amount -= left
	return b, rest, true
}

// movedBy returns when s has leaked at the earliest, if so many grains were taken
// back since it was counted.
func (s Share) movedBy(grains uint16) Instant {
	if grains > 0 && s.grain > s.until/Instant(grains) {
		return 0
	}
	return s.until - s.grain*Instant(grains)
}
