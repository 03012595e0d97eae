package slots

import (
	"bytes"
	"slices"
	"time"

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

// A Visit is the change of one record where it is, by one that [Table.Visit] carries out. It
// may be used again, with its memory.
type Visit struct {
	Visitor Visitor
	at      time.Time // when the clock was last read
	record  record.Record
	value   []byte // to be stored
	err     error  // why the record could not be read
}

// A Visitor decides on r at now, in place, and reports whether r is to be stored, as
// [Change.Apply].
type Visitor interface {
	Apply(now record.Instant, r *record.Record) (store bool)
}

// InPlace reports whether t can carry out a Visit.
func (t *Table) InPlace() bool { return t.keyed != nil }

// Visit has v decide on the record of key, on the caller's goroutine. It returns the key as
// the store keeps it, or why the record was not changed.
func (t *Table) Visit(v *Visit, key []byte) (kept string, err error) {
	kept, err = t.keyed.InlineKey(key, v.at, v)
	if err == nil {
		err = v.err
	}
	return kept, err
}

// Visited counts that many visits as exchanges.
func (t *Table) Visited(n int) { t.counts.Exchanges.Add(uint64(n)) }

// Begin makes v ready for the visits of one call.
func (v *Visit) Begin() { v.at = time.Now() }

// End drops the memory of a large value.
func (v *Visit) End() {
	if cap(v.value) > maxScratch {
		v.value = nil
	}
}

// Visit implements [exchange.Visitor].
func (v *Visit) Visit(now time.Time, found []byte) (value []byte, expiration int32, flags uint32) {
	v.at = now
	at := record.InstantOf(now)
	if v.err = read(&v.record, found); v.err != nil || !v.Visitor.Apply(at, &v.record) {
		return nil, 0, 0
	}
	v.value = v.record.Append(slices.Grow(v.value[:0], v.record.Size()))
	return v.value, record.Expiration(at, v.record.End()), banFlag(&v.record, at)
}

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
		x.item.Flags = banFlag(&x.record, now)
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
