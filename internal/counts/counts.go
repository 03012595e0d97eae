// Package counts is the table of what a throttler has decided: how often each
// rule and condition let calls pass or stopped them. Package tally shows one,
// otelthrottle exports one.
package counts

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
)

// MaxNames is the number of rules and conditions, together, that have counts of
// their own by default.
const MaxNames = 256

// maxName is the longest identifier or name that has counts of its own, in
// bytes.
const maxName = 256

// Other is the name of all rules, and of all conditions of a rule, that have no
// counts of their own.
const Other = "_OTHER"

// A Result is the name under which a call is counted.
type Result int

const (
	Authorized Result = iota // of a condition: it had room
	Blocked
	WouldBlock // with Shadow
	Overruled  // of a condition: it was full, and the call was authorized
	Results    // their number
)

// resultOf returns the result of a rule.
func resultOf(d *throttler.Decision) Result {
	switch {
	case d.Status != throttler.Authorized:
		return Blocked
	case d.WouldBlock:
		return WouldBlock
	}
	return Authorized
}

// of returns the result of a condition in a call with the rule's result r.
func (r Result) of(o *throttler.Outcome) Result {
	switch {
	case !o.Blocked:
		return Authorized
	case r == Authorized:
		return Overruled
	}
	return r
}

// Failures are the kinds of errors of a backend, by their OpenTelemetry names.
// They are a fixed set, whatever the errors say.
var Failures = [...]string{"unavailable", "overloaded", "timeout", "canceled", Other}

func failureOf(err error) int {
	switch {
	case errors.Is(err, throttler.ErrUnavailable):
		return 0
	case errors.Is(err, throttler.ErrOverloaded):
		return 1
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return 2
	case errors.Is(err, context.Canceled):
		return 3
	}
	return 4
}

// A Table holds all counts. Rules and conditions are added and never removed,
// so readers need no lock. The zero Table is empty. It must not be copied.
type Table struct {
	// Uncounted counts the calls of which a rule or condition is in Other.
	Uncounted atomic.Uint64

	// Logins counts attempts to log in.
	Logins Logins

	rules atomic.Pointer[map[string]*Rule] // replaced, never changed
	other Rule

	names atomic.Int64 // the number of rules and conditions
	mu    sync.Mutex   // held to add one
}

// A Rule counts the calls of all rules with one identifier.
type Rule struct {
	Name   string
	Calls  [Results]atomic.Uint64 // Overruled is 0
	Failed atomic.Uint64          // the backend failed

	conditions atomic.Pointer[[]*Condition] // replaced, never changed; in the order of their first calls
	other      Condition
}

// A Condition counts the calls of all conditions with one name in a rule.
type Condition struct {
	Name      string
	Calls     [Results][2]atomic.Uint64 // the second ones met a ban or set one
	NewBans   atomic.Uint64             // bans that were set
	Failed    [len(Failures)]atomic.Uint64
	LostRaces atomic.Uint64
	Values    Values // that were stopped, if the caller counts them
}

// Values counts values under a lock.
type Values struct {
	sync.Mutex
	Summary
}

// Logins counts attempts to log in.
type Logins struct {
	Results    [login.Canceled + 1][2]atomic.Uint64 // the second ones were of a known name
	WouldBlock atomic.Uint64
	Failed     atomic.Uint64 // the backend failed
}

// Observe counts d, and returns the counts of its rule. Up to maxNames rules and
// conditions, together, have counts of their own; less than 1 is MaxNames. For
// each condition that stopped the call, or would have, it calls stopped unless
// that is nil. It keeps neither rule nor d.
//
// An authorized decision costs one atomic addition for the rule and one for each
// condition, with no lock and no allocation.
func (t *Table) Observe(rule *throttler.Rule, d *throttler.Decision, maxNames int, stopped func(n *Condition, value string)) *Rule {
	if maxNames < 1 {
		maxNames = MaxNames
	}
	r := t.rule(rule.Identifier, maxNames)
	complete := r != &t.other
	result := resultOf(d)
	r.Calls[result].Add(1)
	if d.Err != nil {
		r.Failed.Add(1)
	}
	conditions := rule.Conditions()
	for i := range d.Outcomes {
		o := &d.Outcomes[i]
		if o.Remaining < 0 {
			continue // it was not asked
		}
		n := t.condition(r, i, o.Name, maxNames)
		n.add(result, o)
		if n == &r.other {
			complete = false
		} else if stopped != nil && o.Blocked && result != Authorized && i < len(conditions) {
			stopped(n, conditions[i].Value)
		}
	}
	if !complete {
		t.Uncounted.Add(1)
	}
	return r
}

