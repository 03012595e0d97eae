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
	score   int64  // in nanoseconds since the Unix epoch
	cancels uint16 // how many hits were taken back

	added share // of the hit that made it; not stored
}

// A share is what one hit puts into a bucket: it leaks when all that was there
// before has, in the interval that ends at until. The zero share is no hit's.
type share struct {
	until    int64  // in nanoseconds since the Unix epoch
	interval int64  // in nanoseconds
	cancels  uint16 // of the bucket, at the time
}

// look decides a call at now on the bucket b of c. It returns what it comes to,
// and the bucket as it is to be stored if store is set; otherwise it stays as it
// is. A hit is counted if there is room for one and count is set.
func (b bucket) look(now time.Time, c *Condition, count bool) (o Outcome, next bucket, store bool) {
	clock := now.UnixNano()
	interval := (int64(c.TTL)-1)/int64(c.Max) + 1
	limit := clock + interval*int64(c.Max)
	next = bucket{score: min(max(b.score, clock), limit), cancels: b.cancels}
	o = Outcome{Name: c.Name, Limit: c.Max}
	switch {
	case next.score+interval > limit:
		o.Blocked = true
		store = b.score > limit
	case count:
		next.score += interval
		next.added = share{until: next.score, interval: interval, cancels: b.cancels}
		store = true
	}
	o.Remaining = int((limit - next.score) / interval)
	o.RetryAfter = time.Duration(max(next.score+interval-limit, 0))
	o.ResetAfter = time.Duration(next.score - clock)
	return o, next, store
}

// without returns b at now without what is left of a share, and whether
// anything is. Each hit that was taken back since may have moved the share
// forward by an interval; it counts as if each had, so that rather too little
// is given back than too much.
func (b bucket) without(s share, now time.Time) (bucket, bool) {
	clock := now.UnixNano()
	moved := s.interval * int64(b.cancels-s.cancels)
	left := min(s.until-moved-clock, s.interval, b.score-clock)
	if left <= 0 {
		return b, false
	}
	return bucket{score: b.score - left, cancels: b.cancels + 1}, true
}

// end returns when b is empty.
func (b bucket) end() instant {
	return instant((b.score + int64(tick) - 1) / int64(tick))
}
