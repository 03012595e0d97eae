package slots

import (
	"bytes"
	"slices"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
)

// An inlined is the exchange of one entry over an [exchange.Inliner].
type inlined struct {
	*Entry
	caches   bool          // a record that blocks is to be cached
	blocking []byte        // that record
	item     memcache.Item // what is to be stored
}

const maxScratch = 1024 // bytes of a value that an inlined keeps for the next one

// clear makes x ready for another exchange, with the memory of a small value.
func (x *inlined) clear() {
	if cap(x.item.Value) > maxScratch {
		x.item.Value = nil
	}
	x.Entry, x.blocking, x.item.Key = nil, nil, ""
}

// Visited counts an exchange that was made elsewhere.
func (t *Table) Visited() { t.counts.Exchanges.Add(1) }

// askInline carries out the exchange of one entry on the caller's goroutine.
func (t *Table) askInline(x *inlined) {
	var resets uint64
	if t.blocks != nil {
		resets = t.shards.resetsOf(x.Entry.Key)
	}
	x.caches, x.blocking = t.blocks != nil && x.Cached, nil
	t.inliner.Inline(x)
	x.record.Clear() // it refers to what was lent
	t.counts.Exchanges.Add(1)
	if t.blocks == nil || x.Err != nil {
		return
	}
	if x.store {
		// Others may be reading what is changed now, and must not keep it.
		before := resets
		resets = t.shards.changed(x.Entry.Key)
		t.blocks.remove(x.Entry.Key)
		if resets != before+1 {
			return
		}
	}
	if x.blocking != nil && x.Change.Stands() {
		t.cache(x.Entry, x.blocking, resets)
	}
}

// Key returns the key of the record.
func (x *inlined) Key() string { return x.Entry.Key }

// Propose decides the entry on the record as it is.
func (x *inlined) Propose(turn exchange.Turn) *memcache.Item {
	if x.record, x.Err = recordIn(turn.Found); x.Err != nil {
		return nil
	}
	now := timeOf(turn)
	x.decide(now)
	var proposal *memcache.Item
	stored := turn.Found // from now on
	if x.store {
		x.item.Key, x.item.Expiration = x.Entry.Key, record.Expiration(now, x.record.End())
		x.item.Flags = BanFlag(&x.record, now)
		x.item.Value = x.record.Append(slices.Grow(x.item.Value[:0], x.record.Size()))
		proposal, stored = &x.item, &x.item
	}
	if x.caches && x.Change.Stands() && stored != nil && len(stored.Value) <= maxBlockRecord {
		x.blocking = bytes.Clone(stored.Value)
	}
	return proposal
}

// Done takes an error of the store: the record is too large for it.
func (x *inlined) Done(r exchange.Result) {
	if r.Err != nil {
		x.blocking = nil
		found, _ := recordIn(r.Found)
		x.failUnstored(r.Err, &found)
	}
}
