package throttler

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxOpenings is the number of openings that a Throttler remembers.
const maxOpenings = 10_000

// openings are the times at which records open that were full when a call of Wait last
// saw them. The latest are kept. In an outage they are all that is known, and each
// call that is let through moves them on. The zero openings are empty.
type openings struct {
	byKey *simplelru.LRU[string, time.Time]
}

// none reports whether nothing is remembered.
func (os *openings) none() bool {
	return os.byKey == nil || os.byKey.Len() == 0
}

// of returns when the record opens or opened, and the zero time if that is not known.
func (os *openings) of(key string) time.Time {
	if os.none() {
		return time.Time{}
	}
	opens, _ := os.byKey.Get(key)
	return opens
}

// remember notes that the record opens at that time, unless it is open at now.
func (os *openings) remember(key string, opens, now time.Time) {
	if !opens.After(now) {
		os.forget(key)
		return
	}
	if os.byKey == nil {
		os.byKey, _ = simplelru.NewLRU[string, time.Time](maxOpenings, nil) // fails only for a size of 0
	}
	os.byKey.Add(key, opens)
}

func (os *openings) forget(key string) {
	if !os.none() {
		os.byKey.Remove(key)
	}
}

// pace reports whether w may go with d, which is Authorized. It may if no condition
// failed open or, with All, if one that was decided has room. Each condition that
// failed open takes one hit every TTL/Max from this process, from its opening on.
func (q *waitQueue) pace(w *waiter, d *Decision, now time.Time) bool {
	conditions := w.rule.conditions()
	var open []*Condition // failed open, and may take a hit
	failed := 0
	for i := range d.Outcomes {
		o := &d.Outcomes[i]
		if !failedOpen(o) {
			if len(w.rule.All) > 0 && !o.Blocked {
				return true
			}
			continue
		}
		failed++
		if !q.openings.of(w.key(&conditions[i])).After(now) {
			open = append(open, &conditions[i])
		}
	}
	if len(open) < failed && (len(w.rule.Either) > 0 || len(open) == 0) {
		return false
	}
	for _, c := range open {
		q.openings.remember(w.key(c), now.Add(times(c.cost(), time.Duration(c.interval()))), now)
	}
	return true
}

// failedOpen reports whether neither the backend nor a fallback decided the condition
// of o.
func failedOpen(o *Outcome) bool {
	return o.Err != nil && !o.Blocked && o.Remaining == o.Limit
}

// lifetime returns how long a call takes up room in c.
func (c *Condition) lifetime() time.Duration {
	if c.Algorithm == LeakyBucket {
		return times(c.cost(), time.Duration(c.interval()))
	}
	return c.TTL
}
