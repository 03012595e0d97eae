package record

import (
	"math"
	"math/bits"
	"time"
)

// MaxBucketTTL is the longest TTL of a bucket.
const MaxBucketTTL = 100 * 365 * 24 * time.Hour

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
// Over any time T no more than Max + T/I hits are authorized, and that many if they come.
//
// I is exact: what it has beyond whole nanoseconds is counted in parts of one, of which there
// are Max.
//
// # Clocks
//
// S grows with each hit, and no call sets it back to its own clock: one whose clock is behind
// by d finds less room, and leaves S as it is. The n hits of callers whose clocks differ by d
// at most so move S from the first one's time to no later than d and TTL after the last
// one's: in any time T they are Max + (T+d)/I at most, however often each of them calls. Only a
// score later than now+TTL+max(TTL, a minute) is that of a wrong clock: it counts as now+TTL.
//
// The bucket has the latest of its callers' clocks, at. What it holds is S-at. So what depends
// on it is the same for all of them: how much a call that is taken back has leaked, and whether
// S owes more than TTL. Only a settlement makes it do so, and such a debt stands.
//
// # Rates
//
// A bucket has the rate that it was poured at. For a limit of another rate it is as full as it
// was: one that is full stays so. If the rate is lowered, that grants no burst.
//
// The algorithm is the one of ATM's virtual scheduling (ITU-T I.371), known as
// simple cooldown where the score is kept in Redis.
//
// The zero bucket is empty.
type bucket struct {
	score   amount // since the epoch
	at      Instant
	rate    rate   // of which are the parts of score
	cancels uint16 // goes up as hits are taken back from before others, see without
}

// A rate is that of a bucket: max hits leak in ttl.
type rate struct {
	ttl Instant
	max uint64
}

// An amount is a time in nanoseconds and parts of one, of which there are as many as the max
// of a rate. It never has a whole one of them.
type amount struct {
	whole Instant
	parts uint64
}

// amount returns how long so many hits take to leak.
func (r rate) amount(hits uint64) amount {
	hi, lo := bits.Mul64(hits, uint64(r.ttl))
	if hi >= r.max {
		return amount{whole: math.MaxInt64}
	}
	whole, parts := bits.Div64(hi, lo, r.max)
	if whole > math.MaxInt64 {
		return amount{whole: math.MaxInt64}
	}
	return amount{Instant(whole), parts}
}

// hits returns how many hits leak in so long.
func (r rate) hits(a amount, roundUp bool) uint64 {
	hi, lo := bits.Mul64(uint64(a.whole), r.max)
	lo, carry := bits.Add64(lo, a.parts, 0)
	if hi += carry; hi >= uint64(r.ttl) {
		return math.MaxInt64
	}
	hits, rest := bits.Div64(hi, lo, uint64(r.ttl))
	if rest > 0 && roundUp {
		hits++
	}
	return min(hits, math.MaxInt64)
}

// plus returns a+b.
func (r rate) plus(a, b amount) amount {
	a.whole = a.whole.Add(time.Duration(b.whole))
	if a.parts += b.parts; a.parts >= r.max {
		a.parts -= r.max
		a.whole = a.whole.Add(1)
	}
	return a
}

// minus returns a-b, which is not negative.
func (r rate) minus(a, b amount) amount {
	a.whole -= b.whole
	if a.parts < b.parts {
		a.parts += r.max
		a.whole--
	}
	a.parts -= b.parts
	return a
}

// less reports whether a is less than b, of the same rate.
func (a amount) less(b amount) bool {
	return a.whole < b.whole || a.whole == b.whole && a.parts < b.parts
}

// up returns a in whole nanoseconds, rounded up.
func (a amount) up() Instant {
	if a.parts > 0 {
		return a.whole.Add(1)
	}
	return a.whole
}

const (
	// maxMoved is how many grains fill a large bucket, and the most of them
	// that may be taken back from before a hit while it is still found.
	maxMoved = 1024

	// minMoved is that most in a small bucket.
	minMoved = 128
)

