package engine

import "context"

// Authorize decides a call of p and counts it. It sets r and out, which are zero; out has the
// outcome of each condition.
func (p *Plan) Authorize(ctx context.Context, demands []Demand, r *Receipt, out []Outcome) {
	p.run(ctx, demands, opCount, r, out)
}

// Take is Authorize of a rule of one condition, for a caller that gives nothing back.
func (p *Plan) Take(ctx context.Context, demands []Demand, out []Outcome) {
	p.run(ctx, demands, opCount, nil, out)
}

// Peek sets out, which is zero, to what Authorize would, and changes nothing.
func (p *Plan) Peek(ctx context.Context, demands []Demand, out []Outcome) {
	p.run(ctx, demands, opLook, nil, out)
}

// Refund takes back the newest hits, as many as each condition's Cost, and sets out, which is
// zero, to what is left.
func (p *Plan) Refund(ctx context.Context, demands []Demand, out []Outcome) {
	keys := p.Keys(demands)
	p.engine.hands.drop(keys) // the newest may be among them
	p.run(ctx, demands, opRefund, nil, out)
	for _, key := range keys {
		p.engine.freed(key)
	}
}

// run does op for a call of p, in process memory if it can, and sets out, and r unless that is nil.
func (p *Plan) run(ctx context.Context, demands []Demand, op op, r *Receipt, out []Outcome) {
	var parts []Counted
	if r != nil {
		r.plan, parts = p, r.parts()
	}
	if p.decideInMemory(ctx, demands, op, parts, out) || p.decideInHand(ctx, demands, op, parts, out) {
		return
	}
	c := p.newCall(demands)
	c.runSteps(ctx, op, out)
	if r != nil {
		c.writeReceipt(r)
	}
	c.release()
}
