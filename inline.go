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

// An inlined is the exchange of one entry over an [Inliner].
type inlined struct {
	*entry
	keeps bool          // a record that blocks is to be kept
	kept  []byte        // that record
	item  memcache.Item // what is to be stored
}

const maxRoom = 1024 // bytes of a value that an inlined keeps room for

// clear makes x ready for another exchange, with room for a small value.
func (x *inlined) clear() {
	if cap(x.item.Value) > maxRoom {
		x.item.Value = nil
	}
	x.entry, x.kept, x.item.Key = nil, nil, ""
}

// askInline carries out the exchange of one entry on the caller's goroutine.
func (b *backend) askInline(x *inlined) {
	cache := b.cache()
	var resets uint64
	if cache != nil {
		resets = b.slots.resetsOf(x.key)
	}
	x.keeps, x.kept = cache != nil, nil
	b.inliner.Inline(x)
	x.next = record{} // it refers to what was lent
	b.t.stats.exchanges.Add(1)
	if cache == nil || x.err != nil {
		return
	}
	if x.store {
		// Others may be reading what is changed now, and must not keep it.
		before := resets
		resets = b.slots.changed(x.key)
		cache.remove(x.key)
		if resets != before+1 {
			return
		}
	}
	if x.kept != nil && x.outcome.Blocked {
		b.keep(x.entry, x.kept, resets)
	}
}

// Key returns the key of the record.
func (x *inlined) Key() string { return x.key }

// Propose decides the entry on the record as it is.
func (x *inlined) Propose(turn Turn) *memcache.Item {
	r, err := recordIn(turn.Found)
	if err != nil {
		x.fail(err)
		return nil
	}
	now := turn.now()
	x.apply(now, &r)
	var proposal *memcache.Item
	stored := turn.Found // from now on
	if x.store {
		x.item.Key, x.item.Expiration = x.key, expiration(now, x.next.end())
		x.item.Value = x.next.append(slices.Grow(x.item.Value[:0], x.next.size()))
		proposal, stored = &x.item, &x.item
	}
	if x.keeps && x.op <= opAssess && x.outcome.Blocked && stored != nil && len(stored.Value) <= maxBlockRecord {
		x.kept = bytes.Clone(stored.Value)
	}
	return proposal
}

// Done takes an error of the store: the record is too large for it.
func (x *inlined) Done(r Result) {
	if r.Err != nil {
		x.kept = nil
		found, _ := recordIn(r.Found)
		x.failUnstored(r.Err, &found)
	}
}
