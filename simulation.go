package throttler

import "time"

// A Simulation decides calls at times that the caller gives, such as those of a web
// server's log, to find out what a rule would have done. It decides each call as
// [Throttler.Authorize] would at that time, with its records in process memory.
//
// The zero Simulation is ready to use. It must not be used by several goroutines at
// once.
type Simulation struct {
	records map[string][]byte // as they would be stored
	purgeAt int               // the number of records at which those that have ended are removed
}

// Authorize decides and counts a call at the time at. The error matches
// [ErrInvalidRule]. Calls must come in the order of their times.
func (s *Simulation) Authorize(at time.Time, rule Rule) (d Decision, err error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	now := instantOf(at)
	conditions := rule.conditions()
	verdicts := make([]verdict, len(conditions))
	outcomes := make([]Outcome, len(conditions))
	again := make([]time.Duration, len(conditions))
	decideAll := func(count bool) {
		for i := range conditions {
			c := &conditions[i]
			if !count && outcomes[i].Blocked {
				continue
			}
			stored, _ := decode(s.records[key(rule.Identifier, c.Name, c.Value)])
			verdicts[i] = decide(now, c, rule.lockout(c), stored, count)
			outcomes[i], again[i] = verdicts[i].outcome, verdicts[i].again
		}
	}
	decideAll(true)
	if rule.CountAuthorizedOnly && rule.blocks(outcomes) {
		decideAll(false) // a refused call counts nowhere
	}
	for i := range conditions {
		if verdicts[i].store {
			s.put(now, key(rule.Identifier, conditions[i].Name, conditions[i].Value), verdicts[i].next)
		}
	}
	rule.combine(&d, outcomes, again)
	return d, nil
}

// put stores a record, and sometimes removes those that have ended.
func (s *Simulation) put(now instant, key string, r record) {
	if s.records == nil {
		s.records = make(map[string][]byte)
	}
	s.records[key] = r.encode()
	if len(s.records) <= max(s.purgeAt, 1000) {
		return
	}
	for key, value := range s.records {
		if r, _ := decode(value); r.end() <= now {
			delete(s.records, key)
		}
	}
	s.purgeAt = 2 * len(s.records)
}
