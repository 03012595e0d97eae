package throttler

import (
	"context"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Limit is a rule of one condition, prepared to be asked about many values: make it once by
// [Throttler.Limit]. It is safe for concurrent use.
type Limit struct {
	t    *Throttler
	of   Condition // without a Value
	plan *plan
}

// Limit prepares a rule of one condition, whose Value does not matter. The error matches
// [ErrInvalidRule], also if the rule has several conditions, or one of [InFlight].
func (t *Throttler) Limit(rule Rule) (*Limit, error) {
	t.check(context.Background())
	p, err := t.planOf(&rule)
	if err != nil {
		return nil, err
	}
	if len(p.limits) != 1 {
		return nil, rule.invalid(rule.kind(), fmt.Sprintf("%d conditions", len(p.limits)), "one for a Limit")
	}
	if p.limits[0].Algorithm == record.Leases {
		return nil, rule.invalidAt(0, "Algorithm", InFlight, "one whose hits need not be given back, for a Limit")
	}
	of := p.rule.conditions()[0]
	of.Cost, of.Least = rule.conditions()[0].Cost, rule.conditions()[0].Least
	return &Limit{t, of, p}, nil
}

// Throttler returns the Throttler that l belongs to.
func (l *Limit) Throttler() *Throttler { return l.t }

// Rule returns the rule of l for this value, for what l does not do itself: Peek, Reset, Ban.
func (l *Limit) Rule(value string) Rule {
	of := l.of
	of.Value = value
	return l.rule(of)
}

// Authorize is [Throttler.Authorize] of the rule with this value.
func (l *Limit) Authorize(ctx context.Context, value string) (d Decision, err error) {
	l.t.check(ctx)
	of := l.of
	of.Value = value
	if l.inPlace(ctx) && l.plan.decideOne(&l.plan.rule, &of, &d) {
		return d, nil
	}
	return l.t.Authorize(ctx, l.rule(of))
}

// Take decides like Authorize, and returns the Outcome of the condition by value. It allocates
// nothing over a memstore, unless Observe, Conflict or BlockCache is set. The hits cannot be
// given back. With [Rule.Shadow], Blocked is always false.
func (l *Limit) Take(ctx context.Context, value string) (o Outcome) {
	l.t.check(ctx)
	of := l.of
	of.Value = value
	if !l.takeInPlace(ctx, &of, &o) {
		d, err := l.t.Authorize(ctx, l.rule(of))
		if err != nil {
			return Outcome{Blocked: true, Err: err} // cannot be: the rule is valid, whatever the value
		}
		o = d.Outcomes[0]
	}
	o.Blocked = o.Blocked && !l.plan.rule.Shadow
	return o
}

// takeInPlace is Take where the record is, if that can be.
func (l *Limit) takeInPlace(ctx context.Context, of *Condition, o *Outcome) (ok bool) {
	if !l.inPlace(ctx) || !brief(of.Cost) {
		return false
	}
	var a record.Answer
	at := time.Now()
	own := &l.plan.limits[0]
	if _, err := l.plan.visit(0, of, &at, true, &a); err != nil {
		return false
	}
	o.set(own.name, own.Max, &a.Outcome)
	return true
}

func (l *Limit) inPlace(ctx context.Context) bool {
	t := l.t
	return l.plan.home.memory != nil && l.plan.inPlace && t.BlockCache <= 0 && t.Conflict == nil && t.Observe == nil && ctx.Err() == nil
}

// rule returns the rule of l with this condition.
func (l *Limit) rule(of Condition) Rule {
	return l.plan.rule.with([]Condition{of})
}
