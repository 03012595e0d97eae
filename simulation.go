package throttler

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

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

// Authorize decides and counts a call at the time at. Calls must come in the order of their
// times. The error of a wrong rule matches [ErrInvalidRule]; a time outside the years 1970
// to 2261 (UTC) is another error.
func (s *Simulation) Authorize(at time.Time, rule Rule) (d Decision, err error) {
	if err := rule.Validate(); err != nil {
		return Decision{}, err
	}
	if year := at.UTC().Year(); year < 1970 || year > 2261 {
		return Decision{}, fmt.Errorf("throttler: a simulated call at %v, want the years 1970 to 2261", at)
	}
	now := record.InstantOf(at)
	conditions, keys := rule.conditions(), rule.keys()
	changed := make([]record.Record, len(conditions))
	store := make([]bool, len(conditions))
	outcomes := make([]Outcome, len(conditions))
	again := make([]time.Duration, len(conditions))
	decideAll := func(count bool) {
		for i := range conditions {
			c := &conditions[i]
			if !count && outcomes[i].Blocked {
				continue
			}
			var v record.Verdict
			limit := c.limit()
			limit.ID = rand.Uint64()
			changed[i], _ = record.Decode(s.records[keys[i]])
			store[i] = v.Decide(now, &limit, rule.lockout(c), &changed[i], count)
			outcomes[i].set(c.Name, c.Max, &v.Outcome)
			again[i] = v.Again
			if len(rule.First) > 0 && !v.Outcome.Blocked {
				for i++; i < len(conditions); i++ {
					outcomes[i].setUnasked(conditions[i].Name, conditions[i].Max)
				}
				return
			}
		}
	}
	decideAll(true)
	if rule.toAssess() && rule.blocks(outcomes) {
		decideAll(false) // a refused call counts nowhere
	}
	for i, key := range keys {
		if store[i] {
			s.put(now, key, changed[i])
		}
	}
	rule.combine(&d, outcomes, again, nil)
	return d, nil
}

// put stores a record, and sometimes removes those that have ended.
func (s *Simulation) put(now record.Instant, key string, r record.Record) {
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
