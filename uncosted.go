package throttler

import (
	"hash/maphash"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// An uncosted is what a receipt keeps of a call that has counted nothing: where its
// conditions are. Hardly any such call is ever settled, and attacks consist of them. So it
// refers to the conditions of the caller's Rule, and only notes what tells whether they have
// been changed since.
type uncosted struct {
	t          *Throttler
	identifier string
	conditions []Condition
	shadow     bool
	keys       uint64 // see [sumOf]
}

// keySeed is that of sumOf.
var keySeed = maphash.MakeSeed()

// sumOf takes a key into the sum of those before it.
func sumOf(sum uint64, key string) uint64 { return sum*31 + maphash.String(keySeed, key) }

// countedNothing reports whether c, which is decided, has counted nothing in any condition,
// as its own backend says or its BlockCache.
func (c *call) countedNothing() bool {
	for _, e := range c.entries {
		if e.from != recalled && (e.Failed() != nil || e.cause != nil) || e.counted() != (record.Hit{}) {
			return false
		}
	}
	return len(c.replaced) == 0
}

// retainUncosted is retain for a call of n conditions that has counted nothing.
func (c *call) retainUncosted(n int) retained {
	type missed struct {
		receipt
		uncosted
	}
	var r *missed
	var outcomes []Outcome
	switch {
	case n == 1:
		a := new(struct {
			missed
			outcomes [1]Outcome
		})
		r, outcomes = &a.missed, a.outcomes[:]
	case n == 2:
		a := new(struct {
			missed
			outcomes [2]Outcome
		})
		r, outcomes = &a.missed, a.outcomes[:]
	case n <= 4:
		a := new(struct {
			missed
			outcomes [4]Outcome
		})
		r, outcomes = &a.missed, a.outcomes[:n:n]
	case n <= 8:
		a := new(struct {
			missed
			outcomes [8]Outcome
		})
		r, outcomes = &a.missed, a.outcomes[:n:n]
	default:
		r, outcomes = new(missed), make([]Outcome, n)
	}
	r.note = &r.uncosted
	return retained{receipt: &r.receipt, outcomes: outcomes}
}

// noteRule notes the rule of c.
func (c *call) noteRule(u *uncosted) {
	*u = uncosted{t: c.t, identifier: c.rule.Identifier, conditions: c.rule.conditions(), shadow: c.rule.Shadow}
	for _, e := range c.entries {
		u.keys = sumOf(u.keys, e.Key)
	}
}

// changed reports whether the conditions are not those of the call any more.
func (u *uncosted) changed() bool {
	var sum uint64
	for i := range u.conditions {
		sum = sumOf(sum, u.key(i))
	}
	return sum != u.keys
}

// key returns the key of condition i.
func (u *uncosted) key(i int) string {
	return record.Key(u.identifier, u.conditions[i].Name, u.conditions[i].Value)
}

// contents returns those of the receipt.
func (u *uncosted) contents() *contents {
	in := &contents{shadow: u.shadow, all: make([]*reservation, len(u.conditions))}
	for i := range u.conditions {
		of := &u.conditions[i]
		r := &reservation{backend: u.t.backend(), key: u.key(i), name: of.Name, message: of.message()}
		of.setLimit(&r.limit)
		in.all[i] = r
	}
	return in
}
