package throttler

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/slots"
)

// An inPlace is a call whose conditions are decided where their records are: in process
// memory, each under the lock of the store, one after the other. Nothing of it is under way
// when it ends, so it needs no round and nobody waits. It is most of what a program over
// package memstore does.
//
// It decides each record by itself, as a [call] does: between two of them, others may decide
// on both.
type inPlace struct {
	visit  slots.Visit
	placed []placed        // the conditions, in the rule's order
	keys   []byte          // of their records, one after the other
	again  []time.Duration // until each has room for the same call

	// Of the visit that is made.
	at      *placed
	limit   record.Limit
	lockout record.Lockout
	assess  bool // count nothing
}

// A placed is one condition of an inPlace.
type placed struct {
	record.Verdict
	from, to int    // of its key in keys
	kept     string // the key as the store keeps it, of a condition that has counted
	decided  bool
}

var inPlaces = sync.Pool{New: func() any {
	x := new(inPlace)
	x.visit.Visitor = x
	return x
}}

// decideInPlace sets d, which is zero, to the Decision of rule, and counts it, if it can be
// decided in place. If not, nothing has changed, and the rule is for a [call].
func (t *Throttler) decideInPlace(ctx context.Context, rule *Rule, d *Decision) (ok bool) {
	b := t.backend()
	if !b.InPlace() || t.BlockCache > 0 || t.Conflict != nil || ctx.Err() != nil {
		return false
	}
	conditions := rule.conditions()
	for i := range conditions {
		if of := &conditions[i]; of.Algorithm > LeakyBucket || uint64(of.Cost) > math.MaxUint32 {
			return false
		}
	}
	x := inPlaces.Get().(*inPlace)
	x.begin(rule, conditions)
	if x.decide(b, rule, conditions) {
		x.conclude(b, rule, conditions, d)
	} else {
		x.goOn(ctx, b, rule, d)
	}
	x.end()
	inPlaces.Put(x)
	return true
}

// begin makes x the call of a rule with these conditions.
func (x *inPlace) begin(rule *Rule, conditions []Condition) {
	if n := len(conditions); n > cap(x.placed) {
		x.placed, x.again = make([]placed, n), make([]time.Duration, n)
	} else {
		x.placed, x.again = x.placed[:n], x.again[:n]
	}
	for i := range conditions {
		p := &x.placed[i]
		p.from = len(x.keys)
		x.keys = record.AppendKey(x.keys, rule.Identifier, conditions[i].Name, conditions[i].Value)
		p.to = len(x.keys)
	}
	x.visit.Begin()
}

// end makes x ready for another call, with the memory that a usual one takes.
func (x *inPlace) end() {
	for i := range x.placed {
		x.placed[i].kept, x.placed[i].decided = "", false
	}
	if cap(x.placed) > maxSeveral {
		x.placed, x.again, x.keys = nil, nil, nil
	}
	x.keys, x.at = x.keys[:0], nil
	x.visit.End()
}

// key returns the key of p.
func (x *inPlace) key(p *placed) []byte { return x.keys[p.from:p.to] }

// decide decides all conditions, as [call.askInRounds] does, and reports whether that is all:
// no record is left to be asked for in the usual way, and nothing to be given back.
func (x *inPlace) decide(b *backend, rule *Rule, conditions []Condition) bool {
	toAssess := rule.CountAuthorizedOnly && len(conditions) > 1
	if toAssess {
		if !x.ask(b, rule, conditions, true) {
			return false
		}
		if x.blocks(rule) {
			return true
		}
		for i := range x.placed {
			x.placed[i].decided = x.placed[i].Outcome.Blocked
		}
	}
	return x.ask(b, rule, conditions, false) && !(toAssess && x.blocks(rule))
}

// ask decides the conditions that are not decided, up to the first one that fails. It counts
// them unless they are to be assessed.
func (x *inPlace) ask(b *backend, rule *Rule, conditions []Condition, assess bool) (ok bool) {
	ok, x.assess = true, assess
	n := 0
	for i := range x.placed {
		p, of := &x.placed[i], &conditions[i]
		if p.decided {
			continue
		}
		x.at, x.lockout = p, rule.lockout(of)
		of.setLimit(&x.limit) // no Period was set before
		if x.lockout.KeepHits && !assess {
			x.lockout.Length = 0 // as in [entry.Apply]
		}
		kept, err := b.Visit(&x.visit, x.key(p))
		n++
		if err != nil {
			ok = false
			break
		}
		p.kept, p.decided = kept, true
	}
	b.Visited(n)
	return ok
}

// Apply decides the condition at hand on r.
func (x *inPlace) Apply(now record.Instant, r *record.Record) (store bool) {
	return x.at.Decide(now, &x.limit, x.lockout, r, !x.assess)
}

// blocks reports whether what is decided blocks the call.
func (x *inPlace) blocks(rule *Rule) bool {
	return blocks(rule, x.placed, func(p *placed) bool { return p.Outcome.Blocked })
}

// countedNothing is [call.countedNothing].
func (x *inPlace) countedNothing() bool {
	for i := range x.placed {
		if x.placed[i].Hit.Cost > 0 {
			return false
		}
	}
	return true
}

// conclude sets d to the Decision of x.
func (x *inPlace) conclude(b *backend, rule *Rule, conditions []Condition, d *Decision) {
	var keeps retained
	if x.countedNothing() {
		keeps = retainUncosted(len(conditions))
		keeps.uncosted.set(b.t, rule)
		for i := range x.placed {
			keeps.uncosted.takeBytes(x.key(&x.placed[i]))
		}
	} else {
		keeps = retainCounted(len(conditions))
		for i := range x.placed {
			p := &x.placed[i]
			keeps.note(i, b, p.kept, &conditions[i], &p.Hit, rule.Shadow)
		}
	}
	for i := range x.placed {
		p, of := &x.placed[i], &conditions[i]
		keeps.outcomes[i].set(of.Name, of.Max, &p.Outcome)
		x.again[i] = p.Again
	}
	rule.combine(d, keeps.outcomes, x.again, keeps.messages)
	d.receipt = keeps.receipt
}

// goOn sets d to the Decision of a [call] that goes on with rule where x could not: with the
// conditions that are not decided, or with giving back what x has counted.
func (x *inPlace) goOn(ctx context.Context, b *backend, rule *Rule, d *Decision) {
	c := b.t.newCall(rule)
	for i, e := range c.entries {
		if p := &x.placed[i]; p.decided {
			e.begin(b, opCount, e.Key)
			e.from, e.Verdict = asked, p.Verdict
		}
	}
	if !x.assess || c.assess(ctx) {
		c.count(ctx)
	}
	c.end(d)
}
