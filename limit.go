package throttler

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler/internal/engine"
)

// A Limit is a rule of one condition, prepared to be asked about many values: make it once by
// [Throttler.Limit]. It is safe for concurrent use.
type Limit struct {
	t    *Throttler
	rule *preparedRule
	of   Condition // without a Value
}

// Limit prepares a rule of one condition, whose Value does not matter. The error matches
// [ErrInvalidRule], also if the rule has several conditions, or one of [InFlight].
func (t *Throttler) Limit(rule Rule) (*Limit, error) {
	t.check(context.Background())
	p, err := t.prepare(&rule)
	if err != nil {
		return nil, err
	}
	if len(p.plan.Conditions) != 1 {
		return nil, rule.invalid(rule.kind(), fmt.Sprintf("%d conditions", len(p.plan.Conditions)), "one for a Limit")
	}
	of := rule.conditions()[0]
	if of.Algorithm == InFlight {
		return nil, rule.invalidAt(0, "Algorithm", InFlight, "one whose hits need not be given back, for a Limit")
	}
	own := p.rule.conditions()[0]
	own.Cost, own.Least = of.Cost, of.Least
	return &Limit{t, p, own}, nil
}

// Throttler returns the Throttler that l belongs to.
func (l *Limit) Throttler() *Throttler { return l.t }

// Rule returns the rule of l for this value, for what l does not do itself: Peek, Reset, Ban.
func (l *Limit) Rule(value string) Rule {
	of := l.of
	of.Value = value
	return l.rule.rule.with([]Condition{of})
}

// Authorize is [Throttler.Authorize] of the rule with this value.
func (l *Limit) Authorize(ctx context.Context, value string) (d Decision, err error) {
	l.t.check(ctx)
	of := [1]Condition{l.of}
	of[0].Value = value
	rule := l.rule.rule.with(of[:])
	l.t.authorize(ctx, l.rule, &rule, &d)
	return d, nil
}

// Take decides like Authorize, and returns the Outcome of the condition by value. It allocates
// nothing over a memstore, unless Observe or Conflict is set. The hits cannot be given back.
// With [Rule.Shadow], Blocked is always false.
func (l *Limit) Take(ctx context.Context, value string) (o Outcome) {
	if l.t.Observe != nil || l.t.Conflict != nil {
		d, _ := l.Authorize(ctx, value)
		o = d.Outcomes[0]
	} else {
		l.t.check(ctx)
		var out [1]engine.Outcome
		l.rule.plan.Take(ctx, []engine.Demand{{Value: value, Cost: l.of.Cost, Least: l.of.Least}}, out[:])
		of := &l.rule.plan.Conditions[0]
		o.set(of.Name, of.Limit.Max, &out[0])
	}
	o.Blocked = o.Blocked && !l.rule.plan.Shadow
	return o
}

// A preparedRule is a rule that was validated and prepared: all that its calls have in common, which
// is everything but the Value, Cost and Least of each condition. Programs have few rules, though
// they build them anew for each call, so prepared rules are looked up by what they say.
type preparedRule struct {
	plan *engine.Plan
	rule Rule // its conditions have no Value, Cost or Least
}

// plans remembers preparedRules, each at one of a few places by what it says. Programs that give
// each customer a limit of its own may have thousands.
type plans struct {
	once sync.Once
	all  []atomic.Pointer[preparedRule]
}

const (
	maxPlans = 4096
	places   = 8
)

// prepare returns rule prepared, or why it is invalid.
func (t *Throttler) prepare(rule *Rule) (*preparedRule, error) {
	conditions, decider := rule.conditions(), t.engine()
	at := rule.hash(conditions)
	t.plans.once.Do(func() { t.plans.all = make([]atomic.Pointer[preparedRule], maxPlans) })
	for i := range uint64(places) {
		p := t.plans.all[(at+i)%maxPlans].Load()
		if p == nil {
			at += i // is free
			break
		}
		if p.matchesValid(rule, conditions) {
			return p, nil
		}
	}
	if err := rule.validate(); err != nil {
		return nil, err
	}
	p := newPreparedRule(decider, rule)
	t.plans.all[at%maxPlans].Store(p)
	return p, nil
}

// planSeed is that of [Rule.hash].
var planSeed = maphash.MakeSeed()

// maxHashed is how many bytes of a name tell rules apart, the last ones.
const maxHashed = 64

