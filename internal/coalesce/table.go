package coalesce

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/bradfitz/gomemcache/memcache"
)

// An Exchanger is an [exchange.Exchanger] that deletes records too.
type Exchanger interface {
	exchange.Exchanger
	Delete(key string) error
}

// A Table has the coalescers of one store of records.
type Table struct {
	exchanger Exchanger
	shards    shards
	blocks    *Blocks
	outlasts  bool
	timeout   time.Duration
	counts    *Counts
}

// Config says how a Table works. Counts must be set.
type Config struct {
	Remembered int           // how many records to remember as they were last seen; negative: none
	Large      int           // a record counts once more for each so many bytes; 0: 1024
	Timeout    time.Duration // how long an Entry goes on while it loses races: ten at least
	Blocks     *Blocks       // keep records on which a Change stands; nil: none
	Outlasts   bool          // remember a record while its server fails too, and those of a plain client: see [Table.LastSeen]
	Counts     *Counts
}

// Counts count what Tables do.
type Counts struct {
	_                                           [64]byte // apart from what is only read: all processors count
	Exchanges, Guesses, RightGuesses, LostRaces atomic.Uint64
	_                                           [64]byte
}

// NewTable returns a Table of the records in x.
func NewTable(x Exchanger, c Config) *Table {
	t := &Table{exchanger: x, blocks: c.Blocks, outlasts: c.Outlasts, timeout: c.Timeout, counts: c.Counts}
	t.shards.init(&c)
	return t
}

// Ask sends all Entries of r. It returns when each has ended, or ctx has. Entries
// that have not ended then are left.
func (t *Table) Ask(ctx context.Context, r *Round) {
	if err := ctx.Err(); err != nil && !r.Firm {
		for _, e := range r.Entries {
			e.Left, e.Unsent = err, true
		}
		return
	}
	r.begin(len(r.Entries))
	led := r.Scratch.exchanges(len(r.Entries))
	for _, e := range r.Entries {
		e.round = r
		if t.join(e) {
			led = append(led, e.coalescer)
		}
	}
	t.lead(ctx, r, led)
	if r.wait(ctx) {
		r.Scratch.reuse(led)
		return
	}
	for _, e := range r.Entries {
		e.leave(ctx.Err())
	}
}

// lead carries out the exchanges of the coalescers in led. If it is one coalescer, r carries out
// its next exchanges too, as long as r needs them.
func (t *Table) lead(ctx context.Context, r *Round, led []exchange.Exchange) {
	switch len(led) {
	case 0:
	case 1:
		s := led[0].(*coalescer)
		s.setLeader(r)
		for again := true; again; again = s.leadsAgain(r) {
			t.exchanger.Exchange(ctx, led...)
		}
	default:
		t.exchanger.Exchange(ctx, led...)
	}
}

// join queues e at the coalescer of its record. It reports whether the coalescer was idle, and does
// not pause. The caller must then carry out the exchange.
func (t *Table) join(e *Entry) bool {
	s := t.acquire(e.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.coalescer = s
	s.queue = append(s.queue, e)
	if s.busy {
		return false
	}
	s.busy, s.early = true, 1
	if e.assessed.known {
		s.assessed = e.assessed
	}
	s.resets = s.shard.resets.Load()
	return !s.pauses()
}

// leave gives e up with err, unless e has ended. If e is not sent yet, it never will
// be.
func (e *Entry) leave(err error) {
	s := e.coalescer
	s.mu.Lock()
	if e.ended {
		s.mu.Unlock()
		return
	}
	e.Left = err
	e.Unsent = !e.round.Firm && s.unqueue(e)
	s.mu.Unlock()
	if e.Unsent {
		e.round.ended()
		s.release(1)
	}
}

// cache has the Blocks remember value, a record on which e stands. resets is the count of
// resetsOf when the record was read or written.
func (t *Table) cache(e *Entry, value []byte, resets uint64) {
	if t.blocks == nil || resets != t.shards.resetsOf(e.Key) {
		return
	}
	t.blocks.add(e.Key, value, e.decided)
	if resets != t.shards.resetsOf(e.Key) {
		t.blocks.remove(e.Key) // the record was reset meanwhile
	}
}

// Reset deletes the records of keys, all at the same time, from memory too. It returns an
// error for each key, nil for a record that is gone. It calls gone for each of these when it
// is, on any goroutine. If ctx ends meanwhile, its error is that of each record that is not
// gone yet, and the deletions go on by themselves.
func (t *Table) Reset(ctx context.Context, keys []string, gone func(key string)) []error {
	for _, key := range keys {
		t.Forget(key) // calls that read now may see the record that is deleted
	}
	return t.delete(ctx, keys, gone)
}

// Forget removes the record of key from memory: it was changed, or is about to be.
func (t *Table) Forget(key string) {
	t.shards.forget(key)
	if t.blocks != nil {
		t.blocks.remove(key)
	}
}

func (t *Table) delete(ctx context.Context, keys []string, gone func(key string)) []error {
	if err := ctx.Err(); err != nil {
		return slices.Repeat([]error{err}, len(keys))
	}
	errs, results := make([]error, len(keys)), make([]chan error, len(keys))
	places := make(chan struct{}, maxDeletions)
	for i, key := range keys {
		results[i] = make(chan error, 1)
		go func() {
			places <- struct{}{}
			results[i] <- t.deleteOne(key, gone)
			<-places
		}()
	}
	for i := range keys {
		select {
		case errs[i] = <-results[i]:
			continue
		case <-ctx.Done():
		}
		select {
		case errs[i] = <-results[i]: // it was there already
		default:
			errs[i] = ctx.Err()
		}
	}
	return errs
}

// maxDeletions is how many deletions of one Reset are under way at once.
const maxDeletions = 64

func (t *Table) deleteOne(key string, gone func(key string)) error {
	err := t.exchanger.Delete(key)
	t.Forget(key) // even if it failed: the record may be gone
	if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return err
	}
	gone(key)
	return nil
}

// LastSeen returns the record of key as it was last seen, if it is remembered: see
// [Config.Outlasts].
func (t *Table) LastSeen(key string) []byte {
	sh, hash := t.shards.of(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := sh.memory.find(hash, key)
	if i == 0 {
		return nil
	}
	p := sh.memory.at(i)
	if p.coalescer == nil {
		return bytes.Clone(p.text[p.keyLen:])
	}
	p.coalescer.mu.Lock()
	defer p.coalescer.mu.Unlock()
	if item := p.coalescer.seen.item; item != nil {
		return bytes.Clone(item.Value)
	}
	return nil
}

// Size returns how many records t has, and how many of them are being asked about.
func (t *Table) Size() (all, used int) {
	for i := range t.shards.all {
		sh := &t.shards.all[i]
		sh.mu.Lock()
		m := &sh.memory
		all += int(m.n)
		for i := uint32(1); i <= m.n; i++ {
			if m.at(i).coalescer != nil {
				used++
			}
		}
		sh.mu.Unlock()
	}
	return all, used
}

// Queued returns how many Entries wait for the next exchange of key.
func (t *Table) Queued(key string) int {
	sh, hash := t.shards.of(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := sh.memory.find(hash, key)
	if i == 0 || sh.memory.at(i).coalescer == nil {
		return 0
	}
	s := sh.memory.at(i).coalescer
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}
