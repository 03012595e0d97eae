package throttler

import (
	"context"
	"sync/atomic"
	"time"
)

// An entry is one condition of a call, or one hit to be taken back, on its way
// through the record that it is about. Each part of it has one owner at a time.
type entry struct {
	question
	ending
	trial
	standing
}

// A question is what an entry asks, and where. It stays as it is while the entry is
// under way.
type question struct {
	op        op
	condition Condition // a copy: an entry may be under way when its caller has gone
	lockout   lockout
	key       string
	length    time.Duration // of the ban, for opBan
	backend   *backend
	slot      *slot
	round     *round
}

// An ending is what becomes of an entry. The exchange writes it until the entry is
// settled. The caller may read it from then on. In hit is what it has counted or, for
// opRefund and opWithdraw, what to take back.
type ending struct {
	verdict
	uncounted *uncounted // of opLook: what it would be if it were not counted
	decidedAt instant
	err       error // what failed; nil: it was decided
	note      error // what failed though it was decided
	lostRaces int
	assessed  sighting // of opAssess: the record that it was decided on; then of opCount
	unknown   bool     // it failed, and may have been carried out all the same
	settled   bool     // guarded by slot.mu
}

// A trial is what the slot notes of an entry while it tries to store it.
type trial struct {
	since  time.Time // when it lost its first race
	late   bool      // an earlier write of it was lost, and may still arrive
	unsure bool      // an earlier write of it may have been carried out
}

// A standing is what an entry is to its caller, who alone uses it.
type standing struct {
	left   error  // why it was left before it was settled
	unsent bool   // it was left before it was sent
	cause  error  // what the backend failed with that this entry stands in for
	from   origin // where it is decided
}

// An uncounted is what an entry comes to if it is not counted.
type uncounted struct {
	outcome Outcome
	again   time.Duration
}

// An op is what an entry does to its record.
type op uint8

const (
	opCount    op = iota // decide, and count a hit if there is room
	opAssess             // decide and ban, but count nothing
	opLook               // decide, and change nothing
	opRefund             // take a hit back that was authorized
	opWithdraw           // take a hit back whose call turned out to be refused
	opBan                // ban
)

// origin is where an entry was decided.
type origin uint8

const (
	nowhere  origin = iota // not decided yet
	asked                  // by the backend or its fallback
	recalled               // from memory
)

// apply decides e on r. If it sets e.store, e.next is what is to be stored.
func (e *entry) apply(now instant, r *record) {
	e.decidedAt = now
	switch e.op {
	case opRefund:
		e.next, e.store = r.without(e.hit, now)
		return
	case opWithdraw:
		e.next, e.store = r.withdrawn(e.hit, now, &e.condition)
		e.outcome = decide(now, &e.condition, lockout{}, e.next, false).outcome
		return
	case opBan:
		e.next, e.store = r.banned(now, e.length)
		return
	}
	l := e.lockout
	if e.unsure {
		l.length = 0 // what it finds may be its own hit: no reason for a ban
	}
	e.next = *r
	e.verdict.decide(now, &e.condition, l, e.op != opAssess)
	switch e.op {
	case opAssess:
		e.store = e.store && e.outcome.Blocked
	case opLook:
		v := decide(now, &e.condition, l, *r, false)
		e.uncounted = &uncounted{v.outcome, v.again}
		e.store = false
	}
}

// fail notes why e could not be decided. The caller holds the slot's lock.
func (e *entry) fail(err error) {
	e.err = err
	if e.op == opCount {
		e.hit = hit{}
	}
}

// failUnstored notes that e could not be stored, though r was read. A condition that
// is full in r still blocks, even if it could not be banned. Hits that others
// counted in the same batch were not stored either, and do not block e.
func (e *entry) failUnstored(err error, r *record) {
	if e.op <= opLook {
		e.unsure = true // nothing to ban it for
		e.apply(e.decidedAt, r)
	}
	if e.op > opLook || !e.outcome.Blocked {
		e.fail(err)
		return
	}
	e.note = err
}

// failed returns why e was not decided, or nil.
func (e *entry) failed() error {
	if e.left != nil {
		return e.left
	}
	return e.err
}

// result sets o to the Outcome of e, and returns how long until its condition takes the
// same call again. counted says whether the call as a whole is one that counts.
func (e *entry) result(counted bool, o *Outcome) (again time.Duration) {
	if err := e.failed(); err != nil {
		c := &e.condition
		*o = Outcome{Name: c.Name, Limit: c.Max, Remaining: c.Max, Err: join(e.cause, err)}
		if e.left == nil {
			o.LostRaces = e.lostRaces
		}
		return 0
	}
	*o, again = e.outcome, e.again
	if e.op == opLook && !counted {
		*o, again = e.uncounted.outcome, e.uncounted.again
	}
	o.LostRaces = e.lostRaces
	if e.cause != nil || e.note != nil {
		o.Err = join(e.cause, e.note)
	}
	return again
}

// A round is a number of entries that are sent together and waited for.
type round struct {
	entries []*entry // while they are asked about
	led     []*slot  // room for those that it leads
	inlined *inlined // room for the exchanges of an [Inliner]
	firm    bool     // is carried out even if the caller leaves

	pending atomic.Int32                  // how many entries are not settled, and 1 more until that is told
	done    atomic.Pointer[chan struct{}] // closed when there are none
}

// settle notes that one entry is settled.
func (r *round) settle() {
	if r.pending.Add(-1) > 1 {
		return
	}
	if done := r.done.Load(); done != nil {
		close(*done)
	}
	r.pending.Add(-1)
}

// begin has the round wait for n entries.
func (r *round) begin(n int) { r.pending.Store(int32(n) + 1) }

// settled reports whether all entries are.
func (r *round) settled() bool { return r.pending.Load() <= 1 }

// idle reports whether no other goroutine touches the round any more.
func (r *round) idle() bool { return r.pending.Load() == 0 }

// wait returns true when all entries are settled, or false when ctx is done.
func (r *round) wait(ctx context.Context) bool {
	if r.settled() {
		return true
	}
	if r.done.Load() == nil {
		done := make(chan struct{})
		r.done.CompareAndSwap(nil, &done)
	}
	if r.settled() {
		return true // settle may have been too early to see the channel
	}
	select {
	case <-*r.done.Load():
		return true
	case <-ctx.Done():
		return r.settled()
	}
}
