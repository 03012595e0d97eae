package throttler

import (
	"math/rand/v2"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/slots"
)

// An entry is one condition of a call, or one hit to be taken back, on its way through the
// record that it is about. It is the Change of its slots.Entry.
type entry struct {
	slots.Entry

	// What it asks, and where. It stays as it is while the entry is under way.
	op      op
	name    string // of the condition
	limit   record.Limit
	lockout record.Lockout
	length  time.Duration             // of the ban, for opBan
	ends    map[uint64]record.Instant // of the leases, for opRenew: see record.Record.Renew
	backend *backend

	settlement *settlement // for opSettle
	narrowing  *narrowing  // of the fallback

	// What becomes of it. In Hit is what it has counted or, for opWithdraw, what to take
	// back.
	record.Verdict
	uncounted *uncounted // of opLook: what it would be if it were not counted
	unsure    bool       // it may find what it has itself counted

	// What it is to its caller, who alone uses it.
	cause error     // what the backend failed with that this entry stands in for
	from  decidedIn // where it is decided
}

// An uncounted is what an entry comes to if it is not counted.
type uncounted struct {
	outcome record.Outcome
	again   time.Duration
}

// An op is what an entry does to its record.
type op uint8

const (
	opCount        op = iota // decide, and count a hit if there is room
	opAssess                 // decide and ban, but count nothing
	opLook                   // decide, and change nothing
	opSettle                 // set what an authorized call has cost
	opWithdraw               // take a hit back whose call turned out to be refused
	opBan                    // ban
	opRenew                  // renew leases
	opRefundNewest           // take the newest hits back, whoever counted them
)

// decidedIn is where an entry was decided.
type decidedIn uint8

const (
	nowhere  decidedIn = iota // not decided yet
	asked                     // by the backend or its fallback
	recalled                  // from memory
)

// set makes e, which is zero, the entry of a condition. Its key is set apart.
func (e *entry) set(l *prepared, of *Condition) {
	e.name, e.lockout, e.limit = l.name, l.lockout, l.limit(of)
	if e.limit.Algorithm == record.Leases {
		e.limit.ID = rand.Uint64()
	}
}

// mostPatience is how many races an entry may lose, if its Max is no less, beyond those that
// no sound backend loses.
const mostPatience = 100_000

// begin makes e, which is new, the entry of op on the record of key.
func (e *entry) begin(b *backend, op op, key string) {
	e.backend, e.op = b, op
	e.Key, e.Change = key, e
	e.Patience = min(e.limit.Max, mostPatience)
	e.Cached, e.Precedes = op <= opAssess && e.limit.Algorithm != record.Leases, op == opAssess
}

// Apply decides e on r.
func (e *entry) Apply(now record.Instant, r *record.Record) (store bool) {
	switch e.op {
	case opSettle:
		store = e.settlement.Apply(now, r)
		e.Outcome = e.settlement.Outcome
		return store
	case opWithdraw:
		*r, store = r.Withdrawn(e.Hit, now, &e.limit)
		left := e.lookAt(now, *r, record.Lockout{})
		e.Outcome, e.Again = left.Outcome, left.Again
		return store
	case opBan:
		*r, store = r.Banned(now, e.length)
		return store
	case opRenew:
		return r.Renew(now, e.ends)
	case opRefundNewest:
		*r, store = r.WithoutNewest(e.limit.Hits(), now, &e.limit)
		e.Verdict = e.lookForOne(now, *r)
		return store
	}
	l := e.lockout
	// What e finds may be its own hit, or one that another call is about to give
	// back: no reason for a ban. The round that assesses has banned what was full.
	if e.unsure || e.op == opCount && l.KeepHits {
		l.Length = 0
	}
	if e.op == opLook {
		v := e.lookAt(now, *r, l)
		e.uncounted = &uncounted{v.Outcome, v.Again}
	}
	store = e.decide(&e.Verdict, now, l, r, e.op != opAssess)
	switch e.op {
	case opAssess:
		return store && e.Outcome.Blocked
	case opLook:
		return false
	}
	return store
}

// lookAt decides a call on r without counting it.
func (e *entry) lookAt(now record.Instant, r record.Record, l record.Lockout) (v record.Verdict) {
	e.decide(&v, now, l, &r, false)
	return v
}

// decide sets v to the verdict of e on r.
func (e *entry) decide(v *record.Verdict, now record.Instant, l record.Lockout, r *record.Record, count bool) (store bool) {
	if e.narrowing != nil {
		return e.narrowing.decide(v, now, &e.limit, l, r, count)
	}
	return v.Decide(now, &e.limit, l, r, count)
}

// lookForOne decides a call of a single hit on r without counting it.
func (e *entry) lookForOne(now record.Instant, r record.Record) (v record.Verdict) {
	one := e.limit
	one.Cost, one.Least = 1, 0
	v.Decide(now, &one, record.Lockout{}, &r, false)
	return v
}

// Stands reports whether e blocks.
func (e *entry) Stands() bool { return e.op <= opLook && e.Outcome.Blocked }

// Doubt notes that what e finds may be its own hit. What takes hits back is not tried
// again: it might take back another call's. Nor is a settlement, which might count twice. A
// lease is known by its ID: whatever became of the earlier write, it is there once.
func (e *entry) Doubt() (again, twice bool) {
	e.unsure = true
	switch e.op {
	case opCount:
		return true, e.limit.Algorithm != record.Leases
	case opSettle:
		again = e.settlement.Repeatable()
		return again, !again
	case opWithdraw, opRefundNewest:
		again = e.Hit.Kind == record.Leases
		return again, !again
	}
	return true, true
}

// standIn returns a new entry to be decided by the fallback in e's place. e itself
// may still be under way.
func (e *entry) standIn() *entry {
	s := &entry{name: e.name, limit: e.limit, lockout: e.lockout, cause: join(e.cause, e.Failed())}
	s.Key = e.Key
	return s
}

// result sets o to the Outcome of e, and returns how long until its condition takes the
// same call again. counted says whether the call as a whole is one that counts.
func (e *entry) result(counted bool, o *Outcome) (again time.Duration) {
	if e.from == nowhere {
		o.setUnasked(e.name, e.limit.Max)
		return 0
	}
	if err := e.Failed(); err != nil {
		*o = Outcome{Name: e.name, Limit: e.limit.Max, Remaining: e.limit.Max, Err: join(e.cause, err)}
		if e.Left == nil {
			o.LostRaces = e.LostRaces
		}
		return 0
	}
	told, again := &e.Outcome, e.Again
	if e.op == opLook && !counted {
		told, again = &e.uncounted.outcome, e.uncounted.again
	}
	*o = Outcome{}
	o.set(e.name, e.limit.Max, told)
	o.LostRaces = e.LostRaces
	if e.cause != nil || e.Note != nil {
		o.Err = join(e.cause, e.Note)
	}
	return again
}
