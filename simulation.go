package throttler

import (
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler/internal/engine"
	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Simulation decides calls at times that the caller gives, such as those of a web
// server's log, to find out what a rule would have done. It decides each call as
// [Throttler.Authorize] would at that time, with its records in process memory.
//
// The zero Simulation is ready to use. It must not be used by several goroutines at
// once.
type Simulation struct {
	engine engine.Simulation
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
	now, p := record.InstantOf(at), newPreparedRule(nil, &rule)
	out := p.outcomes(nil)
	s.engine.Authorize(now, p.plan, p.demands(&rule, nil), out)
	p.conclude(&d, out, make([]Outcome, len(out)), nil)
	return d, nil
}
