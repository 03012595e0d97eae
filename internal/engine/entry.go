package engine

import (
	"context"
	"math/rand/v2"

	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// An entry is a change on its way through the record of a backend: one condition of a call, or
// what takes hits back, settles, bans or renews. Its Entry says how far it has come, and its change
// what it makes of the record.
type entry struct {
	coalesce.Entry
	change
	backend *backend

	// What it is to its call, which alone uses it.
	cause    error     // why the backend's own entry failed; this one is the fallback's
	from     decidedIn // where it is decided
	fetching *fetching // what it takes ahead; nil: nothing
}

// decidedIn is where an entry was decided.
type decidedIn uint8

const (
	nowhere  decidedIn = iota // not decided yet
	asked                     // by the backend or its fallback
	recalled                  // from the block cache
	inHand                    // by hits taken ahead
)

// mostPatience is how many races an entry may lose, if its Max is no less, beyond those that
// no sound backend loses.
const mostPatience = 100_000

// set makes e, which is zero, the entry of a condition for a call with this limit.
func (e *entry) set(of *Condition, limit record.Limit) {
	e.limit, e.lockout = limit, of.Lockout
	if limit.Algorithm == record.Leases {
		e.limit.ID = rand.Uint64()
	}
}

// begin makes e, which is new, the entry of op on the record of key.
func (e *entry) begin(b *backend, op op, key string) {
	e.backend, e.op = b, op
	e.Key, e.Change = key, &e.change
	e.Patience = min(e.limit.Max, mostPatience)
	e.Cached, e.Precedes = op <= opGlance && e.limit.Algorithm != record.Leases, op == opAssess
}

// askAll asks the backend of each of entries. With firm set they are carried out
// even if ctx ends before.
func askAll(ctx context.Context, entries []*entry, firm bool) {
	for len(entries) > 0 {
		b := entries[0].backend
		r := &coalesce.Round{Firm: firm}
		var others []*entry
		for _, e := range entries {
			if e.backend == b {
				r.Entries = append(r.Entries, &e.Entry)
			} else {
				others = append(others, e)
			}
		}
		b.ask(ctx, r)
		entries = others
	}
}

// standIn returns a new entry to be decided by the fallback in e's place. e itself
// may still be under way.
func (e *entry) standIn() *entry {
	s := &entry{change: change{limit: e.own(), lockout: e.lockout}, cause: Join(e.cause, e.Failed())}
	s.Key = e.Key
	return s
}

// giveBack returns the entry that takes back what e has counted.
func (e *entry) giveBack() *entry {
	back := &entry{change: change{limit: e.limit, beside: e.beside, verdict: record.Verdict{Hit: e.verdict.Hit}}}
	back.begin(e.backend, opGiveBack, e.Key)
	return back
}

// counted returns what e has counted for its call, if that is known.
func (e *entry) counted() record.Hit {
	if e.from != asked && e.from != inHand || e.Failed() != nil {
		return record.Hit{}
	}
	return e.verdict.Hit
}

// result sets o to the Outcome of e after a step of op.
func (e *entry) result(op op, o *Outcome) {
	if e.from == nowhere {
		*o = Outcome{}
		return
	}
	if err := e.Failed(); err != nil {
		*o = Outcome{Asked: true, Err: Join(e.cause, err)}
		o.Remaining = e.limit.Max
		if e.Left == nil {
			o.LostRaces = e.LostRaces
		}
		return
	}
	if e.ahead {
		e.backend.engine.ahead.Add(1)
	}
	if op == opGlance && e.from == inHand {
		e.uncount()
	}
	*o = Outcome{Outcome: e.verdict.Outcome, Asked: true, Again: e.verdict.Again, LostRaces: e.LostRaces}
	if op == opGlance && e.from == asked {
		o.Outcome, o.Again = e.glanced.Outcome, e.glanced.Again
	}
	if e.cause != nil || e.Note != nil {
		o.Err = Join(e.cause, e.Note)
	}
}