// grain returns how many hits raise cancels by one.
func (r rate) grain() uint64 { return (r.max-1)/maxMoved + 1 }

// most returns by how much cancels may have gone up, or else a hit counts as another bucket's.
func (r rate) most() uint64 { return max(min(r.max, maxMoved/2)*2, minMoved) }

// weight returns by how much cancels goes up for hits. More than most counts as one more.
func (r rate) weight(hits uint64) uint16 { return uint16(min((hits-1)/r.grain(), r.most()) + 1) }

// hit returns the hit of that cost that b has counted last.
func (b *bucket) hit(cost int) Hit {
	return Hit{
		Cost: cost, Kind: Bucket, Expiry: b.score.whole, At: b.at, TTL: b.rate.ttl, Max: b.rate.max, ID: uint64(b.cancels),
	}
}

// lookAtBucket decides a call at now on b, and reports whether b must be stored. It sets v, whose
// Outcome and Hit are zero.
func (v *Verdict) lookAtBucket(now Instant, limit *Limit, b *bucket, count bool) (store bool) {
	o, changed := &v.Outcome, b.enter(now, limit)
	brim, needed := now.Add(limit.TTL), uint64(limit.Needed())
	room := b.room(brim)
	switch {
	case room < needed:
		o.Blocked = true
		store = changed
	case count:
		cost := uint64(limit.Hits())
		if limit.Least > 0 || limit.Ahead > 0 {
			cost = min(cost, room)
		}
		if limit.Ahead > 0 && cost > needed {
			cost = b.ahead(now.Add(limit.Ahead), brim, needed, cost)
		}
		o.Cost = int(cost)
		b.score = b.rate.plus(b.score, limit.amount(o.Cost))
		b.at = max(b.at, limit.spent(now, o.Cost))
		v.Hit = b.hit(o.Cost)
		room = b.room(brim)
		store = true
	}
	v.Again = 0
	if room < needed {
		v.Again = b.untilFits(limit.amount(limit.Needed()), brim)
	}
	o.RetryAfter = v.Again
	if !o.Blocked && needed > 1 {
		o.RetryAfter = 0
		if room == 0 {
			o.RetryAfter = b.untilFits(limit.amount(1), brim)
		}
	}
	o.Remaining = int(room)
	o.ResetAfter = b.score.up().Since(now)
	return store
}

// ahead returns how many of cost hits, which are spent by late, fit. If they are more than
// needed, it has b be at late.
func (b *bucket) ahead(late, brim Instant, needed, cost uint64) uint64 {
	then := *b
	if then.score.whole < late {
		then.score = amount{whole: late}
	}
	if cost = min(cost, then.room(brim)); cost <= needed {
		return needed
	}
	*b = then
	return cost
}

// room returns how many hits fit below brim.
func (b *bucket) room(brim Instant) uint64 {
	if b.score.up() >= brim {
		return 0
	}
	return b.rate.hits(b.rate.minus(amount{whole: brim}, b.score), false)
}

// untilFits returns how long after now, of which brim is the brim, an amount more fits.
func (b *bucket) untilFits(more amount, brim Instant) time.Duration {
	return b.rate.plus(b.score, more).up().Since(brim)
}

// enter has b be at now with the rate of limit, and reports whether what is stored says
// something else.
func (b *bucket) enter(now Instant, limit *Limit) (changed bool) {
	if r := limit.rate(); b.rate != r && b.rate.ttl > 0 {
		b.at = max(b.at, now) // what has leaked until now leaked at the rate of then
		b.convert(r)
		changed = true
	}
	if b.at > now {
		changed = b.cut(now) || changed
	}
	if b.expire(now); b.rate.ttl == 0 {
		*b = bucket{score: amount{whole: now}, at: now, rate: limit.rate(), cancels: nonce(now)}
	}
	return changed
}

