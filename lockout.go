package throttler

import "time"

// A ban blocks a condition's value until it ends, whatever happens in the
// meantime. It is set by the call that finds the condition full, in the same
// record as the hits, which it replaces: a writer that has read the hits before
// the ban was set loses the race for the record, reads again and finds the ban.
// So a ban is set once, and no late write erases or prolongs it.
//
// The zero ban is none.
type ban struct {
	end    instant // when it ends, the first instant that it does not hold
	length instant // how long it was when it was set
}

// newBan returns a ban that is set at now.
func newBan(now time.Time, lockout time.Duration) ban {
	end := instantAfter(now, lockout)
	return ban{end: end, length: end - instantOf(now)}
}

// at returns b as it stands at now: none once it has ended. A ban that would
// hold for longer than its length was set by a caller whose clock is ahead, and
// counts as if it were set now; corrected says so.
func (b ban) at(now time.Time) (current ban, corrected bool) {
	if b.end <= instantOf(now) {
		return ban{}, false
	}
	if latest := instantOf(now) + b.length; b.end > latest {
		return ban{end: latest, length: b.length}, true
	}
	return b, false
}

// outcome returns what a call at now comes to under the ban.
func (b ban) outcome(now time.Time, c *Condition) Outcome {
	wait := b.end.since(now)
	return Outcome{Name: c.Name, Limit: c.Max, Blocked: true, Banned: true, RetryAfter: wait, ResetAfter: wait}
}
