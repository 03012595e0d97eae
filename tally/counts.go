package tally

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// maxName is how long an identifier or name may be to be kept, in bytes.
const maxName = 256

// A verdict is what became of a call: the name that it is counted under.
type verdict int

const (
	authorized verdict = iota
	blocked
	wouldBlock
	overruled // of a condition only
	verdicts  // how many there are
)

// verdictOf returns what a rule made of a call.
func verdictOf(d *throttler.Decision) verdict {
	switch {
	case d.Status != throttler.Authorized:
		return blocked
	case d.WouldBlock:
		return wouldBlock
	}
	return authorized
}

// of returns what a condition made of a call of which its rule made v.
func (v verdict) of(o *throttler.Outcome) verdict {
	switch {
	case !o.Blocked:
		return authorized
	case v == authorized:
		return overruled
	}
	return v
}

// counts are all counts since a time. Rules and conditions are only ever added,
// so that a reader needs no lock.
type counts struct {
	since     time.Time
	uncounted atomic.Uint64
	rules     atomic.Pointer[map[string]*rule] // replaced, never changed
	logins    logins

	names atomic.Int64 // rules and conditions that there are
	mu    sync.Mutex   // held by who adds one
}

// A rule is what is counted of all rules with one identifier.
type rule struct {
	calls      [verdicts]atomic.Uint64
	failed     atomic.Uint64
	conditions atomic.Pointer[[]*condition] // replaced, never changed; in the order of their first calls
}

// A condition is what is counted of the conditions with one name in a rule.
type condition struct {
	name      string
	calls     [verdicts]atomic.Uint64
	banned    atomic.Uint64
	failed    atomic.Uint64
	lostRaces atomic.Uint64

	mu     sync.Mutex // guards values
	values summary    // those that were blocked or would have been
}

func newCounts(since time.Time) *counts {
	c := &counts{since: since}
	c.rules.Store(&map[string]*rule{})
	return c
}

// rule returns what is counted of the rules with this identifier, or nil if they
// are not counted because there are maxNames others.
func (c *counts) rule(identifier string, maxNames int) *rule {
	if r := (*c.rules.Load())[identifier]; r != nil || c.refuses(identifier, maxNames) {
		return r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.rules.Load()
	if r := old[identifier]; r != nil || c.refuses(identifier, maxNames) {
		return r
	}
	r := new(rule)
	r.conditions.Store(new([]*condition))
	rules := maps.Clone(old)
	rules[strings.Clone(identifier)] = r
	c.rules.Store(&rules)
	c.names.Add(1)
	return r
}

// condition returns what is counted of r's conditions with this name, or nil if
// they are not counted. at is where it stands in the rule, where it usually
// stands in r as well.
func (c *counts) condition(r *rule, at int, name string, maxNames int) *condition {
	if n := r.find(at, name); n != nil || c.refuses(name, maxNames) {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := r.find(at, name); n != nil || c.refuses(name, maxNames) {
		return n
	}
	n := &condition{name: strings.Clone(name)}
	old := *r.conditions.Load()
	conditions := append(old[:len(old):len(old)], n)
	r.conditions.Store(&conditions)
	c.names.Add(1)
	return n
}

// refuses reports whether a new rule or condition of this name is not counted.
// It is final only with c.mu held, but a program that names its rules by the
// million does not have to wait for that.
func (c *counts) refuses(name string, maxNames int) bool {
	return len(name) > maxName || c.names.Load() >= int64(maxNames)
}

func (r *rule) find(at int, name string) *condition {
	conditions := *r.conditions.Load()
	if at < len(conditions) && conditions[at].name == name {
		return conditions[at]
	}
	for _, n := range conditions {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (r *rule) add(v verdict, err error) {
	r.calls[v].Add(1)
	if err != nil {
		r.failed.Add(1)
	}
}

func (n *condition) add(v verdict, o *throttler.Outcome) {
	n.calls[v.of(o)].Add(1)
	if o.Banned {
		n.banned.Add(1)
	}
	if o.Err != nil {
		n.failed.Add(1)
	}
	if o.LostRaces > 0 {
		n.lostRaces.Add(uint64(o.LostRaces))
	}
}
