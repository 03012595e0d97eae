package engine

import "context"

// Authorize decides a call of p and counts it. It sets r and out, which are zero; out has the
// outcome of each condition.
func (p *Plan) Authorize(ctx context.Context, demands []Demand, r *Receipt, out []Outcome) {
	if r.plan = p; p.decideInMemory(ctx, demands, opCount, r.parts(), out) {
		return
	}
	c := p.newCall(demands)
	c.decide(ctx, opCount, out)
	c.writeReceipt(r)
	c.release()
}

// Take is Authorize of a rule of one condition, for a caller that gives nothing back.
func (p *Plan) Take(ctx context.Context, demands []Demand, out []Outcome) {
	if p.decideInMemory(ctx, demands, opCount, nil, out) {
		return
	}
	c := p.newCall(demands)
	c.decide(ctx, opCount, out)
	c.release()
}

// Peek sets out, which is zero, to what Authorize would, and changes nothing.
func (p *Plan) Peek(ctx context.Context, demands []Demand, out []Outcome) {
	p.ask(ctx, demands, opLook, out)
}

// Refund takes back the newest hits, as many as each condition's Cost, and sets out, which is
// zero, to what is left.
func (p *Plan) Refund(ctx context.Context, demands []Demand, out []Outcome) {
	p.engine.hands.drop(p.Keys(demands)) // the newest may be among them
	p.ask(ctx, demands, opRefund, out)
}

// ask decides a call of p that counts nothing.
func (p *Plan) ask(ctx context.Context, demands []Demand, op op, out []Outcome) {
	if p.decideInMemory(ctx, demands, op, nil, out) {
		return
	}
	c := p.newCall(demands)
	c.decide(ctx, op, out)
	if op == opRefund {
		for _, e := range c.entries {
			if e.Failed() == nil {
				c.engine.freed(e.Key)
			}
		}
	}
	c.release()
}
