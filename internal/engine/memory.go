package engine

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// decideInMemory decides p in process memory: each record where it is, under the lock of the
// store, one after the other. Nothing of it is under way when it ends, so it needs no round and
// nobody waits, and all of it but what the caller keeps is on the stack.
//
// It goes step by step, beginning with that of op, and sets out and the parts of a receipt, which
// are zero. Without parts, what is counted cannot be given back: that is for rules of one
// condition, and for calls that do not count. If it returns false, it has done nothing: the
// records are elsewhere, or a fallback is to decide.
func (p *Plan) decideInMemory(ctx context.Context, demands []Demand, op op, parts []Counted, out []Outcome) (ok bool) {
	fallback := p.engine.fallback() != nil
	if p.engine.main.items == nil || fallback && len(demands) > 1 || ctx.Err() != nil {
		return false
	}
	for i := range demands {
		if !brief(demands[i].Cost) {
			return false
		}
	}
	at := time.Now()
	for s, more := p.begin(op), true; more; s, more = p.next(s, out) {
		for i := s.from; i < s.to; i++ {
			var part *Counted
			if parts != nil {
				part = &parts[i]
			}
			switch {
			case s.op == opGiveBack:
				p.giveBackInMemory(i, part, &at, &out[i])
			case out[i].Blocked, out[i].Err != nil: // stays so
			default:
				p.askInMemory(s.op, i, &demands[i], &at, part, &out[i])
			}
		}
	}
	for i := range parts {
		if parts[i].key == "" { // there is no record
			parts[i].key = string(p.appendKey(nil, i, demands[i].Value))
		}
	}
	if fallback && out[0].failedOpen(p.Conditions[0].Limit.Max) {
		out[0] = Outcome{}
		return false
	}
	return true
}

// askInMemory decides condition i in its record, at the time at or later.
func (p *Plan) askInMemory(op op, i int, d *Demand, at *time.Time, part *Counted, out *Outcome) {
	of := &p.Conditions[i]
	if op > opAssess || of.Limit.Algorithm > record.Bucket || !p.askStored(op, i, d, at, part, out) {
		c := change{op: op, limit: p.limit(i, d), lockout: of.Lockout}
		if of.Limit.Algorithm == record.Leases {
			c.limit.ID = rand.Uint64()
		}
		p.changeInMemory(&c, i, d, at, part, out)
	}
}

// changeInMemory carries out c, which is about condition i.
func (p *Plan) changeInMemory(c *change, i int, d *Demand, at *time.Time, part *Counted, out *Outcome) {
	var room hashRoom
	head, tail := p.place(i, d.Value, &room)
	key, note, err := p.engine.main.visit(c, head, tail, at)
	*out = Outcome{Outcome: c.verdict.Outcome, Asked: true, Again: c.verdict.Again, Err: note}
	if err != nil {
		*out = Outcome{Asked: true, Err: err}
		out.Remaining = c.limit.Max
	}
	if part != nil {
		*part = Counted{key: key}
		if err == nil && c.op == opCount {
			part.hit = c.verdict.Hit.Brief()
		}
	}
}

// askStored is askInMemory for a window or a bucket, on the bytes of its record. If the store
// cannot keep the record, nothing has changed, and it returns false.
func (p *Plan) askStored(op op, i int, d *Demand, at *time.Time, part *Counted, out *Outcome) (ok bool) {
	of, main := &p.Conditions[i], p.engine.main
	limit, lockout := &of.Limit, &of.Lockout
	if d.Cost > 1 || d.Least > 0 {
		own := p.limit(i, d)
		limit = &own
	}
	if lockout.KeepHits && op == opCount {
		none := *lockout
		none.Length, lockout = 0, &none // as in [change.Apply]
	}
	var v record.Verdict
	var newer error
	var room hashRoom
	head, tail := p.place(i, d.Value, &room)
	key, err := main.items.Visit(head, tail, *at, func(now time.Time, found, room []byte) (value []byte, expiration int32, flags uint32) {
		var ban bool
		*at = now
		if value, expiration, ban, newer = v.DecideStored(record.InstantOf(now), limit, lockout, found, room, op == opCount); ban {
			flags = exchange.BanFlag
		}
		return value, expiration, flags
	})
	if err != nil || newer != nil {
		return false
	}
	p.engine.counts.Exchanges.Add(1)
	out.Outcome, out.Asked, out.Again = v.Outcome, true, v.Again
	if part != nil {
		part.key, part.hit = key, v.Hit.Brief()
	}
	return true
}

// giveBackInMemory takes back what a refused call has counted in condition i.
func (p *Plan) giveBackInMemory(i int, part *Counted, at *time.Time, out *Outcome) {
	if !part.hit.Counted() {
		return
	}
	main, of := p.engine.main, &p.Conditions[i]
	c := change{op: opGiveBack, limit: p.limit(i, &Demand{})}
	c.verdict.Hit = part.hit.Hit(&of.Limit)
	head, tail := main.items.Head(part.key)
	_, note, err := main.visit(&c, head, tail, at)
	part.hit = record.Brief{}
	if err = Join(note, err); err != nil {
		out.Err = Join(out.Err, err)
		return
	}
	main.engine.freed(part.key)
	out.Outcome, out.Again = c.verdict.Outcome, c.verdict.Again
}
