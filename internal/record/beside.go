package record

import "time"

// Beside is what a decision in a record of one process has to respect besides that record: its
// share of the limit, and the same record elsewhere, which may have other hits.
type Beside struct {
	Max  int    // hits that the record of the process may hold
	Seen []byte // the other record, as it is stored; empty: none was seen
}

// awaited is when a call is to come again that is larger than the share, and so blocked until the
// other record can be asked again.
const awaited = time.Second

// DecideBeside is [Verdict.Decide] on r, a record of one process. A call needs room in r for the
// share, and room in both records together for all of limit. A ban of either holds.
//
// The other record stays as it is. Who sets a ban by it has to forget it, or else its hits count
// again when the ban ends.
func (v *Verdict) DecideBeside(now Instant, limit *Limit, l Lockout, r *Record, count bool, of *Beside) (store bool) {
	return v.decide(now, limit, l, r, count, newPair(now, limit, of))
}

// lookBeside sets the Outcome of s to what r and the record beside it hold, as one is decided.
func (s *Settlement) lookBeside(now Instant, one *Limit, r Record) {
	p := newPair(now, one, s.Beside)
	var v Verdict
	v.decide(now, one, Lockout{}, &r, false, p)
	if s.Outcome = v.Outcome; !s.Outcome.Banned {
		s.Outcome.Blocked = p.exceeds()
	}
}

// lookBeside is [Verdict.look] for r and what p has besides.
func (v *Verdict) lookBeside(p *pair, r *Record, count bool) (store bool) {
	p.load(r)
	needed, room := p.limit.Needed(), p.room()
	fits := needed <= room
	call := p.own
	if call.Cost, call.Least = min(needed, call.Max), 0; fits {
		call.Cost = min(p.limit.Hits(), room)
	}
	if fits && count && call.Algorithm == Bucket {
		r.bucket.enter(p.now, &call)
		r.bucket.join(p.others, p.now, &p.limit, &call)
	}
	store = v.look(p.now, &call, r, fits && count)
	p.own.ID = 0 // its lease counts from now on
	p.load(r)
	o := &v.Outcome
	o.Blocked, o.Remaining, o.ResetAfter, o.RetryAfter = !fits, p.room(), p.reset(), 0
	if v.Again = p.again(); !fits {
		o.RetryAfter = v.Again
	} else if o.Remaining == 0 {
		o.RetryAfter = p.fits(1)
	}
	return store
}

// A pair is a record of one process, and the same one elsewhere.
type pair struct {
	now        Instant
	limit, own Limit // of both together, and of the first alone
	seen       Record

	// What the two hold at now.
	mine, theirs   load   // of a limit that is no bucket
	bucket, others bucket // of one that is
}

func newPair(now Instant, limit *Limit, of *Beside) *pair {
	p := &pair{now: now, limit: *limit, own: limit.WithMax(of.Max)}
	p.seen, _ = Decode(of.Seen) // of a later version: as if it was not seen
	return p
}

// ban returns which ban there is beside b, that of the process's record: the one that ends last.
// Another one than b is not corrected in r. What the ban of the other record has kept does not
// count.
func (p *pair) ban(b ban, corrected bool) (ban, bool) {
	if theirs, _ := p.seen.ban.at(p.now); theirs.end > b.end {
		theirs.repeats = max(theirs.repeats, b.repeats)
		theirs.set, theirs.before = 0, 0 // it keeps nothing of the process's record
		b, corrected = theirs, false
	}
	if p.seen.ban.set != 0 {
		p.seen = p.seen.replaced(ban{})
	}
	return b, corrected
}

// load notes what r and the other record hold.
func (p *pair) load(r *Record) {
	if p.limit.Algorithm == Bucket {
		p.bucket, p.others = r.bucket, p.seen.bucket
		p.bucket.enter(p.now, &p.own)
		p.others.enter(p.now, &p.limit)
		return
	}
	p.mine, p.theirs = r.load(p.now, &p.own), p.seen.load(p.now, &p.limit)
}

