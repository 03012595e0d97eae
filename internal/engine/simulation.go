package engine

import (
	"math/rand/v2"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Simulation decides calls at times that the caller gives. The zero Simulation has no records.
type Simulation struct {
	records map[string][]byte // as they would be stored
	purgeAt int               // the number of records at which those that have ended are removed
}

// Authorize decides a call of p at now, and sets out, which is zero.
func (s *Simulation) Authorize(now record.Instant, p *Plan, demands []Demand, out []Outcome) {
	keys := p.Keys(demands)
	for step, more := p.begin(opCount), true; more; step, more = p.next(step, out) {
		for i := step.from; i < step.to; i++ {
			if out[i].Blocked {
				continue
			}
			c := change{op: step.op, limit: p.limit(i, &demands[i]), lockout: p.Conditions[i].Lockout}
			c.limit.ID = rand.Uint64()
			r, _ := record.Decode(s.records[keys[i]])
			if c.Apply(now, &r) {
				s.put(now, keys[i], &r)
			}
			out[i] = Outcome{Outcome: c.verdict.Outcome, Asked: true, Again: c.verdict.Again}
		}
	}
}

// put stores a record, and sometimes removes those that have ended.
func (s *Simulation) put(now record.Instant, key string, r *record.Record) {
	if s.records == nil {
		s.records = make(map[string][]byte)
	}
	s.records[key] = r.Encode()
	if len(s.records) <= max(s.purgeAt, 1000) {
		return
	}
	for key, value := range s.records {
		if r, _ := record.Decode(value); r.End() <= now {
			delete(s.records, key)
		}
	}
	s.purgeAt = 2 * len(s.records)
}
