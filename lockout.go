package throttler

import (
	"math"
	"time"
)

const (
	// DefaultMaxLockout is where growing bans end if [Rule.MaxLockout] is
	// not set, unless the first ban is longer.
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
	end      instant // when it ends, the first instant that it does not hold
	length   instant // how long it was when it was set
	offences int     // how many bans in a row this is, where they grow; otherwise 0
}

// maxOffences is the most that are counted.
const maxOffences = 255

// holds reports whether b holds at now.
func (b ban) holds(now instant) bool {
	return b.end > now
}

// forgotten returns when nothing of b matters any more.
func (b ban) forgotten() instant {
	if b.offences == 0 {
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
	growth  float64       // each further one is so many times longer; 0: all are alike
	longest time.Duration // where growth ends
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
	return l
}

// ban returns the ban to set at now, after the last one, if that is not
// forgotten.
func (l lockout) ban(now instant, last ban) ban {
	b := ban{end: now.add(l.after(last.offences))}
	b.length = b.end - now
	if l.growth != 0 {
		b.offences = min(last.offences+1, maxOffences)
	}
	return b
}

// after returns the length of a ban after so many others.
func (l lockout) after(offences int) time.Duration {
	if l.growth == 0 {
		return l.length
	}
	length := float64(l.length) * math.Pow(l.growth, float64(offences))
	if length >= float64(l.longest) { // even if it is infinite
		return l.longest
	}
	return time.Duration(length)
}
