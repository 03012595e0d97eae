package throttler

import "math"

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
	cancels uint16 // how many hits were taken back since it was last empty, up to maxCancels

	added share // of the hit that made it; not stored
}

// maxCancels is the most that a bucket counts.
const maxCancels = math.MaxUint16

// A share is what one hit puts into a bucket: it leaks when all that was there
// before has, in the interval that ends at until. The zero share is no hit's.
type share struct {
	from     instant // when it was counted
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
	next = bucket{score: min(max(b.score, now), limit)}
	if b.score > now {
		next.cancels = b.cancels
	}
	o = Outcome{Name: c.Name, Limit: c.Max}
	switch {
	case next.score+interval > limit:
		o.Blocked = true
		store = b.score > limit
	case count:
		next.score += interval
		next.added = share{from: now, until: next.score, interval: interval, cancels: next.cancels}
		store = true
	}
	o.Remaining = int((limit - next.score) / interval)
	o.RetryAfter = (next.score + interval).since(limit)
	o.ResetAfter = next.score.since(now)
	return o, next, store
}

// without returns b at now without what is left of a share, and whether
// anything is known to be. That is the larger of two amounts, neither of which
// is ever too much:
//
//   - What has not leaked yet of the share, which leaks last of all that was
//     there when it was counted. Each hit that was taken back since may have
//     moved it forward by an interval, and counts as if it had.
//   - The interval less the time that has passed since it was counted: more
//     than that a bucket without the share cannot have stood empty.
func (b bucket) without(s share, now instant) (bucket, bool) {
	if b.cancels < s.cancels {
		return b, false // it is not the bucket that the share is in
	}
	left := s.from + s.interval - now
	if b.cancels < maxCancels { // or else nobody knows how many
		moved := s.interval * instant(b.cancels-s.cancels)
		left = max(left, s.until-moved-now)
	}
	left = min(left, s.interval, b.score-now)
	if left <= 0 {
		return b, false
	}
	return bucket{score: b.score - left, cancels: min(b.cancels, maxCancels-1) + 1}, true
}