// room returns for how many hits there is room.
func (p *pair) room() int {
	if brim := p.now.Add(p.limit.TTL); p.limit.Algorithm == Bucket {
		return int(min(p.bucket.room(brim), p.others.room(brim)))
	}
	mine := p.mine.hits()
	return int(max(min(int64(p.own.Max)-mine, int64(p.limit.Max)-mine-p.theirs.hits()), 0))
}

// exceeds reports whether there are more hits than the two limits allow.
func (p *pair) exceeds() bool {
	if brim := p.now.Add(p.limit.TTL); p.limit.Algorithm == Bucket {
		return max(p.bucket.score.up(), p.others.score.up()) > brim
	}
	mine := p.mine.hits()
	return mine > int64(p.own.Max) || mine+p.theirs.hits() > int64(p.limit.Max)
}

// again returns how long it is until a call fits. One that never fits into the share comes again
// when it fits without that, or a little later.
func (p *pair) again() time.Duration {
	needed := p.limit.Needed()
	if needed <= p.own.Max {
		return p.fits(needed)
	}
	if brim := p.now.Add(p.limit.TTL); p.limit.Algorithm == Bucket {
		return max(p.others.untilFits(p.limit.amount(needed), brim), awaited)
	}
	return max(untilFits(needed, p.limit.Max, p.now, p.mine, p.theirs), awaited)
}

// fits returns how long it is until so many hits fit, which are no more than the share.
func (p *pair) fits(hits int) time.Duration {
	if brim := p.now.Add(p.limit.TTL); p.limit.Algorithm == Bucket {
		return max(p.bucket.untilFits(p.own.amount(hits), brim), p.others.untilFits(p.limit.amount(hits), brim))
	}
	return max(untilFits(hits, p.own.Max, p.now, p.mine, nil), untilFits(hits, p.limit.Max, p.now, p.mine, p.theirs))
}

// reset returns how long it is until there are no hits.
func (p *pair) reset() time.Duration {
	if p.limit.Algorithm == Bucket {
		return max(p.bucket.score.up(), p.others.score.up()).Since(p.now)
	}
	return max(p.mine.end(), p.theirs.end()).Since(p.now)
}

// load returns what r holds at now by limit, which is no bucket, without the lease of limit's ID.
func (r Record) load(now Instant, limit *Limit) (l load) {
	switch limit.Algorithm {
	case Leases:
		r.leases.remove(limit.ID)
		return r.leases.load(now)
	case Calendar:
		r.calendar.enter(now, limit)
		return l.with(now, r.calendar.end, int64(r.calendar.count))
	}
	h := &r.hits
	h.expire(now)
	h.merge()
	latest := h.latest(now, now.Add(limit.TTL).Add(h.ahead(limit)))
	for until, n := range h.all {
		l = l.with(now, min(until, latest), int64(n))
	}
	return l
}

// WithMax returns l with another Max.
func (l Limit) WithMax(n int) Limit {
	l.Max, l.interval = n, amount{}
	l.Prepare()
	return l
}

// join raises b, which is of own, to what other, which is of limit, holds at now beyond the hits
// that limit allows and own does not. The hits of own's call fit in both. The two may have hits in
// common: the fuller one stands.
//
// From then on what other held leaks at the rate of own, which is no faster. So if limit has
// room, b is no fuller than other is beyond those hits, and both together never hold more than
// limit allows.
func (b *bucket) join(other bucket, now Instant, limit, own *Limit) {
	beyond := limit.amount(limit.Max - own.Max)
	held := amount{whole: max(other.score.whole-now, 0), parts: other.score.parts}
	if !beyond.less(held) {
		return
	}
	filled := bucket{at: now, rate: rate{limit.amount(own.Max).up(), uint64(own.Max)}}
	filled.score = amount{whole: now.Add(time.Duration(other.rate.minus(held, beyond).up()))}
	filled.convert(own.rate())
	most := own.rate().minus(amount{whole: now.Add(own.TTL)}, own.amount(own.Hits())) // but for rounding
	if filled.score.less(most) {
		most = filled.score
	}
	if b.score.less(most) {
		b.score, b.at = most, max(b.at, now)
	}
}
