package throttler

import (
	"context"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// decideInPlace sets d, which is zero, to the Decision of rule, and counts it, if it can be
// decided in place. If not, nothing has changed, and the rule is for a [call].
//
// A call of windows and buckets over package memstore is decided where its records are, each
// under the lock of the store, one after the other. Nothing of it is under way when it ends,
// so it needs no round and nobody waits: all of it but what the caller keeps is on the stack.
func (t *Throttler) decideInPlace(ctx context.Context, rule *Rule, p *plan, d *Decision) (ok bool) {
	if p.home.memory == nil || !p.inPlace || t.BlockCache > 0 || t.Conflict != nil || ctx.Err() != nil {
		return false
	}
	conditions := rule.conditions()
	if len(conditions) == 1 {
		return p.decideOne(rule, &conditions[0], d)
	}
	for i := range conditions {
		if !brief(conditions[i].Cost) {
			return false
		}
	}
	var few [4]time.Duration // until each condition has room for the same call
	x := inPlace{kept: p.keep(), at: time.Now()}
	again := few[:]
	if n := len(conditions); n > len(few) {
		again = make([]time.Duration, n)
	}
	toAssess := rule.toAssess()
	switch {
	case toAssess && !x.ask(p, conditions, again, true),
		!(toAssess && rule.blocks(x.outcomes)) && !x.ask(p, conditions, again, false),
		toAssess && !x.assessing && rule.blocks(x.outcomes):
		c := t.newCall(rule, p)
		x.handOver(c, again)
		c.goOn(ctx, x.assessing)
		c.end(d)
		return true
	}
	for i := range conditions {
		c := &x.counted()[i]
		c.key = p.keyOf(i, &conditions[i], c.key)
	}
	rule.combine(d, x.outcomes, again, x.messages)
	d.receipt = x.receipt
	return true
}

// decideOne is decideInPlace for a rule of one condition, of. If its record cannot be changed,
// nothing has changed.
func (p *plan) decideOne(rule *Rule, of *Condition, d *Decision) (ok bool) {
	if !brief(of.Cost) {
		return false
	}
	var a record.Answer
	at := time.Now()
	key, err := p.visit(0, of, &at, true, &a)
	if err != nil {
		return false
	}
	k := new(keptOne)
	k.receipt.of, k.receipt.one[0] = p, counted{p.keyOf(0, of, key), a.Hit}
	o := &k.outcomes[0]
	o.set(p.limits[0].name, p.limits[0].Max, &a.Outcome)
	d.Status, d.Outcomes, d.WouldBlock, d.receipt = Authorized, k.outcomes[:], o.Blocked, &k.receipt
	if o.Blocked && !rule.Shadow {
		d.Status, d.RetryAfter = Blocked, a.Again
		k.messages[0] = p.limits[0].message
		d.Messages = k.messages[:]
	}
	return true
}

// An inPlace is a call that is decided in place.
type inPlace struct {
	kept                // what is decided of each condition
	at        time.Time // when the clock was last read
	assessing bool      // the round that is under way counts nothing
	done      int       // how many conditions it has decided
}

// ask decides the conditions that are not blocked yet, up to the first one that fails. It
// counts them unless they are to be assessed.
func (x *inPlace) ask(p *plan, conditions []Condition, again []time.Duration, assess bool) (ok bool) {
	x.assessing = assess
	for x.done = 0; x.done < len(conditions); x.done++ {
		i := x.done
		if x.outcomes[i].Blocked {
			continue
		}
		var a record.Answer
		key, err := p.visit(i, &conditions[i], &x.at, !assess, &a)
		if err != nil {
			return false
		}
		x.outcomes[i].set(p.limits[i].name, p.limits[i].Max, &a.Outcome)
		again[i] = a.Again
		x.counted()[i] = counted{key, a.Hit}
		if len(p.rule.First) > 0 && !a.Outcome.Blocked {
			x.skip(p)
		}
	}
	return true
}

// skip leaves out the conditions of First behind the one that counts.
func (x *inPlace) skip(p *plan) {
	for x.done++; x.done < len(x.outcomes); x.done++ {
		l := &p.limits[x.done]
		x.outcomes[x.done].setUnasked(l.name, l.Max)
	}
}

// visit decides condition i, which is of, in its record, at the time at or later. It returns
// the key as the store keeps it.
func (p *plan) visit(i int, of *Condition, at *time.Time, count bool, a *record.Answer) (key string, err error) {
	l := &p.limits[i]
	limit, lockout := &l.Limit, &l.lockout
	if of.Cost > 1 || of.Least > 0 {
		own := l.limit(of)
		limit = &own
	}
	if lockout.KeepHits && count {
		none := *lockout
		none.Length, lockout = 0, &none // as in [entry.Apply]
	}
	var bad error
	head, tail := p.place(i, of.Value)
	key, err = p.home.memory.Visit(head, tail, *at, func(now time.Time, found, room []byte) (value []byte, expiration int32, flags uint32) {
		var ban bool
		*at = now
		if value, expiration, ban, bad = a.DecideStored(record.InstantOf(now), limit, lockout, found, room, count); ban {
			flags = exchange.BanFlag
		}
		return value, expiration, flags
	})
	p.home.Visited()
	if bad != nil {
		err = bad
	}
	return key, err
}

// handOver has c go on where x could not.
func (x *inPlace) handOver(c *call, again []time.Duration) {
	for i, e := range c.entries {
		o := &x.outcomes[i]
		if i >= x.done && !(o.Blocked && !x.assessing) {
			continue
		}
		e.begin(c.plan.home, opCount, e.Key)
		e.from, e.Again = asked, again[i]
		e.Outcome = record.Outcome{
			Blocked: o.Blocked, Banned: o.Banned, NewBan: o.NewBan, Cost: o.Cost, Remaining: o.Remaining,
			RetryAfter: o.RetryAfter, ResetAfter: o.ResetAfter,
		}
		e.Hit = x.counted()[i].hit.Hit(&e.limit)
	}
}

// goOn decides what is left of c: conditions that are not decided, or hits to be given back.
func (c *call) goOn(ctx context.Context, assessing bool) {
	switch {
	case len(c.rule.First) > 0:
		c.askInOrder(ctx)
	case !assessing || c.assess(ctx):
		c.count(ctx)
	}
}
