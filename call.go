package throttler

import (
	"context"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/slots"
)

// A call is one rule on its way through the backend: an entry for each condition.
type call struct {
	job
	one     entry // of a call with one condition
	scratch scratch
}

// A job is all of a call that is not kept when the call is used again.
type job struct {
	t       *Throttler
	plan    *plan
	rule    Rule
	entries []*entry // in the rule's order
	dry     bool     // changes nothing

	begun    bool     // first is in use
	replaced []*entry // were left, and the fallback has decided in their place
	withdrew bool     // what it has counted, and counts yet, is withdrawn

	first slots.Round
}

// A scratch is the memory that a call takes besides itself. A call that is used again has it
// already.
type scratch struct {
	several  []entry
	list     []*entry
	keys     []byte         // of all entries, one after the other
	keyEnds  []int          // where each of them ends
	outcomes []Outcome      // of a round that may not be the last
	sent     []*slots.Entry // of the round that is asked about
	slots    slots.Scratch
}

const maxSeveral = 64 // conditions for which a call keeps its scratch

// calls holds used calls for reuse: see [call.idle].
var calls = sync.Pool{New: func() any { return new(call) }}

// clear makes c a call that is not made yet, with the scratch that a usual call takes.
func (c *call) clear() {
	if len(c.entries) == 1 {
		c.one = entry{}
	}
	c.job = job{}
	s := &c.scratch
	s.slots.Clear()
	if cap(s.several) > maxSeveral {
		s.several, s.list, s.sent, s.outcomes, s.keys, s.keyEnds = nil, nil, nil, nil, nil, nil
	}
	clear(s.outcomes)
	clear(s.several)
	clear(s.list)
	clear(s.sent[:cap(s.sent)])
	s.several, s.list = s.several[:0], s.list[:0]
}

// undecided returns n entries.
func (c *call) undecided(n int) []*entry {
	s := &c.scratch
	if n > cap(s.list) {
		s.list, s.sent = make([]*entry, 0, n), make([]*slots.Entry, 0, n)
	}
	s.list = s.list[:n]
	if n == 1 {
		s.list[0] = &c.one
		return s.list
	}
	if n > cap(s.several) {
		s.several = make([]entry, n)
	}
	s.several = s.several[:n]
	for i := range s.several {
		s.list[i] = &s.several[i]
	}
	return s.list
}

// newCall returns the call of rule, by its plan, with all its conditions undecided.
func (t *Throttler) newCall(rule *Rule, p *plan) *call {
	c := calls.Get().(*call)
	c.t, c.plan, c.rule = t, p, *rule
	conditions := rule.conditions()
	c.entries = c.undecided(len(conditions))
	for i, e := range c.entries {
		e.set(&p.limits[i], &conditions[i])
	}
	c.setKeys(conditions)
	if t.Conflict != nil {
		t.tellConflicts(c)
	}
	return c
}

// setKeys sets the keys of the entries, which are those of conditions. Several are parts of one
// string.
func (c *call) setKeys(conditions []Condition) {
	s := &c.scratch
	s.keys, s.keyEnds = s.keys[:0], s.keyEnds[:0]
	for i := range conditions {
		s.keys = c.plan.appendKey(s.keys, i, conditions[i].Value)
		s.keyEnds = append(s.keyEnds, len(s.keys))
	}
	all, begin := string(s.keys), 0
	for i, end := range s.keyEnds {
		c.entries[i].Key, begin = all[begin:end], end
	}
}

// run decides c and sets d, which is zero, to its Decision. c must not be used
// afterwards.
func (c *call) run(ctx context.Context, d *Decision) {
	c.askInRounds(ctx)
	c.end(d)
}

// end sets d, which is zero, to the Decision of c. c must not be used afterwards.
func (c *call) end(d *Decision) {
	c.conclude(d)
	if c.idle() {
		c.clear()
		calls.Put(c)
	}
}

// idle reports whether nothing of c is under way any more, so that c may be used
// for another call. What is left to the garbage collector is always right.
func (c *call) idle() bool {
	if !c.first.Idle() || !c.one.Idle() {
		return false
	}
	for i := range c.scratch.several {
		if !c.scratch.several[i].Idle() {
			return false
		}
	}
	return true
}

// askInRounds decides all conditions of c, and counts them unless the call is dry.
//
// With CountAuthorizedOnly and several conditions there are two rounds: the first
// only looks, and the second counts if nothing blocks. If the second round finds
// that the call is refused after all, what it has counted is given back.
func (c *call) askInRounds(ctx context.Context) {
	if len(c.rule.First) > 0 {
		c.askInOrder(ctx)
		return
	}
	c.recall()
	if c.dry {
		c.askBoth(ctx, opLook)
		return
	}
	if !c.rule.toAssess() || c.assess(ctx) {
		c.count(ctx)
	}
}

