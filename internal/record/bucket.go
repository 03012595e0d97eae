package record

import (
	"math"
	"time"
)

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
// S and I are kept to a Max-th of a nanosecond, so that Max times I is TTL: seven hits in five
// seconds leak in exactly that. Above a Max of 2^32 they are kept to 2^-32 ns, and I is rounded
// up to that.
//
// # Clocks
//
// A score is never lowered because it is far ahead of a caller's clock. A caller whose clock
// is behind would else open the bucket, each time that it is refused, to those whose clocks
// are ahead. So if clocks differ by d, no more than Max + (T+d)/I hits are authorized in any
// time T. Only a score further ahead than now + TTL + maxAhead is one of a clock that is wrong,
// and is cut to now+TTL. So nobody is locked out for longer than maxAhead by it.
//
// A debt stands: the score that a settlement has made beyond now+TTL. It is stored beside the
// score, see [extra.debt], so that one is told from the other.
//
// # A changed rate
//
// The interval that the hits were poured in at is stored too. A caller with another one
// changes the score so that as many hits are in the bucket: ten that have filled it fill ten
// of its new places. So a lower rate grants no burst, and a higher one holds at once.
// Receipts from before are refused then, as after a reset.
//
// The algorithm is the one of ATM's virtual scheduling (ITU-T I.371), known as
// simple cooldown where the score is kept in Redis.
//
// The zero bucket is empty.
type bucket struct {
	score   Instant
	part    uint32  // of a nanosecond, beyond the score: see [Limit.parts]
	rate    float32 // the interval in ns; 0: not known
	cancels uint16  // goes up as hits are taken back from before others, see without
}

// maxAhead returns how much further ahead than now+TTL a score may be.
func (l *Limit) maxAhead() time.Duration { return max(l.TTL, time.Minute) }

// A span is a time, or the distance between two, in nanoseconds and parts of one. How many
// parts are a whole one, [Limit.parts] says.
type span struct {
	Instant
	part uint32
}

// parts are how many parts a nanosecond has.
type parts uint64

func (p parts) plus(a, b span) span {
	sum, part := a.Instant+b.Instant, parts(a.part)+parts(b.part)
	if part >= p {
		return span{sum + 1, uint32(part - p)}
	}
	return span{sum, uint32(part)}
}

func (p parts) minus(a, b span) span {
	rest := a.Instant - b.Instant
	if a.part < b.part {
		return span{rest - 1, uint32(parts(a.part) + p - parts(b.part))}
	}
	return span{rest, a.part - b.part}
}

func (a span) less(b span) bool {
	return a.Instant < b.Instant || a.Instant == b.Instant && a.part < b.part
}

// up returns a, rounded up.
func (a span) up() Instant {
	if a.part > 0 {
		return a.Instant + 1
	}
	return a.Instant
}

func (b *bucket) time() span { return span{b.score, b.part} }

func (b *bucket) setTime(t span) { b.score, b.part = t.Instant, t.part }

// A Share is what one call pours into a bucket. The zero Share is no call's.
type Share struct {
	at      Instant // when it was counted
	until   Instant // the score that it made, rounded down
	amount  span    // how long it takes to leak
	parts   parts   // of amount
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
		amount:  limit.amount(cost),
		parts:   limit.parts(),
		grain:   limit.amount(hitsInGrain).up(),
		weight:  uint16(min((cost-1)/hitsInGrain, most) + 1), // more than most counts as that
		most:    uint16(most),
		cancels: b.cancels,
	}
}

// lookAtBucket decides a call at now on the bucket of r, and reports whether r must be stored.
func (v *Verdict) lookAtBucket(now Instant, limit *Limit, r *Record, count bool) (store bool) {
	changed := r.openBucket(now, limit)
	store, v.Again = r.bucket.decide(now, limit, count, &v.Outcome)
	if cost := v.Outcome.Cost; cost > 0 {
		v.Hit = Hit{Cost: cost, Share: r.bucket.share(now, limit, cost)}
	}
	return store || changed && v.Outcome.Blocked
}

