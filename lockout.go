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

// A ban blocks a condition's value until it ends, whatever happens in the
// meantime. It is set by the call that finds the condition full, in the same
// record as the hits, which it replaces: a writer that has read the hits before
// the ban was set loses the race for the record, reads again and finds the ban.
// So a ban is set once, and no late write erases or prolongs it.
//
// The zero ban is none.
type ban struct {
	end     instant // when it ends, the first instant that it does not hold
	length  instant // how long it was when it was set
	repeats int     // how many bans in a row this is, where they grow; otherwise 0
}

// maxRepeats is the most that are counted.
const maxRepeats = 255

// holds reports whether b holds at now.
func (b ban) holds(now instant) bool {
	return b.end > now
}

// forgotten returns when nothing of b matters any more.
func (b ban) forgotten() instant {
	if b.repeats == 0 {
		return b.end
	}
	return b.end.add(LockoutMemory)
}

// at returns b as it stands at now: none once it is forgotten. A ban that would
// hold for longer than its length was set by a caller whose clock is ahead, and
// counts as if it were set now; corrected says so.
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

// outcome returns what a call at now comes to while b holds.
func (b ban) outcome(now instant, c *Condition) Outcome {
	wait := b.end.since(now)
	return Outcome{Name: c.Name, Limit: c.Max, Blocked: true, Banned: true, RetryAfter: wait, ResetAfter: wait}
}

// A lockout says how bans are set. With the zero lockout there are none.
type lockout struct {
	length  time.Duration // of a first ban
	growth  float64       // multiplies each repeated ban; 0: all are alike
	longest time.Duration // where growth ends

	// keepHits says that hits may be given back after another call has found
	// them filling the condition: a ban keeps those that it is set on, see
	// record.withdrawn.
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

// ban returns the ban to set at now, after the last one, if that is not
// forgotten.
func (l lockout) ban(now instant, last ban) ban {
	b := ban{end: now.add(l.after(last.repeats))}
	b.length = b.end - now
	if l.growth != 0 {
		b.repeats = min(last.repeats+1, maxRepeats)
	}
	return b
}

// after returns the length of a ban that follows so many repeats.
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

// banned returns r with a ban by hand from now on for d, unless one that ends no
// earlier holds already; store says whether that is to be stored. How many bans
// in a row there were stays as it is.
func (r record) banned(now instant, d time.Duration) (next record, store bool) {
	b, corrected := r.ban.at(now)
	end := now.add(d)
	if b.holds(now) && b.end >= end {
		// Without the hits that it may have kept, so that it is not lifted.
		return record{ban: b}, corrected || !r.unlimited()
	}
	return record{ban: ban{end: end, length: end - now, repeats: b.repeats}}, true
}

// unlimited reports whether r holds nothing beside a ban.
func (r record) unlimited() bool {
	return r.hits.len() == 0 && r.bucket.score == 0
}

// kept returns the record of a ban that is set because r is full, with
// what fills r by the algorithm of c beside it.
//
// What is kept must not count when the ban is over, here or for releases that do
// not know of it. So it is stored as of the times of counting, which are all
// past, and not of expiry: it has expired whenever the ban has ended.
func (r record) kept(c *Condition, b ban) record {
	next := record{ban: b}
	if c.Algorithm == LeakyBucket {
		if score := r.bucket.score - c.bucketSize(); score > 0 {
			next.bucket = bucket{score: score, cancels: r.bucket.cancels}
		}
		return next
	}
	next.hits = r.hits.counted(c)
	return next
}

// unkept returns what the ban of r was set on, as kept was given it.
func (r record) unkept(c *Condition) record {
	full := record{hits: r.hits.expiring()}
	if r.bucket.score != 0 {
		full.bucket = bucket{score: r.bucket.score + c.bucketSize(), cancels: r.bucket.cancels}
	}
	return full
}

// withdrawn returns r at now without the hits of h, which a call has counted and
// gives back since it was refused by another condition; store says whether that
// changes r. A ban is lifted if it was set on those hits: if without them there
// would have been room for one hit more. The hits that it had replaced count
// again then, and it is no ban in a row.
func (r record) withdrawn(h hit, now instant, c *Condition) (next record, store bool) {
	if b, _ := r.ban.at(now); !b.holds(now) {
		return r.without(h, now)
	}
	set := r.ban.end - r.ban.length
	full, found := r.unkept(c).without(h, set)
	if !found {
		return r, false
	}
	one := *c
	one.Cost = 1
	if v := full.look(set, &one, false); v.bans(&one, lockout{keepHits: true}) {
		return full.kept(c, r.ban), true
	}
	full.hits, full.bucket = full.hits.after(now), full.bucket.after(now)
	if r.ban.repeats > 1 {
		full.ban = ban{end: set, repeats: r.ban.repeats - 1}
	}
	return full, true
}