// askInOrder decides the conditions of First, one after the other, up to the first that has
// room.
func (c *call) askInOrder(ctx context.Context) {
	op, all := opCount, c.entries
	if c.dry {
		op = opLook
	}
	for i := range all {
		if c.entries = all[i : i+1]; all[i].from == nowhere {
			c.recall()
			c.askBoth(ctx, op)
		}
		if e := all[i]; e.Failed() != nil || !e.Outcome.Blocked {
			break
		}
	}
	c.entries = all
}

// assess assesses the conditions that are undecided, and reports whether the call is to be
// counted. Those that are to count it are undecided then.
func (c *call) assess(ctx context.Context) bool {
	c.askBoth(ctx, opAssess)
	if c.refused() {
		return false
	}
	c.reopen()
	return true
}

// count counts the conditions that are undecided, and gives back what the call has counted
// if it turns out to be refused.
func (c *call) count(ctx context.Context) {
	c.askBoth(ctx, opCount)
	if c.rule.toAssess() && c.refused() {
		c.withdraw(ctx)
	}
}

// recall decides the conditions that the BlockCache can answer.
func (c *call) recall() {
	blocks := c.t.blockCache()
	if blocks == nil {
		return
	}
	now := record.InstantOf(time.Now())
	for _, e := range c.entries {
		r, ok := blocks.Get(e.Key, now)
		if !ok || e.limit.Algorithm == record.Leases {
			continue
		}
		e.op = opAssess // the others are asked what they would do
		if store := e.Apply(now, &r); e.Outcome.Blocked && !store {
			e.from = recalled
			c.t.cacheHits.Add(1)
		}
	}
}

// askBoth asks the backend about all conditions that are undecided, and then the
// fallback, if there is one, about those whose backend failed.
func (c *call) askBoth(ctx context.Context, op op) {
	first := &c.first
	if c.begun {
		first = new(slots.Round) // c.first may be under way still
	} else {
		c.begun = true
		first.Scratch = &c.scratch.slots
	}
	c.send(ctx, c.t.backend(), first, op, func(e *entry) bool { return e.from == nowhere && e.cause == nil })
	if c.t.Fallback != nil && c.standIns() {
		// The fallback is asked even if ctx has ended over a backend that hangs.
		c.send(context.WithoutCancel(ctx), c.t.fallback(), new(slots.Round), op, func(e *entry) bool { return e.from == nowhere })
	}
}

// standIns puts an entry for the fallback in the place of each whose backend failed. It
// reports whether there are any such entries, those of an earlier round among them.
func (c *call) standIns() (any bool) {
	for i, e := range c.entries {
		if e.from == asked && e.Failed() != nil {
			c.entries[i] = e.standIn()
			if e.Left != nil {
				c.replaced = append(c.replaced, e)
			}
		}
		if e := c.entries[i]; e.from == nowhere {
			any = true
			c.t.narrow(e)
		}
	}
	return any
}

// send asks b about the entries that are chosen.
func (c *call) send(ctx context.Context, b *backend, r *slots.Round, op op, chosen func(*entry) bool) {
	sent := c.scratch.sent[:0]
	for _, e := range c.entries {
		if chosen(e) {
			e.begin(b, op, e.Key)
			e.from = asked
			sent = append(sent, &e.Entry)
		}
	}
	if len(sent) == 0 {
		return
	}
	r.Entries = sent
	b.Ask(ctx, r)
	r.Entries = nil // the scratch is used again
}

// reopen makes the conditions that have room undecided again, to be counted.
func (c *call) reopen() {
	for i, e := range c.entries {
		if e.from == asked && e.Failed() == nil && !e.Outcome.Blocked {
			again := e.standIn()
			again.cause = e.cause
			again.Follow(&e.Entry)
			c.entries[i] = again
		}
	}
}

// refused reports whether the call is blocked and therefore to be counted nowhere.
func (c *call) refused() bool {
	s, n := &c.scratch, len(c.entries)
	if n > len(s.outcomes) {
		s.outcomes = make([]Outcome, n)
	}
	c.results(s.outcomes[:n], true)
	return c.rule.blocks(s.outcomes[:n])
}

// results sets outcomes to those of the conditions, and returns how long until each takes
// the same call again: nil where RetryAfter says so.
func (c *call) results(outcomes []Outcome, counted bool) (again []time.Duration) {
	for i, e := range c.entries {
		wait := e.result(counted, &outcomes[i])
		if e.limit.Cost > 1 && again == nil {
			again = make([]time.Duration, len(c.entries))
			for j := range i {
				again[j] = c.entries[j].result(counted, &outcomes[j])
			}
		}
		if again != nil {
			again[i] = wait
		}
	}
	return again
}

// conclude sets d, which is zero, to the Decision of c.
func (c *call) conclude(d *Decision) {
	var k kept
	if c.dry {
		k.outcomes = make([]Outcome, len(c.entries))
	} else {
		k = c.plan.keep()
		c.writeReceipt(&k)
	}
	again := c.results(k.outcomes, true)
	if c.dry && c.rule.toAssess() && c.rule.blocks(k.outcomes) {
		again = c.results(k.outcomes, false)
	}
	c.rule.combine(d, k.outcomes, again, k.messages)
	d.receipt = k.receipt
}
