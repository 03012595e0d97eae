package throttler

import (
	"fmt"
	"hash/maphash"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// An uncosted is what a receipt keeps of a call that has counted nothing: where its
// conditions are. Hardly any such call is ever settled, and attacks consist of them. So it
// refers to the conditions of the caller's Rule, and only notes what tells whether they are
// about the same records still.
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

// A missed is what a call makes that has counted nothing.
type missed struct {
	receipt
	uncosted
}

// retainUncosted is [retainCounted] for a call that has counted nothing.
func retainUncosted(n int) retained {
	switch {
	case n == 1:
		a := new(struct {
			missed
			outcomes [1]Outcome
			messages [1]string
		})
		return a.retained(a.outcomes[:], a.messages[:])
	case n == 2:
		a := new(struct {
			missed
			outcomes [2]Outcome
			messages [2]string
		})
		return a.retained(a.outcomes[:], a.messages[:])
	case n <= 4:
		a := new(struct {
			missed
			outcomes [4]Outcome
			messages [4]string
		})
		return a.retained(a.outcomes[:n:n], a.messages[:n:n])
	case n <= 8:
		a := new(struct {
			missed
			outcomes [8]Outcome
			messages [8]string
		})
		return a.retained(a.outcomes[:n:n], a.messages[:n:n])
	}
	return new(missed).retained(make([]Outcome, n), nil)
}

func (m *missed) retained(outcomes []Outcome, messages []string) retained {
	m.note = &m.uncosted
	return retained{receipt: &m.receipt, outcomes: outcomes, messages: messages, uncosted: &m.uncosted}
}

// set sets u, which is zero, to the rule of a call, before take takes each key.
func (u *uncosted) set(t *Throttler, rule *Rule) {
	u.t, u.identifier, u.conditions, u.shadow = t, rule.Identifier, rule.conditions(), rule.Shadow
}

// take takes the key of the next condition into the sum.
func (u *uncosted) take(key string) { u.keys = sumOf(u.keys, key) }

// takeBytes is take for a key as bytes.
func (u *uncosted) takeBytes(key []byte) { u.keys = u.keys*31 + maphash.Bytes(keySeed, key) }

// usable returns why the conditions, which may have been changed since the call, cannot be
// settled, or nil. They must be those of the same records, and valid. What they allow may be
// something else by now, as for the next call.
func (u *uncosted) usable() error {
	var sum uint64
	for i := range u.conditions {
		sum = sumOf(sum, u.key(i))
	}
	if sum != u.keys {
		return fmt.Errorf("%w: the conditions of a Rule whose Decision counted nothing were changed before Settle", ErrInvalidRule)
	}
	rule := Rule{Identifier: u.identifier, Either: u.conditions}
	return rule.validateConditions()
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