func (n *Condition) add(result Result, o *throttler.Outcome) {
	banned := 0
	if o.Banned {
		banned = 1
	}
	n.Calls[result.of(o)][banned].Add(1)
	if o.NewBan {
		n.NewBans.Add(1)
	}
	if o.Err != nil {
		n.Failed[failureOf(o.Err)].Add(1)
	}
	if o.LostRaces > 0 {
		n.LostRaces.Add(uint64(o.LostRaces))
	}
}

// ObserveLogin counts e. It reports whether e has a result that is known.
func (t *Table) ObserveLogin(e *login.Event) bool {
	l := &t.Logins
	if e.Result < 0 || int(e.Result) >= len(l.Results) {
		return false
	}
	known := 0
	if e.Known {
		known = 1
	}
	l.Results[e.Result][known].Add(1)
	if e.Result != login.Refused && e.Decision.WouldBlock {
		l.WouldBlock.Add(1)
	}
	if e.Decision.Err != nil {
		l.Failed.Add(1)
	}
	return true
}

// Rules returns the rules that have counts of their own.
func (t *Table) Rules() []*Rule {
	var all []*Rule
	if rules := t.rules.Load(); rules != nil {
		for _, r := range *rules {
			all = append(all, r)
		}
	}
	return all
}

// Other returns the counts of all other rules.
func (t *Table) Other() *Rule { return &t.other }

// Conditions returns the conditions of r that have counts of their own, in the
// order of their first calls.
func (r *Rule) Conditions() []*Condition {
	if conditions := r.conditions.Load(); conditions != nil {
		return slices.Clip(*conditions)
	}
	return nil
}

// Other returns the counts of all other conditions of r.
func (r *Rule) Other() *Condition { return &r.other }

// rule returns the counts of the rules with identifier.
func (t *Table) rule(identifier string, maxNames int) *Rule {
	for locked := false; ; locked = true {
		if r := t.find(identifier); r != nil {
			return r
		}
		if t.refuses(identifier, maxNames) {
			return &t.other
		}
		if locked {
			break
		}
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	r := &Rule{Name: strings.Clone(identifier)}
	rules := map[string]*Rule{r.Name: r}
	if old := t.rules.Load(); old != nil {
		maps.Copy(rules, *old)
	}
	t.rules.Store(&rules)
	t.names.Add(1)
	return r
}

func (t *Table) find(identifier string) *Rule {
	if rules := t.rules.Load(); rules != nil {
		return (*rules)[identifier]
	}
	return nil
}

// condition returns the counts of r's conditions with name. at is its index in
// the rule, usually the one in r too.
func (t *Table) condition(r *Rule, at int, name string, maxNames int) *Condition {
	for locked := false; ; locked = true {
		if n := r.find(at, name); n != nil {
			return n
		}
		if r == &t.other || t.refuses(name, maxNames) {
			return &r.other
		}
		if locked {
			break
		}
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	n := &Condition{Name: strings.Clone(name)}
	conditions := append(r.Conditions(), n)
	r.conditions.Store(&conditions)
	t.names.Add(1)
	return n
}

func (r *Rule) find(at int, name string) *Condition {
	conditions := r.Conditions()
	if at < len(conditions) && conditions[at].Name == name {
		return conditions[at]
	}
	for _, n := range conditions {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// refuses reports whether a new rule or condition has no counts of its own.
// Without t.mu the answer may be out of date, but a program with millions of
// names does not wait for the lock.
func (t *Table) refuses(name string, maxNames int) bool {
	return len(name) > maxName || t.names.Load() >= int64(maxNames)
}
