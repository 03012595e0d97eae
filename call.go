package throttler

import (
	"context"
	"sync"
	"time"
)

// A call is one rule on its way through the backend: an entry for each condition.
type call struct {
	job
	room room
}

// A job is all of a call that is not kept when the call is used again.
type job struct {
	t       *Throttler
	rule    Rule
	entries []*entry // in the rule's order
	dry     bool     // changes nothing

	begun    bool     // first is in use
	replaced []*entry // were left, and the fallback has decided in their place
	receipt  *receipt // what was counted; nil: nothing was

	answer *answer // room for what the caller keeps
	one    entry   // of a call with one condition
	first  round
}

// An answer is what the caller keeps of a call with one condition.
type answer struct {
	receipt  receipt
	outcomes [1]Outcome
}

// A room is what a call takes besides itself. A call that is used again has it already.
type room struct {
	several []entry
	list    []*entry
	led     []*slot
	inlined inlined
}

const maxSeveral = 16 // conditions that a call keeps room for

// calls holds used calls for reuse: see [call.idle].
var calls = sync.Pool{New: func() any { return new(call) }}

// clear makes c a call that is not made yet, with the room that a usual call takes.
func (c *call) clear() {
	c.job = job{}
	room := &c.room
	room.inlined.clear()
	if cap(room.several) > maxSeveral {
		room.several, room.list, room.led = nil, nil, nil
	}
	clear(room.several)
	clear(room.list)
	room.several, room.list = room.several[:0], room.list[:0]
}

// undecided returns n entries.
func (c *call) undecided(n int) []*entry {
	room := &c.room
	if n > cap(room.list) {
		room.list, room.led = make([]*entry, 0, n), make([]*slot, 0, n)
	}
	room.list = room.list[:n]
	if n == 1 {
		room.list[0] = &c.one
		return room.list
	}
	if n > cap(room.several) {
		room.several = make([]entry, n)
	}
	room.several = room.several[:n]
	for i := range room.several {
		room.list[i] = &room.several[i]
	}
	return room.list
}

// newCall returns the call of rule, with all its conditions undecided.
func (t *Throttler) newCall(rule *Rule) *call {
	c := calls.Get().(*call)
	c.t, c.rule = t, *rule
	conditions := rule.conditions()
	c.entries = c.undecided(len(conditions))
	for i, e := range c.entries {
		e.condition = conditions[i]
		e.lockout = rule.lockout(&conditions[i])
		e.key = key(rule.Identifier, e.condition.Name, e.condition.Value)
	}
	if t.Conflict != nil {
		t.tellConflicts(c)
	}
	return c
}

// run decides c and sets d, which is zero, to its Decision. c must not be used
// afterwards.
func (c *call) run(ctx context.Context, d *Decision) {
	c.askInRounds(ctx)
	c.conclude(d)
	if c.idle() {
		c.clear()
		calls.Put(c)
	}
}

// idle reports whether nothing of c is under way any more, so that c may be used
// for another call. What is left to the garbage collector is always right.
func (c *call) idle() bool {
	if !c.first.idle() || !c.one.idle() {
		return false
	}
	for i := range c.room.several {
		if !c.room.several[i].idle() {
			return false
		}
	}
	return true
}

// idle reports whether no other goroutine uses e any more.
func (e *entry) idle() bool {
	return e.left == nil && (e.round == nil || e.round.idle())
}

// askInRounds decides all conditions of c, and counts them unless the call is dry.
//
// With CountAuthorizedOnly and several conditions there are two rounds: the first
// only looks, and the second counts if nothing blocks. If the second round finds
// that the call is refused after all, what it has counted is given back.
func (c *call) askInRounds(ctx context.Context) {
	c.recall()
	if c.dry {
		c.askBoth(ctx, opLook)
		return
	}
	if c.rule.CountAuthorizedOnly && len(c.entries) > 1 {
		c.askBoth(ctx, opAssess)
		if c.refused() {
			return
		}
		c.reopen()
	}
	c.askBoth(ctx, opCount)
	c.writeReceipt()
	if len(c.entries) > 1 && c.refused() {
		c.giveBack(ctx)
	}
}

