package throttler

import "time"

// A Simulation decides calls at times of the caller's choice, with its records in
// the memory of the process. It replays what has happened, as a web server's log
// does, to tell what rules would have made of it. It decides each call as
// [Throttler.Authorize] would have at that time.
//
// The zero Simulation is ready to use. It is for one goroutine.
type Simulation struct {
	records map[string][]byte // as they would be stored
	purgeAt int               // how many records there may be before those at their end are removed
}

// Authorize decides and counts a call at a time, which must not be before that of
// an earlier call. The error matches [ErrInvalidRule].
func (s *Simulation) Authorize(at time.Time, rule Rule) (Decision, error) {
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
		decideAll(false) // what has room counts nothing of a refused call
	}
	for i := range conditions {
		if verdicts[i].store {
			s.put(now, key(rule.Identifier, conditions[i].Name, conditions[i].Value), verdicts[i].next)
		}
	}
	return rule.decision(outcomes, again), nil
}

// put stores a record, and now and then removes those that hold nothing any more.
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
