package tally

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// maxName is the longest identifier or name that is counted, in bytes.
const maxName = 256

// A result is the name under which a call is counted.
type result int

const (
	authorized result = iota
	blocked
	wouldBlock
	overruled // of a condition only
	results   // their number
)

// resultOf returns the result of a rule.
func resultOf(d *throttler.Decision) result {
	switch {
	case d.Status != throttler.Authorized:
		return blocked
	case d.WouldBlock:
		return wouldBlock
	}
	return authorized
}

// of returns the result of a condition in a call with the rule's result v.
func (v result) of(o *throttler.Outcome) result {
	switch {
	case !o.Blocked:
		return authorized
	case v == authorized:
		return overruled
	}
	return v
}

// counts are all counts since a time. Rules and conditions are added and never
// removed, so readers need no lock.
type counts struct {
	since     time.Time
	uncounted atomic.Uint64
	rules     atomic.Pointer[map[string]*rule] // replaced, never changed
	logins    logins

	names atomic.Int64 // the number of rules and conditions
	mu    sync.Mutex   // held to add one
}

// A rule counts the calls of all rules with one identifier.
type rule struct {
	calls      [results]atomic.Uint64
	failed     atomic.Uint64
	conditions atomic.Pointer[[]*condition] // replaced, never changed; in the order of their first calls
}

// A condition counts the calls of all conditions with one name in a rule.
type condition struct {
	name      string
	calls     [results]atomic.Uint64
	banned    atomic.Uint64
	failed    atomic.Uint64
	lostRaces atomic.Uint64

	mu     sync.Mutex // guards values
	values summary    // blocked, or with Shadow would have been
}

func newCounts(since time.Time) *counts {
	c := &counts{since: since}
	c.rules.Store(&map[string]*rule{})
	return c
}

// rule returns the counts of the rules with identifier, or nil if maxNames is
// used up.
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

// condition returns the counts of r's conditions with name, or nil if maxNames
// is used up. at is its index in the rule, usually the one in r too.
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

// refuses reports whether a new rule or condition is not counted. Without c.mu
// the answer may be out of date, but a program with millions of names does not
// wait for the lock.
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

func (r *rule) add(v result, err error) {
	r.calls[v].Add(1)
	if err != nil {
		r.failed.Add(1)
	}
}

func (n *condition) add(v result, o *throttler.Outcome) {
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
