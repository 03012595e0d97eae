package engine

import (
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// An op is what a call does to a record. Those up to opGlance decide a call.
type op uint8

const (
	opCount    op = iota // decide, and count a hit if there is room
	opAssess             // decide and ban, but count nothing
	opLook               // decide as opCount, but change nothing
	opGlance             // decide as opAssess, but change nothing
	opGiveBack           // take a hit back whose call turned out to be refused
	opRefund             // take the newest hits back, whoever counted them
	opSettle             // set what an authorized call has cost
	opBan                // ban
	opRenew              // renew leases
)

// A change is what one condition of a call, a settlement, a ban or a renewal makes of its
// record. It is a function of the time and the record alone, and may be applied again when
// the record turns out to be another one.
type change struct {
	op         op
	limit      record.Limit
	lockout    record.Lockout
	length     time.Duration             // of the ban, for opBan
	ends       map[uint64]record.Instant // of the leases, for opRenew: see record.Record.Renew
	settlement *record.Settlement        // for opSettle
	beside     *record.Beside            // of the fallback
	unspent    []record.Hit              // in hand: opCount gives them back first, a look leaves them out; see hands

	// What becomes of it. The Hit is what it has counted or, for opGiveBack, what to take back.
	verdict record.Verdict
	glanced *record.Verdict // of opLook: what it comes to if the call is not counted
	left    []byte          // the record with what it has counted, if it has taken hits ahead
	unsure  bool            // it may find what it has itself counted
	ahead   bool            // a clock that is ahead has written the record
}

// Apply decides c on r in place, and reports whether r is to be stored.
func (c *change) Apply(now record.Instant, r *record.Record) (store bool) {
	switch c.op {
	case opSettle:
		store = c.settlement.Apply(now, r)
		c.verdict.Outcome = c.settlement.Outcome
		return store
	case opGiveBack:
		*r, store = r.Withdrawn(c.verdict.Hit, now, &c.limit)
		left := *r
		c.leaveOut(&left, now)
		v := c.lookAt(now, left, record.Lockout{}, &c.limit)
		c.verdict.Outcome, c.verdict.Again = v.Outcome, v.Again
		return store
	case opBan:
		*r, store = r.Banned(now, c.length)
		return store
	case opRenew:
		return r.Renew(now, c.ends)
	case opRefund:
		*r, store = r.WithoutNewest(c.limit.Hits(), now, &c.limit)
		one := c.limit
		one.Cost, one.Least = 1, 0
		c.verdict = c.lookAt(now, *r, record.Lockout{}, &one)
		return store
	}
	c.ahead = r.IsAhead(now, &c.limit)
	if len(c.unspent) == 0 || c.unsure && c.op == opCount { // they may have been given back already
		return c.decideCall(now, r)
	}
	found := *r
	if !c.leaveOut(r, now) {
		return c.decideCall(now, r)
	}
	without := *r
	store = c.decideCall(now, r)
	switch {
	case c.op == opCount && !store:
		*r, store = without, true
	case c.op == opAssess && store: // what is stored still counts them
		told := c.verdict
		*r = found
		store = c.decideCall(now, r)
		c.verdict = told
	}
	return store
}

// decideCall is Apply of what decides a call, beside nothing in hand.
func (c *change) decideCall(now record.Instant, r *record.Record) (store bool) {
	l := c.lockout
	// What c finds may be its own hit, or one that another call is about to give
	// back: no reason for a ban. The step that assesses has banned what was full.
	if c.unsure || c.op == opCount && l.KeepHits {
		l.Length = 0
	}
	if c.op == opLook {
		v := c.lookAt(now, *r, l, &c.limit)
		c.glanced = &v
	}
	store = c.setVerdict(&c.verdict, now, &c.limit, l, r, c.op == opCount || c.op == opLook)
	switch c.op {
	case opAssess:
		return store && c.verdict.Outcome.Blocked
	case opLook, opGlance:
		return false
	}
	if c.left = nil; c.limit.Ahead > 0 && c.verdict.Hit.Cost > 0 {
		c.left = r.Encode()
	}
	return store
}

// leaveOut takes out of r what this process has in hand of it, and reports whether there was any.
func (c *change) leaveOut(r *record.Record, now record.Instant) (any bool) {
	for _, h := range c.unspent {
		next, found := r.Without(h, now)
		*r, any = next, any || found
	}
	return any
}

// lookAt decides a call on r without counting it.
func (c *change) lookAt(now record.Instant, r record.Record, l record.Lockout, limit *record.Limit) (v record.Verdict) {
	c.setVerdict(&v, now, limit, l, &r, false)
	return v
}

// setVerdict sets v to the verdict of c on r.
func (c *change) setVerdict(v *record.Verdict, now record.Instant, limit *record.Limit, l record.Lockout, r *record.Record, count bool) (store bool) {
	if c.beside != nil {
		return v.DecideBeside(now, limit, l, r, count, c.beside)
	}
	return v.Decide(now, limit, l, r, count)
}

// Stands reports whether c blocks, which holds without a write.
func (c *change) Stands() bool { return c.op <= opGlance && c.verdict.Outcome.Blocked }

// Doubt notes that what c finds may be its own hit. What takes hits back is not tried
// again: it might take back another call's. Nor is a settlement, which might count twice. A
// lease is known by its ID: whatever became of the earlier write, it is there once.
func (c *change) Doubt() (again, twice bool) {
	c.unsure = true
	switch c.op {
	case opCount:
		return true, c.limit.Algorithm != record.Leases
	case opSettle:
		again = c.settlement.Repeatable()
		return again, !again
	case opGiveBack, opRefund:
		again = c.verdict.Hit.Kind == record.Leases
		return again, !again
	}
	return true, true
}
