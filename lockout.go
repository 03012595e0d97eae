package throttler

import (
	"math"
	"time"
)

const (
	// DefaultMaxLockout is the default of [Rule.MaxLockout].
	DefaultMaxLockout = 24 * time.Hour

	// LockoutMemory is how long after the end of a ban a further ban of the
	// same value grows, with [Rule.LockoutGrowth].
	LockoutMemory = 24 * time.Hour
)

// A ban blocks a condition's value until it ends. The call that finds the condition
// full sets it, in the record of the hits, which it replaces. So a writer that has
// read the hits before loses the race and finds the ban: a ban is set once, and no
// late write erases or prolongs it. The zero ban is none.
type ban struct {
	end     instant // the first instant at which it does not hold
	length  instant // as it was set
	repeats int     // the number of bans in a row; 0 if bans do not grow
}

// maxRepeats is the largest ban.repeats.
const maxRepeats = 255

// holds reports whether b holds at now.
func (b ban) holds(now instant) bool {
	return b.end > now
}

// forgotten returns when b no longer affects anything.
func (b ban) forgotten() instant {
	if b.repeats == 0 {
		return b.end
	}
	return b.end.add(LockoutMemory)
}

// at returns b at now, or the zero ban if b is forgotten. A ban that would hold for
// longer than its length was set by a clock that is ahead. It counts as set now, and
// corrected is true.
func (b ban) at(now instant) (current ban, corrected bool) {
	if b.forgotten() <= now {
		return ban{}, false
	}
	if latest := now.add(time.Duration(b.length)); b.end > latest {
		b.end = latest
		return b, true
	}
	return b, false
}

// A lockout says how bans are set. The zero lockout sets none.
type lockout struct {
	length  time.Duration // of a first ban
	growth  float64       // multiplies each repeated ban; 0: all have the same length
	longest time.Duration // the longest ban that growth makes

	// keepHits has a ban keep the hits that it is set on, because they may be
	// given back: see record.withdrawn.
	keepHits bool
}

// lockout returns how r bans c.
func (r *Rule) lockout(c *Condition) lockout {
	l := lockout{length: r.Lockout, growth: r.LockoutGrowth, longest: r.MaxLockout}
	if c.Lockout != 0 {
		l.length = max(c.Lockout, 0)
	}
	if l.longest == 0 {
		l.longest = DefaultMaxLockout
	}
	l.longest = max(l.longest, l.length)
	l.keepHits = r.CountAuthorizedOnly && len(r.conditions()) > 1
	return l
}

// ban returns the ban to set at now. last is the ban before it, or zero.
func (l lockout) ban(now instant, last ban) ban {
	b := ban{end: now.add(l.after(last.repeats))}
	b.length = b.end - now
	if l.growth != 0 {
		b.repeats = min(last.repeats+1, maxRepeats)
	}
	return b
}

// after returns the length of a ban after that many repeats.
func (l lockout) after(repeats int) time.Duration {
	if l.growth == 0 {
		return l.length
	}
	length := float64(l.length) * math.Pow(l.growth, float64(repeats))
	if length >= float64(l.longest) { // even if it is infinite
		return l.longest
	}
	return time.Duration(length)
}

// banned returns r with a ban by hand from now on for d, unless a ban that ends no
// earlier holds. store says whether next must be stored. The number of bans in a row
// stays as it is.
func (r record) banned(now instant, d time.Duration) (next record, store bool) {
	b, corrected := r.ban.at(now)
	end := now.add(d)
	if b.holds(now) && b.end >= end {
		// Without the hits that it may have kept: this ban must not be lifted.
		return record{ban: b}, corrected || !r.unlimited()
	}
	return record{ban: ban{end: end, length: end - now, repeats: b.repeats}}, true
}

// unlimited reports whether r has no hits and no bucket.
func (r record) unlimited() bool {
	return r.hits.len() == 0 && r.bucket.score == 0
}

// kept returns the record of a ban that is set because r is full, with the hits of r
// by the algorithm of c beside it. These must not count after the ban, for older
// releases either. So they are stored with the times at which they were counted:
// then they have expired when the ban ends.
func (r record) kept(c *Condition, b ban) record {
	next := record{ban: b}
	if c.Algorithm == LeakyBucket {
		if score := r.bucket.score - c.bucketSize(); score > 0 {
			next.bucket = bucket{score: score, cancels: r.bucket.cancels}
		}
		return next
	}
	next.hits = r.hits
	next.hits.toCounted(c)
	return next
}

// corrected returns r with b in place of its ban, which ended too late. The hits that it
// has kept stay, unless they would outlive b.
func (r record) corrected(b ban) record {
	if r.hits.end() > b.end || r.bucket.score > b.end {
		return record{ban: b}
	}
	r.ban = b
	return r
}

// unkept returns the hits that the ban of r was set on: the reverse of kept.
func (r record) unkept(c *Condition) record {
	full := record{hits: r.hits}
	full.hits.toExpiring()
	if r.bucket.score != 0 {
		full.bucket = bucket{score: r.bucket.score + c.bucketSize(), cancels: r.bucket.cancels}
	}
	return full
}

// withdrawn returns r at now without the hits of h, which a call gives back because
// another condition refused it. store says whether that changes r. A ban that was set
// on those hits is lifted: without them there would have been room for one hit. The
// hits that it had replaced count again, and it does not count in repeats.
func (r record) withdrawn(h hit, now instant, c *Condition) (next record, store bool) {
	if b, _ := r.ban.at(now); !b.holds(now) {
		return r.without(h, now)
	}
	set := max(r.ban.end-r.ban.length, r.hits.end(), r.bucket.score) // even if corrected
	full, found := r.unkept(c).without(h, set)
	if !found {
		return r, false
	}
	one := *c
	one.Cost = 1
	v := verdict{next: full}
	if v.look(set, &one, false); v.bans(&one, lockout{keepHits: true}) {
		return full.kept(c, r.ban), true
	}
	full.hits.expire(now)
	full.bucket.expire(now)
	if r.ban.repeats > 1 {
		full.ban = ban{end: set, repeats: r.ban.repeats - 1}
	}
	return full, true
}
