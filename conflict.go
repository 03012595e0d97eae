package throttler

import (
	"fmt"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/engine"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// How much is remembered to find conflicts.
const (
	maxLimitsSeen    = 4096 // records and their limits, the latest
	maxConflictsTold = 1024 // conditions, the latest
)

// A limitOf is the limit that a condition sets for its record.
type limitOf struct {
	max       int
	ttl       time.Duration
	algorithm Algorithm
	period    string // of a calendar
}

func (l limitOf) String() string {
	if l.algorithm == Calendar {
		return fmt.Sprintf("a calendar of %d in %v", l.max, l.period)
	}
	return fmt.Sprintf("a %v of %d in %v", l.algorithm, l.max, l.ttl)
}

// conflicts finds conditions that use the same record with different limits. The
// zero value has seen none.
type conflicts struct {
	mu   sync.Mutex // guards what follows
	seen *simplelru.LRU[string, limitOf]
	told *simplelru.LRU[string, struct{}] // by identifier and name
}

// of returns an error if the record at key was used with another limit than that of
// c. It returns nil if there is no conflict, or if it was told before.
func (cs *conflicts) of(identifier string, c *Condition, key string) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.seen == nil { // NewLRU fails only for a size of 0
		cs.seen, _ = simplelru.NewLRU[string, limitOf](maxLimitsSeen, nil)
		cs.told, _ = simplelru.NewLRU[string, struct{}](maxConflictsTold, nil)
	}
	limit := limitOf{max: c.Max, ttl: c.TTL, algorithm: c.Algorithm}
	if c.Algorithm == Calendar {
		limit.period = c.Period.String()
	}
	other, ok := cs.seen.Get(key)
	cs.seen.Add(key, limit)
	if !ok || other == limit || cs.told.Contains(name(identifier, c)) {
		return nil
	}
	cs.told.Add(name(identifier, c), struct{}{})
	return fmt.Errorf("throttler: condition %q of %q has two limits for one record, %v and %v: use one, or another Identifier",
		c.Name, identifier, other, limit)
}

// name identifies a condition, whatever its Value.
func name(identifier string, c *Condition) string { return record.Key(identifier, c.Name, "") }

// findConflicts calls t.Conflict for each condition of rule, which makes these demands, with a
// conflict.
func (t *Throttler) findConflicts(p *preparedRule, rule *Rule, demands []engine.Demand) {
	if t.Conflict == nil {
		return
	}
	conditions := rule.conditions()
	for i, key := range p.plan.Keys(demands) {
		if err := t.conflicts.of(rule.Identifier, &conditions[i], key); err != nil {
			t.Conflict(*rule, err)
		}
	}
}
