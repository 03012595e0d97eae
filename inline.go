package throttler

import (
	"bytes"
	"slices"

	"github.com/bradfitz/gomemcache/memcache"
)

// An Inliner is an Exchanger in process memory. It carries every exchange out
// before Exchange returns, with [Turn.Known] set and nothing between the turn and
// the write, so that callers need not be gathered.
type Inliner interface {
	Exchanger

	// Inline carries out x, which keeps nothing that it is given: the items that
	// a Turn and a Result have found are valid until Propose and Done return.
	// The item that x proposes is copied.
	Inline(x Exchange)
}

// An inlined is an entry that is an exchange by itself, over an [Inliner].
type inlined entry

// askInline carries out the exchange of one entry on the caller's goroutine.
func (b *backend) askInline(e *entry) {
	cache := b.cache()
	var resets uint64
	if cache != nil {
		resets = b.slots.resetsOf(e.key)
	}
	e.keeps = cache != nil
	b.inliner.Inline((*inlined)(e))
	b.t.stats.exchanges.Add(1)
	if cache == nil || e.err != nil {
		return
	}
	if e.store {
		// Others may be reading what is changed now, and must not keep it.
		before := resets
		resets = b.slots.changed(e.key)
		cache.remove(e.key)
		if resets != before+1 {
			return
		}
	}
	if e.op <= opAssess && e.outcome.Blocked {
		b.keep(e, e.value, resets)
	}
}

// Key returns the key of the record.
func (x *inlined) Key() string { return x.key }

// Propose decides the entry on the record as it is.
func (x *inlined) Propose(turn Turn) *memcache.Item {
	e := (*entry)(x)
	r, err := recordIn(turn.Found)
	if err != nil {
		e.fail(err)
		return nil
	}
	now := turn.now()
	e.apply(now, &r)
	var proposal *memcache.Item
	stored := turn.Found // from now on
	if e.store {
		e.item.Key, e.item.Expiration = e.key, expiration(now, e.next.end())
		e.item.Value = e.next.append(slices.Grow(e.item.Value[:0], e.next.size()))
		proposal, stored = &e.item, &e.item
	}
	if e.keeps && e.outcome.Blocked && stored != nil {
		e.value = bytes.Clone(stored.Value)
	}
	return proposal
}

// Done takes an error of the store: the record is too large for it.
func (x *inlined) Done(r Result) {
	if r.Err != nil {
		found, _ := recordIn(r.Found)
		(*entry)(x).failUnstored(r.Err, &found)
	}
}
