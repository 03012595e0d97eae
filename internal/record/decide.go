package record

import "time"

// An Outcome is the answer of one limit to one call.
type Outcome struct {
	Blocked    bool          // it is full or banned
	Banned     bool          // a ban holds
	NewBan     bool          // this call has set it
	Cost       int           // hits that the call has counted
	Remaining  int           // hits for which there is room after the call
	RetryAfter time.Duration // until it takes another hit, or the hits of the call if it blocked
	ResetAfter time.Duration // until it holds no hit and no ban
}

// A Verdict is what one limit makes of one call.
type Verdict struct {
	Outcome Outcome

	// Again is the time until there is room for the same call, with all hits that it
	// needs, if nothing else is counted. It equals Outcome.RetryAfter if that is one
	// hit or the call was blocked.
	Again time.Duration

	Hit Hit // what was counted
}

// Decide sets v to the verdict on one call at now, by the record r. If count is set and
// the hits that the call needs fit, it counts them and, up to its cost, those that fit
// besides.
//
// It changes r in place, and reports whether r must be stored. If it must not, the stored
// record stays as it is, and r is of no further use.
func (v *Verdict) Decide(now Instant, limit *Limit, l Lockout, r *Record, count bool) (store bool) {
	return v.decide(now, limit, l, r, count, nil)
}

// decide is Decide or, with a pair, DecideBeside.
func (v *Verdict) decide(now Instant, limit *Limit, l Lockout, r *Record, count bool, p *pair) (store bool) {
	v.Hit = Hit{}
	b, corrected := r.ban.at(now)
	if p != nil {
		b, corrected = p.ban(b, corrected)
	}
	if b.holds(now) {
		v.block(now, limit, r, b, p)
		r.ban = b
		return corrected
	}
	if l.Growth == 0 {
		b = ban{}
	}
	r.begin(b)
	full := limit // what r must be for a ban
	if p == nil {
		store = v.look(now, limit, r, count)
	} else {
		store = v.lookBeside(p, r, count)
		full = &p.own
	}
	if l.Length > 0 && v.bans(full, l) {
		b = l.ban(now, b)
		if l.KeepHits {
			*r = r.kept(b, now)
		} else {
			*r = r.replaced(b)
			if p != nil {
				p.seen = p.seen.replaced(ban{})
			}
		}
		v.block(now, limit, r, b, p)
		v.Outcome.NewBan, store = true, true
	}
	return store
}

// block makes v the verdict of b, the ban of r, which holds at now. Leases go on beside it, and
// may end later; so may what another record holds, which b does not replace.
func (v *Verdict) block(now Instant, limit *Limit, r *Record, b ban, p *pair) {
	v.Again = b.end.Since(now)
	reset := v.Again
	if limit.Algorithm == Leases {
		held := r.leases.load(now)
		v.Again = max(v.Again, untilFits(limit.Needed(), limit.Max, now, held, nil))
		reset = max(reset, held.end().Since(now))
	}
	if p != nil {
		left := *r
		left.begin(ban{})
		p.load(&left)
		v.Again, reset = max(v.Again, p.again()), max(reset, p.reset())
	}
	v.Outcome = Outcome{Blocked: true, Banned: true, RetryAfter: v.Again, ResetAfter: reset}
}

// look decides a call by the algorithm of the limit, and reports whether r must be
// stored. Hits of the other algorithms, as of another release of the same program, stay as
// they are.
func (v *Verdict) look(now Instant, limit *Limit, r *Record, count bool) (store bool) {
	v.Outcome = Outcome{}
	if limit.Algorithm == Bucket {
		store = v.lookAtBucket(now, limit, &r.bucket, count)
		own := r.bucket
		r.expire(now)
		r.bucket = own // empty at another rate
		return store
	}
	r.expire(now)
	switch limit.Algorithm {
	case Window:
		return v.lookAtWindow(now, limit, &r.hits, count)
	case Leases:
		return v.lookAtLeases(now, limit, &r.leases, count)
	default:
		return v.lookAtCalendar(now, limit, &r.calendar, count)
	}
}

// expire removes from r what has expired at now.
func (r *Record) expire(now Instant) {
	r.hits.expire(now)
	r.bucket.expire(now)
	r.calendar.expire(now)
	r.leases.expire(now)
}

// bans reports whether l bans for v: there is room for no hit at all, and not only
// because of the moment that a hit may leave in a bucket when it is given back.
func (v *Verdict) bans(limit *Limit, l Lockout) bool {
	if !v.Outcome.Blocked || v.Outcome.Remaining > 0 {
		return false
	}
	return !l.KeepHits || limit.Algorithm != Bucket || v.Again > limit.leftBehind()
}