// recall decides the conditions that the BlockCache can answer.
func (c *call) recall() {
	cache := c.t.blockCache()
	if cache == nil {
		return
	}
	now := instantOf(time.Now())
	for _, e := range c.entries {
		r, ok := cache.get(e.key, now)
		if !ok {
			continue
		}
		e.op = opCount // the others are asked what they would do
		if e.apply(now, &r); e.outcome.Blocked && !e.store {
			e.from = recalled
			c.t.stats.cacheHits.Add(1)
		}
		e.hit = hit{} // memory counts nothing
	}
}

// askBoth asks the backend about all conditions that are undecided, and then the
// fallback, if there is one, about those whose backend failed.
func (c *call) askBoth(ctx context.Context, op op) {
	first := &c.first
	if c.begun {
		first = new(round) // c.first may be under way still
	} else {
		c.begun = true
		first.led, first.inlined = c.room.led, &c.room.inlined
	}
	c.send(ctx, c.t.backend(), first, op, func(e *entry) bool { return e.from == nowhere && e.cause == nil })
	fallback := c.t.fallback()
	if fallback == nil {
		return
	}
	second := new(round)
	for i, e := range c.entries {
		if e.from == asked && e.failed() != nil {
			c.entries[i] = e.standIn()
			if e.left != nil {
				c.replaced = append(c.replaced, e)
			}
		}
	}
	// The fallback is asked even if ctx has ended over a backend that hangs.
	c.send(context.WithoutCancel(ctx), fallback, second, op, func(e *entry) bool { return e.from == nowhere })
}

// send asks b about the entries that are chosen.
func (c *call) send(ctx context.Context, b *backend, r *round, op op, chosen func(*entry) bool) {
	for i, e := range c.entries {
		switch {
		case !chosen(e):
		case len(r.entries) == i:
			r.entries = c.entries[: i+1 : i+1] // all so far, as is usual
		default:
			r.entries = append(r.entries, e)
		}
	}
	if len(r.entries) == 0 {
		return
	}
	for _, e := range r.entries {
		e.op, e.backend, e.from = op, b, asked
	}
	b.ask(ctx, r)
	r.entries = nil // c.entries may have others from now on
}

// standIn returns a new entry to be decided by the fallback in e's place. e itself
// may still be under way.
func (e *entry) standIn() *entry {
	return &entry{
		question: question{condition: e.condition, lockout: e.lockout, key: e.key},
		standing: standing{cause: join(e.cause, e.failed())},
	}
}

// reopen makes the conditions that have room undecided again, to be counted.
func (c *call) reopen() {
	for i, e := range c.entries {
		if e.from == asked && e.failed() == nil && !e.outcome.Blocked {
			again := e.standIn()
			again.cause = e.cause
			again.lostRaces = e.lostRaces
			again.assessed = e.assessed
			c.entries[i] = again
		}
	}
}

// refused reports whether the call is blocked and therefore to be counted nowhere.
func (c *call) refused() bool {
	if !c.rule.CountAuthorizedOnly {
		return false
	}
	outcomes, _ := c.results(true)
	return c.rule.blocks(outcomes)
}

// results returns the Outcome of each condition, and how long until it takes the
// same call again: nil where RetryAfter says so.
func (c *call) results(counted bool) (outcomes []Outcome, again []time.Duration) {
	if len(c.entries) == 1 {
		outcomes = c.kept().outcomes[:]
	} else {
		outcomes = make([]Outcome, len(c.entries))
	}
	for i, e := range c.entries {
		wait := e.result(counted, &outcomes[i])
		if e.condition.Cost > 1 && again == nil {
			again = make([]time.Duration, len(c.entries))
			for j := range i {
				again[j] = c.entries[j].result(counted, &outcomes[j])
			}
		}
		if again != nil {
			again[i] = wait
		}
	}
	return outcomes, again
}

// kept returns the room for what the caller keeps.
func (c *call) kept() *answer {
	switch {
	case c.answer != nil:
	case c.one.condition.Algorithm == LeakyBucket:
		a := new(struct {
			answer
			share share
		})
		c.answer, a.receipt.only.share = &a.answer, &a.share
	default:
		c.answer = new(answer)
	}
	return c.answer
}

// conclude sets d, which is zero, to the Decision of c.
func (c *call) conclude(d *Decision) {
	outcomes, again := c.results(true)
	if c.dry && c.rule.CountAuthorizedOnly && c.rule.blocks(outcomes) {
		outcomes, again = c.results(false)
	}
	c.rule.combine(d, outcomes, again)
	d.receipt = c.receipt
}