// decide decides a call at now on b, which is open. It sets o, which is zero, and returns
// whether b must be stored, and the time until there is room for the same call.
func (b *bucket) decide(now Instant, limit *Limit, count bool, o *Outcome) (store bool, again time.Duration) {
	p, needed := limit.parts(), limit.amount(limit.Needed())
	room := p.minus(p.plus(span{Instant: now}, limit.bucketSize()), b.time())
	switch {
	case room.less(needed):
		o.Blocked = true
	case count:
		cost := limit.Hits()
		if limit.Least > 0 {
			cost = min(cost, limit.fit(room))
		}
		o.Cost = cost
		taken := limit.amount(cost)
		b.setTime(p.plus(b.time(), taken))
		room = p.minus(room, taken)
		store = true
	}
	again = p.minus(needed, room).up().Since(0)
	o.RetryAfter = again
	if !o.Blocked {
		o.RetryAfter = p.minus(limit.exact(), room).up().Since(0)
	}
	o.Remaining = limit.fit(room)
	o.ResetAfter = b.time().up().Since(now)
	return store, again
}

// openBucket makes the bucket of r, from which what has leaked at now was removed, one that a
// call of limit is decided on. It reports whether that has changed how many hits it holds, or
// how fast they leak.
func (r *Record) openBucket(now Instant, limit *Limit) (changed bool) {
	debt := r.extras().debt
	owed, changed := r.bucket.open(now, limit, debt)
	if owed != debt {
		r.setDebt(owed)
	}
	return changed
}

// open is [Record.openBucket] of a bucket that owes debt. owed is what it owes then: a debt
// that ends by now+TTL is none, since a bucket holds that much without it.
func (b *bucket) open(now Instant, limit *Limit, debt Instant) (owed Instant, changed bool) {
	rate := limit.rate()
	if b.score == 0 {
		*b = bucket{score: now, rate: rate, cancels: nonce(now)}
		return 0, false
	}
	if b.rate != rate && b.rate != 0 {
		factor := limit.float(limit.exact()) / float64(b.rate)
		b.setTime(span{Instant: now.stretch(b.score, factor)})
		debt = now.stretch(debt, factor)
		b.cancels += strange
		changed = true
	}
	b.rate = rate
	if parts(b.part) >= limit.parts() { // of another Max with the same rate
		b.setTime(span{Instant: b.score + 1})
	}
	brim := now + limit.bucketSize().Instant
	if debt > brim {
		owed = debt
	}
	if most := max(brim, owed); b.score > max(brim.Add(limit.maxAhead()), owed) {
		b.setTime(span{Instant: most})
		changed = true
	}
	if b.score < now {
		b.setTime(span{Instant: now})
	}
	return owed, changed
}

// stretch returns t with its distance to i multiplied by factor, rounded up. Earlier times stay.
func (i Instant) stretch(t Instant, factor float64) Instant {
	if t <= i {
		return t
	}
	return i.Add(time.Duration(min(math.Ceil(float64(t-i)*factor), 1<<62)))
}

// expire empties b if all has leaked at now.
func (b *bucket) expire(now Instant) {
	if b.time().up() <= now {
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
//
// It is known to the nanosecond how much has leaked. Where nothing has, all of the part is
// given back, and else whole nanoseconds of it.
func (b bucket) withoutPart(s Share, part span, now Instant) (next bucket, rest Share, found bool) {
	moved := b.cancels - s.cancels
	earliest := s.movedBy(moved)
	if moved > s.most || b.score < earliest {
		return b, Share{}, false
	}
	if s.amount.less(part) {
		part = s.amount
	}
	onTop := moved == 0 && b.score == s.until
	unleaked := max(earliest, s.at+s.amount.Instant) - now
	left := span{Instant: min(part.Instant, unleaked, b.score-now)}
	if left.Instant <= 0 {
		return b, Share{}, false
	}
	if left.Instant == part.Instant && (onTop && !s.parts.minus(b.time(), part).less(span{Instant: now}) || earliest-now > part.Instant) {
		left = part
	}
	rest = s
	rest.amount = s.parts.minus(s.amount, left)
	rest.until -= left.up()
	if !onTop {
		weight := s.weight
		if part.less(s.amount) {
			weight = uint16(min((left.up()-1)/max(s.grain, 1), Instant(s.most)) + 1)
		}
		b.cancels += weight
		rest.cancels += weight // this one has not moved the rest
	}
	b.setTime(s.parts.minus(b.time(), left))
	if onTop {
		rest.until = b.score
	}
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
