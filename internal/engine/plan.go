package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Mode says how the conditions of a rule decide together.
type Mode uint8

const (
	Either Mode = iota // any that is full blocks the call
	All                // only all of them block it
	First              // the first that has room counts it, and the others are not asked
)

// A Rule is what all calls of a rule have in common.
type Rule struct {
	Identifier string
	Mode       Mode
	Atomic     bool // a refused call counts in no condition
	Shadow     bool // a refused call is authorized all the same
	Conditions []Condition
}

// A Condition is one of a Rule, without what differs from call to call.
type Condition struct {
	Name, Message string
	Limit         record.Limit
	Prefetch      int
	Lockout       record.Lockout // KeepHits is the Plan's to set
}

// A Demand is what one call asks of one condition.
type Demand struct {
	Value       string
	Cost, Least int
}

// A Plan is a Rule prepared for an Engine. Receipts refer to it.
type Plan struct {
	Rule
	engine   *Engine
	prepared []preparedCondition // one for each condition

	once    sync.Once
	waiting *Plan // see [Plan.patient]
}

// A preparedCondition is what a Plan knows of one condition besides: of its keys, and of its
// period.
type preparedCondition struct {
	prefix string     // of the keys of usual values; "": none has a plain key
	head   items.Head // of these keys, if the store is in memory
	near   atomic.Pointer[record.Near]
}

// NewPlan prepares a rule, which must be valid, for e, or for a Simulation if e is nil. It keeps
// rule.
func NewPlan(e *Engine, rule Rule) *Plan {
	p := &Plan{Rule: rule, engine: e, prepared: make([]preparedCondition, len(rule.Conditions))}
	for i := range rule.Conditions {
		c := &rule.Conditions[i]
		c.Limit.Prepare()
		c.Lockout.KeepHits = p.assesses() // another condition may refuse the call
		own := &p.prepared[i]
		if own.prefix = record.Prefix(rule.Identifier, c.Name); e != nil && e.main.items != nil && own.prefix != "" {
			own.head, _ = e.main.items.Head(own.prefix)
		}
	}
	return p
}

// patient returns p for a call that can wait: it leaves no hit and sets no ban until it is
// authorized.
func (p *Plan) patient() *Plan {
	p.once.Do(func() {
		rule := p.Rule
		rule.Atomic, rule.Conditions = true, append([]Condition(nil), p.Conditions...)
		for i := range rule.Conditions {
			rule.Conditions[i].Lockout.Length = 0
		}
		p.waiting = &Plan{Rule: rule, engine: p.engine, prepared: p.prepared}
	})
	return p.waiting
}

// assesses reports whether a call looks at all conditions before it counts in any.
func (p *Plan) assesses() bool { return p.Atomic && p.Mode != First && len(p.Conditions) > 1 }

// limit returns the limit of condition i for one call.
func (p *Plan) limit(i int, d *Demand) record.Limit {
	limit := p.Conditions[i].Limit
	limit.Cost, limit.Least = d.Cost, d.Least
	if limit.Algorithm == record.Calendar {
		limit.Near = p.prepared[i].nearNow(limit.Period)
	}
	return limit
}

// nearNow returns what the period of a calendar comes to now. It is looked up once in a period.
func (own *preparedCondition) nearNow(of *record.Period) *record.Near {
	now, near := record.InstantOf(time.Now()), own.near.Load()
	if near == nil || now < near[0].Start || now >= near[0].End {
		near = of.Near(now)
		own.near.Store(near)
	}
	return near
}

// An Outcome is the answer of one condition. The zero Outcome is of one that was not asked.
type Outcome struct {
	record.Outcome
	Asked     bool
	Again     time.Duration // until it has room for the same call
	LostRaces int           // how often it was decided anew as another process was faster
	Err       error         // see the Err of the root's Outcome
}

// failedOpen reports whether neither the backend nor a fallback decided o, which allows most
// hits.
func (o *Outcome) failedOpen(most int) bool { return o.Err != nil && !o.Blocked && o.Remaining == most }

// A step of a decision: op is done to the conditions from one to before another.
type step struct {
	op       op
	from, to int
}

// begin returns the first step of a decision that is to count (opCount), to look (opLook) or
// to refund (opRefund).
//
// Wherever the records are, a decision is the same loop: do a step, note its outcomes, and ask
// [Plan.next] what follows.
func (p *Plan) begin(op op) step {
	switch n := len(p.Conditions); {
	case op == opRefund:
		return step{op, 0, n}
	case p.Mode == First:
		return step{op, 0, 1}
	case op == opCount && p.assesses():
		return step{opAssess, 0, n}
	default:
		return step{op, 0, n}
	}
}

// next returns the step that follows last by the outcomes so far, and whether there is one.
//
// A rule that is atomic and has several conditions takes two: the first one only assesses,
// and the second counts if nothing blocks. If the call then turns out to be refused after all,
// since others came between, what it has counted is given back. What blocks stays decided:
// later steps leave it out.
func (p *Plan) next(last step, out []Outcome) (next step, ok bool) {
	n := len(p.Conditions)
	switch {
	case p.Mode == First:
		return step{last.op, last.to, last.to + 1}, last.to < n && out[last.from].Blocked
	case !p.assesses():
		return step{}, false
	case last.op == opAssess:
		return step{opCount, 0, n}, !p.Blocks(out)
	case last.op == opCount:
		return step{opGiveBack, 0, n}, p.Blocks(out)
	case last.op == opLook:
		return step{opGlance, 0, n}, p.Blocks(out)
	}
	return step{}, false
}

// Blocks reports whether outcomes block the call: any of Either, every one of All and First.
func (p *Plan) Blocks(out []Outcome) bool {
	any := p.Mode == Either
	for i := range out {
		if out[i].Blocked == any {
			return any
		}
	}
	return !any
}

// RetryAfter returns when a call that the outcomes block could be authorized: with Either
// when the last condition has room, else when the first one has. With Either that may be a
// condition that this call has filled.
func (p *Plan) RetryAfter(out []Outcome) time.Duration {
	wait := out[0].Again
	for i := range out[1:] {
		if again := out[i+1].Again; p.Mode == Either {
			wait = max(wait, again)
		} else {
			wait = min(wait, again)
		}
	}
	return wait
}
