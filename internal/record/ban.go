package record

import (
	"cmp"
	"math"
	"time"
)

// LockoutMemory is how long after the end of a ban a further ban of the same value
// grows.
const LockoutMemory = 24 * time.Hour

// A ban blocks a condition's value until it ends. The call that finds the condition
// full sets it, in the record of the hits, which it replaces. So a writer that has
// read the hits before loses the race and finds the ban: a ban is set once, and no
// late write erases or prolongs it. The zero ban is none.
type ban struct {
	end     Instant // the first Instant at which it does not hold
	length  Instant // as it was set
	repeats int     // the number of bans in a row; 0 if bans do not grow
}

// maxRepeats is the largest ban.repeats.
const maxRepeats = 255

// holds reports whether b holds at now.
func (b ban) holds(now Instant) bool {
	return b.end > now
}

// forgotten returns when b no longer affects anything.
func (b ban) forgotten() Instant {
	if b.repeats == 0 {
		return b.end
	}
	return b.end.Add(LockoutMemory)
}

// at returns b at now, or the zero ban if b is forgotten. A ban that would hold for
// longer than its length was set by a clock that is ahead. It counts as set now, and
// corrected is true.
func (b ban) at(now Instant) (current ban, corrected bool) {
	if b.forgotten() <= now {
		return ban{}, false
	}
	if latest := now.Add(time.Duration(b.length)); b.end > latest {
		b.end = latest
		return b, true
	}
	return b, false
}

// A Lockout says how bans are set. The zero Lockout sets none.
type Lockout struct {
	Length  time.Duration // of a first ban
	Growth  float64       // multiplies each repeated ban; 0: all have the same length
	Longest time.Duration // the longest ban that growth makes

	// KeepHits has a ban keep the hits that it is set on, because they may be
	// given back: see Record.Withdrawn.
	KeepHits bool
}

// ban returns the ban to set at now. last is the ban before it, or zero.
func (l Lockout) ban(now Instant, last ban) ban {
	b := ban{end: now.Add(l.after(last.repeats))}
	b.length = b.end - now
	if l.Growth != 0 {
		b.repeats = min(last.repeats+1, maxRepeats)
	}
	return b
}

// after returns the length of a ban after that many repeats.
func (l Lockout) after(repeats int) time.Duration {
	if l.Growth == 0 {
		return l.Length
	}
	length := float64(l.Length) * math.Pow(l.Growth, float64(repeats))
	if length >= float64(l.Longest) { // even if it is infinite
		return l.Longest
	}
	return time.Duration(length)
}

// HoldsBan reports whether a ban of r holds at now.
func (r *Record) HoldsBan(now Instant) bool {
	return r.ban.holds(now)
}

// Banned returns r with a ban by hand from now on for d, unless a ban that ends no
// earlier holds. store says whether next must be stored. The number of bans in a row
// stays as it is.
func (r Record) Banned(now Instant, d time.Duration) (next Record, store bool) {
	b, corrected := r.ban.at(now)
	end := now.Add(d)
	if b.holds(now) && b.end >= end {
		// Without the hits that it may have kept: this ban must not be lifted.
		return r.replaced(b), corrected || !r.unlimited()
	}
	return r.replaced(ban{end: end, length: end - now, repeats: b.repeats}), true
}

// unlimited reports whether r has nothing that a ban replaces.
func (r Record) unlimited() bool {
	return r.hits.empty() && r.bucket.score == 0 && r.extras().calendar.end == 0
}

// replaced returns the record of b, a ban that is set on r. Leases stay: what is in flight
// goes on.
func (r Record) replaced(b ban) Record {
	next := Record{ban: b}
	next.setExtras(extra{leases: r.extras().leases})
	return next
}

// kept returns the record of b, a ban that is set because r is full, with the hits of r
// by the algorithm of limit beside it. These must not count after the ban, for older
// releases either. So they are stored with the times at which they were counted:
// then they have expired when the ban ends. If b is a repeated ban, the section of the
// other algorithm, which is free, holds the end of the one before it.
func (r Record) kept(limit *Limit, b ban) Record {
	next := r.replaced(b)
	switch limit.Algorithm {
	case Calendar:
		x := next.extras()
		x.calendar = r.extras().calendar
		x.calendar.end = max(b.end-b.length, 1)
		next.setExtras(x)
	case Bucket:
		score, debt := limit.parts().minus(r.bucket.time(), limit.bucketSize()), r.extras().debt
		if set := b.end - b.length; score.Instant >= set {
			score, debt = span{Instant: set}, max(debt, r.bucket.time().up()) // what is beyond its size is kept beside it
		}
		if score.Instant > 0 {
			next.bucket = r.bucket
			next.bucket.setTime(score)
			next.setDebt(debt)
		}
		if b.repeats > 1 {
			next.hits.add(1, r.ban.end, &Limit{Max: 1, TTL: 1})
		}
		return next
	default:
		next.hits = r.hits
		next.hits.toCounted(limit)
	}
	if b.repeats > 1 {
		next.bucket.score = r.ban.end
	}
	return next
}

// corrected returns r with b in place of its ban, which ended too late. The hits that it
// has kept stay, unless they would outlive b.
func (r Record) corrected(b ban) Record {
	if r.hits.end() > b.end || r.bucket.score > b.end || r.extras().calendar.end > b.end {
		return r.replaced(b)
	}
	r.ban = b
	return r
}

// unkept is the reverse of kept: it returns the record that the ban of r was set on. set
// is when that was. A release that did not store the end of the ban before it is taken to
// have set this one just then.
func (r Record) unkept(limit *Limit, set Instant) (full Record) {
	last, x := ban{end: set}, extra{leases: r.extras().leases}
	switch limit.Algorithm {
	case Calendar:
		if x.calendar = r.extras().calendar; x.calendar.end != 0 {
			x.calendar.end = limit.period().Around(x.calendar.start).End
		}
		last.end = cmp.Or(r.bucket.score, set)
	case Bucket:
		if r.bucket.score != 0 {
			x.debt = r.extras().debt
			full.bucket = r.bucket
			if full.bucket.setTime(limit.parts().plus(r.bucket.time(), limit.bucketSize())); full.bucket.score < x.debt {
				full.bucket.setTime(span{Instant: x.debt})
			}
		}
		last.end = cmp.Or(r.hits.end(), set)
	default:
		full.hits = r.hits
		full.hits.toExpiring()
		last.end = cmp.Or(r.bucket.score, set)
	}
	if r.ban.repeats > 1 {
		last.repeats = r.ban.repeats - 1
		full.ban = last
	}
	full.setExtras(x)
	return full
}

// Withdrawn returns r at now without the hits of h, which a call gives back because
// another condition refused it. store says whether that changes r. A ban that was set
// on those hits is lifted: without them there would have been room for one hit. The
// hits that it had replaced count again, and it does not count in repeats.
func (r Record) Withdrawn(h Hit, now Instant, limit *Limit) (next Record, store bool) {
	if b, _ := r.ban.at(now); !b.holds(now) || h.Kind == Leases {
		return r.Without(h, now)
	}
	set := max(r.ban.end-r.ban.length, r.hits.end(), r.bucket.score, r.extras().calendar.end) // even if corrected
	full, found := r.unkept(limit, set).Without(h, set)
	if !found {
		return r, false
	}
	one := *limit
	one.Cost, one.Least = 1, 0
	var v Verdict
	looked := full
	if v.look(set, &one, &looked, false); v.bans(&one, Lockout{KeepHits: true}) {
		return full.kept(limit, r.ban), true
	}
	full.expire(now)
	return full, true
}