// cut sets b right at now if a clock has poured that is too far ahead, and reports whether it
// had to. A debt stays, from now on.
func (b *bucket) cut(now Instant) bool {
	ttl := time.Duration(b.rate.ttl)
	switch far := now.Add(farthest(ttl)); {
	case b.owes() && b.at > far:
		b.score.whole -= b.at - now
	case !b.owes() && b.score.up() > far.Add(ttl):
		b.score = amount{whole: now.Add(ttl)}
	default:
		return false
	}
	b.at = now
	return true
}

// owes reports whether a settlement has made the score later than a call may.
func (b *bucket) owes() bool { return b.score.up()-b.at > b.rate.ttl }

// convert has b be as full as it is at another rate.
func (b *bucket) convert(to rate) {
	hi, lo := bits.Mul64(uint64(max(b.score.up()-b.at, 0)), uint64(to.ttl))
	level := uint64(math.MaxInt64)
	if hi < uint64(b.rate.ttl) {
		level, lo = bits.Div64(hi, lo, uint64(b.rate.ttl))
		if lo > 0 {
			level++
		}
	}
	b.score = amount{whole: b.at.Add(time.Duration(min(level, math.MaxInt64)))}
	b.rate = to
}

// expire empties b if all has leaked at now.
func (b *bucket) expire(now Instant) {
	if b.score.up() <= now {
		*b = bucket{}
	}
}

// nonce returns where cancels of a new bucket begins: far from where that of an
// earlier bucket was, most probably, so that no hit of it is found in this one.
func nonce(now Instant) uint16 {
	const golden = 0x9e3779b97f4a7c15 // 1<<64 over the golden ratio: spreads what differs little
	return uint16(uint64(now) * golden >> 48)
}

// without returns b at now without what surely has not leaked yet of h, and whether there is
// anything.
//
// A hit leaks last of all that was there when it was counted, in the time that
// ends at its expiry. Hits before it that are taken back move it forward. How many
// there were is not known, but cancels counts all that were taken back and were
// not the last ones: by a grain for each of these at most. Nor can it have leaked
// by more than the time since it was counted. Whichever of the two leaves more is
// true, and that much is taken back. The package comment has the proof that it is never
// too much, and why a record of this size allows no more.
//
// A bucket whose score is lower than all that was taken back explains, or from
// which more was taken back than there may have been, is another one: the hit's
// was reset or expired. So is one of another rate.
func (b bucket) without(h Hit, now Instant) (next bucket, found bool) {
	next, _, found = b.withoutLast(h, h.Cost, now)
	return next, found
}

// withoutLast returns b at now without what has not leaked yet of the last n of the hits of h,
// what then is left of them, and whether there was anything.
func (b bucket) withoutLast(h Hit, n int, now Instant) (next bucket, rest Hit, found bool) {
	rest, last := h.Split(h.Cost - n)
	moved := b.cancels - uint16(h.ID)
	if b.rate != (rate{h.TTL, h.Max}) || uint64(moved) > b.rate.most() {
		return b, Hit{Cost: rest.Cost}, false
	}
	earliest := max(h.Expiry-b.rate.amount(uint64(moved)*b.rate.grain()).up(), 0)
	if b.score.whole < earliest {
		return b, Hit{Cost: rest.Cost}, false
	}
	now = max(now, b.at)
	newest := moved == 0 && b.score.whole == h.Expiry
	until := b.rate.plus(amount{whole: h.At}, b.rate.amount(uint64(h.Cost)))
	if bound := (amount{whole: earliest}); until.less(bound) {
		until = bound
	}
	if newest || b.score.less(until) {
		until = b.score
	}
	if until.up() <= now {
		return b, Hit{Cost: rest.Cost}, false
	}
	part, left := b.rate.amount(uint64(last.Cost)), b.rate.minus(until, amount{whole: now})
	if left.less(part) {
		part = left
	}
	b.score = b.rate.minus(b.score, part)
	if newest {
		rest.Expiry = b.score.whole
	} else {
		weight := b.rate.weight(b.rate.hits(part, true))
		b.cancels += weight
		rest.ID = uint64(uint16(rest.ID) + weight) // this one has not moved the rest
	}
	return b, rest, true
}
