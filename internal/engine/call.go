package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// A call is one decision on its way through the backends: an entry for each condition.
type call struct {
	job
	one     entry // of a call with one condition
	scratch scratch
}

// A job is all of a call that is not kept when the call is used again.
type job struct {
	engine  *Engine
	plan    *Plan
	entries []*entry // in the rule's order

	begun    bool     // first is in use
	spent    bool     // it has spent hits in hand
	replaced []*entry // were left, and the fallback has decided in their place
	gaveBack bool     // what it has counted, and counts yet, is given back

	first coalesce.Round
}

// A scratch is the memory that a call takes besides itself. A call that is used again has it
// already.
type scratch struct {
	several  []entry
	list     []*entry
	keys     []byte            // of all entries, one after the other
	keyEnds  []int             // where each of them ends
	sent     []*coalesce.Entry // of the round that is asked about
	coalesce coalesce.Scratch
}

const maxSeveral = 64 // conditions for which a call keeps its scratch

// calls holds used calls for reuse: see [call.idle].
var calls = sync.Pool{New: func() any { return new(call) }}

// newCall returns the call of p, with all its conditions undecided.
func (p *Plan) newCall(demands []Demand) *call {
	c := calls.Get().(*call)
	c.engine, c.plan = p.engine, p
	c.entries = c.undecided(len(demands))
	s := &c.scratch
	s.keys, s.keyEnds = s.keys[:0], s.keyEnds[:0]
	for i, e := range c.entries {
		e.set(&p.Conditions[i], p.limit(i, &demands[i]))
		s.keys = p.appendKey(s.keys, i, demands[i].Value)
		s.keyEnds = append(s.keyEnds, len(s.keys))
	}
	all, begin := string(s.keys), 0 // the keys are parts of one string
	for i, end := range s.keyEnds {
		c.entries[i].Key, begin = all[begin:end], end
	}
	return c
}

