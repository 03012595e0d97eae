package record

import (
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

	// A ban that keeps the hits that it was set on has them beside it in the record. They do
	// not count, and end with it, unless it is lifted: see [Record.Withdrawn].
	set    Instant // when that was; 0: no hits are kept
	before Instant // the end of the ban before it in the row; 0 if there was none
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
// longer than its length, and a minute, was set by a clock that is ahead. It counts as set now,
// and corrected is true.
func (b ban) at(now Instant) (current ban, corrected bool) {
	if b.forgotten() <= now {
		return ban{}, false
	}
	length := time.Duration(b.length)
	if b.end > now.Add(farthest(length)) {
		b.end = now.Add(length)
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
func (r *Record) unlimited() bool {
	return r.hits.empty() && r.bucket == bucket{} && r.calendar.end == 0
}

// replaced returns the record of b, a ban that is set on r. Leases stay: what is in flight
// goes on.
func (r *Record) replaced(b ban) Record {
	b.set, b.before = 0, 0
	return Record{ban: b, leases: r.leases}
}

// kept returns the record of b, a ban that is set at now because r is full, with all that r
// has beside it.
func (r Record) kept(b ban, now Instant) Record {
	b.set = max(now, 1)
	if b.repeats > 1 {
		b.before = r.ban.end
	}
	r.ban = b
	return r
}

// begin makes b, which does not hold, the ban of r. What the ban before it has kept counts no
// more.
func (r *Record) begin(b ban) {
	if r.ban.set != 0 {
		*r = r.replaced(b)
		return
	}
	r.ban = b
}

// unkept returns the record that the ban of r was set on.
func (r Record) unkept() Record {
	b := r.ban
	if r.ban = (ban{}); b.repeats > 1 {
		r.ban = ban{end: b.before, repeats: b.repeats - 1}
	}
	return r
}

// Withdrawn returns r at now without the hits of h, which a call gives back because
// another condition refused it. store says whether that changes r. A ban that was set
// on those hits is lifted: without them there would have been room for one hit. The
// hits that it had replaced count again, and it does not count in repeats.
func (r Record) Withdrawn(h Hit, now Instant, limit *Limit) (next Record, store bool) {
	if b, _ := r.ban.at(now); !b.holds(now) || h.Kind == Leases {
		return r.Without(h, now)
	}
	if r.ban.set == 0 {
		return r, false
	}
	full, found := r.unkept().Without(h, r.ban.set)
	if !found {
		return r, false
	}
	one := *limit
	one.Cost, one.Least = 1, 0
	var v Verdict
	looked := full
	if v.look(r.ban.set, &one, &looked, false); v.bans(&one, Lockout{KeepHits: true}) {
		full.ban = r.ban
		return full, true
	}
	full.expire(now)
	return full, true
}