// hash tells the rules of most programs apart.
func (r *Rule) hash(conditions []Condition) uint64 {
	const golden = 0x9e3779b97f4a7c15 // 1<<64 over the golden ratio: spreads what differs little
	h := maphash.String(planSeed, r.Identifier) + uint64(r.Lockout)
	for i := range conditions {
		c := &conditions[i]
		name := c.Name[max(len(c.Name)-maxHashed, 0):]
		h = (h ^ uint64(c.Max)) * golden
		h = (h ^ uint64(c.TTL) ^ uint64(c.Lockout)) * golden
		h += maphash.String(planSeed, name)
	}
	return h ^ h>>32
}

// newPreparedRule prepares a rule, which is valid. decider is nil for a Simulation.
func newPreparedRule(decider *engine.Engine, rule *Rule) *preparedRule {
	p := new(preparedRule)
	own := make([]Condition, 0, len(rule.conditions()))
	of := engine.Rule{Identifier: strings.Clone(rule.Identifier), Atomic: rule.CountAuthorizedOnly, Shadow: rule.Shadow}
	for _, c := range rule.conditions() {
		c.Value, c.Cost, c.Least = "", 0, 0
		// Of larger strings of the caller, such as a request, nothing else is to stay in memory.
		c.Name, c.Message = strings.Clone(c.Name), strings.Clone(c.Message)
		own = append(own, c)
		of.Conditions = append(of.Conditions, engine.Condition{
			Name: c.Name, Message: c.message(), Limit: c.limit(), Lockout: rule.lockout(&c), Prefetch: c.Prefetch,
		})
	}
	switch {
	case len(rule.Either) > 0:
		of.Mode = engine.Either
	case len(rule.All) > 0:
		of.Mode = engine.All
	default:
		of.Mode = engine.First
	}
	p.rule = rule.with(own)
	p.rule.Identifier = of.Identifier
	p.plan = engine.NewPlan(decider, of)
	return p
}

// matchesValid reports whether p was made of rule, which has these conditions, and rule is valid: of
// what is not prepared, their costs are.
func (p *preparedRule) matchesValid(rule *Rule, conditions []Condition) bool {
	r := &p.rule
	own := r.conditions()
	if len(own) != len(conditions) || len(r.Either) != len(rule.Either) || r.Identifier != rule.Identifier ||
		r.Lockout != rule.Lockout || r.LockoutGrowth != rule.LockoutGrowth || r.MaxLockout != rule.MaxLockout ||
		r.CountAuthorizedOnly != rule.CountAuthorizedOnly || r.Shadow != rule.Shadow {
		return false
	}
	for i := range own {
		a, b := &own[i], &conditions[i]
		if a.Name != b.Name || a.Max != b.Max || a.TTL != b.TTL || a.Algorithm != b.Algorithm || a.Message != b.Message ||
			a.Lockout != b.Lockout || a.Period != b.Period || a.Prefetch != b.Prefetch {
			return false
		}
		if uint(b.Cost) > uint(b.Max) || uint(b.Least) > uint(max(b.Cost, 1)) || a.Prefetch > 0 && b.Least > 0 {
			return false
		}
	}
	return len(rule.All) == len(r.All) && len(rule.First) == len(r.First)
}

// fewConditions is for how many a call finds memory on the stack.
const fewConditions = 4

// A room is memory for a call of more conditions, to be used again.
type room struct {
	demands []engine.Demand
	out     []engine.Outcome
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// room returns memory for a call: few and told if they are enough, else that of many, which is
// to be released after the call.
func (p *preparedRule) room(few []engine.Demand, told []engine.Outcome) (demands []engine.Demand, out []engine.Outcome, many *room) {
	n := len(p.plan.Conditions)
	if n <= len(told) {
		return few, told[:n], nil
	}
	if many = rooms.Get().(*room); cap(many.out) < n {
		many.demands, many.out = make([]engine.Demand, 0, n), make([]engine.Outcome, n)
	}
	many.out = many.out[:n]
	return many.demands[:0], many.out, many
}

// release ends the use of r, unless it is nil.
func (r *room) release() {
	if r == nil {
		return
	}
	clear(r.demands[:cap(r.demands)]) // of the callers' strings nothing is to stay in memory
	clear(r.out)
	rooms.Put(r)
}

// demands appends to few what a call of rule, which p is of, asks of each condition.
func (p *preparedRule) demands(rule *Rule, few []engine.Demand) []engine.Demand {
	conditions := rule.conditions()
	for i := range conditions {
		c := &conditions[i]
		few = append(few, engine.Demand{Value: c.Value, Cost: c.Cost, Least: c.Least})
	}
	return few
}