// undecided returns n entries.
func (c *call) undecided(n int) []*entry {
	s := &c.scratch
	if n > cap(s.list) {
		s.list, s.sent = make([]*entry, 0, n), make([]*coalesce.Entry, 0, n)
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

// release ends the use of c by its caller.
func (c *call) release() {
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

// clear makes c a call that is not made yet, with the scratch that a usual call takes.
func (c *call) clear() {
	if len(c.entries) == 1 {
		c.one = entry{}
	}
	c.job = job{}
	s := &c.scratch
	s.coalesce.Clear()
	if cap(s.several) > maxSeveral {
		s.several, s.list, s.sent, s.keys, s.keyEnds = nil, nil, nil, nil, nil
	}
	clear(s.several)
	clear(s.list)
	clear(s.sent[:cap(s.sent)])
	s.several, s.list = s.several[:0], s.list[:0]
}

// runSteps decides c step by step, beginning with that of op, and sets out, which is zero.
func (c *call) runSteps(ctx context.Context, op op, out []Outcome) {
	p := c.plan
	for s, more := p.begin(op), true; more; s, more = p.next(s, out) {
		c.do(ctx, s)
		for i := s.from; i < s.to; i++ {
			c.entries[i].result(s.op, &out[i])
		}
	}
	if c.spent && !c.gaveBack && p.assesses() && p.Blocks(out) {
		c.giveBack(ctx)
		for i, e := range c.entries {
			if e.from == inHand {
				e.result(opGiveBack, &out[i])
			}
		}
	}
}

// do does one step.
func (c *call) do(ctx context.Context, s step) {
	switch s.op {
	case opGlance:
		return // opLook has glanced as well
	case opGiveBack:
		c.giveBack(ctx)
		return
	case opCount:
		c.reopen()
	}
	entries := c.entries[s.from:s.to]
	if s.op != opRefund && ctx.Err() == nil {
		c.spend(s)
		c.recall(entries)
	}
	if s.op == opCount {
		c.fetch(s)
	}
	first := &c.first
	if c.begun {
		first = new(coalesce.Round) // c.first may be under way still
	} else {
		c.begun = true
		first.Scratch = &c.scratch.coalesce
	}
	c.send(ctx, c.engine.main, first, s.op, entries, func(e *entry) bool { return e.from == nowhere && e.cause == nil })
	c.stock(s)
	if c.engine.fallback() != nil && c.standIns(entries) {
		// The fallback is asked even if ctx has ended over a backend that hangs.
		c.send(context.WithoutCancel(ctx), c.engine.fallback(), new(coalesce.Round), s.op, entries, func(e *entry) bool { return e.from == nowhere })
		c.forgetBanned(entries)
	}
}

// forgetBanned forgets the backend's records of the values that the fallback has banned: when
// such a ban ends, counting starts anew. A ban that keeps its hits may be lifted, and then what
// was seen counts.
func (c *call) forgetBanned(entries []*entry) {
	for _, e := range entries {
		if e.beside != nil && e.op <= opAssess && e.Failed() == nil && e.verdict.Outcome.NewBan && !e.lockout.KeepHits {
			c.engine.main.Forget(e.Key)
		}
	}
}

// recall decides the entries that the block cache can answer.
func (c *call) recall(entries []*entry) {
	blocks := c.engine.blocks
	if blocks == nil || c.begun && c.plan.Mode != First {
		return
	}
	now := record.InstantOf(time.Now())
	for _, e := range entries {
		if e.from != nowhere || e.limit.Algorithm == record.Leases {
			continue
		}
		r, ok := blocks.Get(e.Key, now)
		if !ok {
			continue
		}
		e.op = opAssess // the others are asked what they would do
		if store := e.Apply(now, &r); e.verdict.Outcome.Blocked && !store {
			e.from = recalled
			c.engine.cacheHits.Add(1)
		}
	}
}

// send asks b about the entries that are chosen.
func (c *call) send(ctx context.Context, b *backend, r *coalesce.Round, op op, entries []*entry, chosen func(*entry) bool) {
	sent := c.scratch.sent[:0]
	for _, e := range entries {
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
	b.ask(ctx, r)
	r.Entries = nil // the scratch is used again
}

// standIns puts an entry for the fallback in the place of each whose backend failed. It
// reports whether there are any such entries, those of an earlier step among them.
func (c *call) standIns(entries []*entry) (any bool) {
	for i, e := range entries {
		if e.from == asked && e.Failed() != nil {
			entries[i] = e.standIn()
			if e.Left != nil {
				c.replaced = append(c.replaced, e)
			}
		}
		if e := entries[i]; e.from == nowhere {
			any = true
			e.beside = c.engine.fallback().beside(e.Key, e.limit.Max)
		}
	}
	return any
}

// reopen makes the conditions that were assessed and have room undecided again, to be counted.
func (c *call) reopen() {
	for i, e := range c.entries {
		if e.from == asked && e.op == opAssess && e.Failed() == nil && !e.verdict.Outcome.Blocked {
			again := e.standIn()
			again.cause = e.cause
			again.Follow(&e.Entry)
			c.entries[i] = again
		}
	}
}

// giveBack takes back what c has counted before it turned out to be refused, even
// if ctx ends then.
func (c *call) giveBack(ctx context.Context) {
	var entries, of, left []*entry
	for i, e := range slices.Concat(c.entries, c.replaced) {
		switch {
		case c.pending(e):
			left = append(left, e)
		case e.counted() == (record.Hit{}) || i < len(c.entries) && c.putBack(i, e):
		default:
			back := e.giveBack()
			if i < len(c.entries) && c.plan.prefetches(i) {
				back.unspent = c.engine.hands.unspent(e.Key)
			}
			entries, of = append(entries, back), append(of, e)
		}
	}
	c.gaveBack = true
	askAll(ctx, entries, true)
	for i, back := range entries {
		of[i].verdict.Hit = record.Hit{} // even if that is not known
		if err := back.Failed(); err != nil {
			of[i].Note = Join(of[i].Note, err)
			if back.Left != nil {
				of[i].verdict.Outcome.Cost = 0 // it goes on
			}
			continue
		}
		c.engine.freed(of[i].Key)
		of[i].verdict.Outcome, of[i].verdict.Again = back.verdict.Outcome, back.verdict.Again // as it was found, with or without others' hits since
	}
	if len(left) > 0 {
		go c.engine.giveBackLate(left)
	}
}

// giveBackLate takes back what entries count that were left while they were under
// way. It ends when the client has answered or given up.
func (e *Engine) giveBackLate(left []*entry) {
	ctx := context.Background()
	var entries []*entry
	for _, of := range left {
		of.Wait(ctx)
		if of.Err == nil && of.verdict.Hit != (record.Hit{}) {
			entries = append(entries, of.giveBack())
		}
	}
	askAll(ctx, entries, true)
	for _, back := range entries {
		if back.Failed() == nil {
			e.freed(back.Key)
		}
	}
}

// pending reports whether e was left, may count yet, and is not given back then.
func (c *call) pending(e *entry) bool {
	return e.Left != nil && !e.Unsent && e.op == opCount && !c.gaveBack
}

// home returns where e is settled: where it was decided, or else where it should have been.
func (c *call) home(e *entry) *backend {
	if e.from == asked && (e.Failed() == nil || c.pending(e)) {
		return e.backend
	}
	return c.engine.main
}

// writeReceipt writes down in r, which is of its plan, what c has counted, and what it may have.
func (c *call) writeReceipt(r *Receipt) {
	parts := r.parts()
	for i, e := range c.entries {
		h := e.counted()
		if c.pending(e) || !brief(h.Cost) || c.home(e) != c.engine.main || len(c.replaced) > 0 {
			r.in.Store(c.contents())
			return
		}
		parts[i] = Counted{e.Key, h.Brief()}
	}
}

// contents returns what a receipt of c has, if its parts cannot hold that.
func (c *call) contents() *contents {
	in := &contents{shadow: c.plan.Shadow}
	add := func(i int, e *entry) {
		of := newReservation(c.home(e), e.Key, &c.plan.Conditions[i], e.counted())
		if c.pending(e) {
			of.left = []*entry{e}
		}
		in.all = append(in.all, of)
	}
	for i, e := range c.entries {
		add(i, e)
	}
	for _, e := range c.replaced {
		if c.pending(e) {
			// beside that of the fallback, of the same condition
			add(slices.IndexFunc(c.entries, func(of *entry) bool { return of.Key == e.Key }), e)
		}
	}
	return in
}
