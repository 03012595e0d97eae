package throttler

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// A Client keeps records. It is the part of [memcache.Client] of
// github.com/bradfitz/gomemcache that a throttler needs, with the meanings and
// the errors that it has there; package memstore has one in process memory,
// package pool one over several servers.
//
// Its methods are called from several goroutines at once, always with legal
// keys. An item that it was given or has returned belongs to the throttler,
// which does not change the values of those it was returned.
//
// A Client may also be an [Exchanger], and its errors a [KeyError] or a
// [MaybeDoneError].
type Client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

// A KeyError is an error of GetMulti that says of each key whether it could be
// looked up. A key without an error and without an item is one that is not
// stored. After any other error, keys without an item are asked for one by one.
type KeyError interface {
	error
	KeyError(key string) error
}

// A MaybeDoneError is an error of Add or CompareAndSwap of a Client that tries
// again by itself after an answer was lost. It says that the record had changed,
// perhaps by the first try of the same write.
type MaybeDoneError interface {
	error
	MaybeDone() bool
}

// lostRace reports whether err, of Add or CompareAndSwap, says that the record
// has changed since it was read.
func lostRace(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) ||
		errors.Is(err, memcache.ErrNotStored) ||
		errors.Is(err, memcache.ErrCacheMiss)
}

// maybeDone reports whether err, though it says that the record had changed, may
// be about the write itself.
func maybeDone(err error) bool {
	var lost MaybeDoneError
	return errors.As(err, &lost) && lost.MaybeDone()
}

// An unavailableError is the error of a client whose server does not answer.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error        { return e.error }
func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

// classified returns err so that it matches [ErrUnavailable] if it says that a
// server does not answer.
func classified(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || !(isTimeout(err) || isBroken(err)) {
		return err
	}
	return unavailableError{err}
}

// isTimeout reports whether err says that nothing came in time.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// isBroken reports whether err says that a connection is lost or cannot be made.
func isBroken(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, memcache.ErrNoServers) || errors.Is(err, net.ErrClosed)
}

// A backend is what a Throttler asks: a client, and what is under way there.
type backend struct {
	client    Client
	exchanger Exchanger
	inline    bool    // exchanges are done on the caller's goroutine, at once
	inliner   Inliner // then
	slots     slots
	t         *Throttler
}

func newBackend(client Client, t *Throttler) *backend {
	b := &backend{client: client, t: t}
	var ok bool
	if b.exchanger, ok = client.(Exchanger); !ok {
		b.exchanger = &plain{client: client, gate: gate{places: maxUnderWay, limit: t.queueTimeout()}}
	}
	b.inliner, b.inline = client.(Inliner)
	b.slots.init(t.recordCache())
	return b
}

// ask sends all entries of r and returns when each is settled, or when ctx is
// done, whichever comes first. Those that are not settled then are left.
func (b *backend) ask(ctx context.Context, r *round) {
	if err := ctx.Err(); err != nil && !r.firm {
		for _, e := range r.entries {
			e.left, e.unsent = err, true
		}
		return
	}
	if b.inline {
		for _, e := range r.entries {
			b.askInline(e)
		}
		return
	}
	r.begin(len(r.entries))
	led := r.led[:0]
	for _, e := range r.entries {
		e.round = r
		if b.join(e) {
			led = append(led, e.slot)
		}
	}
	b.lead(ctx, r, led)
	if r.wait(ctx) {
		return
	}
	for _, e := range r.entries {
		b.leave(e, ctx.Err())
	}
}

// lead carries out the exchanges of the slots that r is the first to need. If it
// is one, its next exchange is r's too, as long as r needs one.
func (b *backend) lead(ctx context.Context, r *round, led []*slot) {
	if len(led) == 0 {
		return
	}
	if len(led) > 1 {
		xs := make([]Exchange, len(led))
		for i, s := range led {
			xs[i] = s
		}
		b.exchanger.Exchange(ctx, xs...)
		return
	}
	s := led[0]
	s.setLeader(r)
	for again := true; again; again = s.leadsAgain(r) {
		b.exchanger.Exchange(ctx, s.self[:]...)
	}
}

// cache returns where b's records that block are remembered, nil for nowhere.
func (b *backend) cache() *blockCache {
	if b != b.t.backend() {
		return nil
	}
	return b.t.blockCache()
}

// keep remembers value, which blocks e. resets is how often something was forgotten
// when the record was read, or written.
func (b *backend) keep(e *entry, value []byte, resets uint64) {
	cache := b.cache()
	if cache == nil || resets != b.slots.resetsOf(e.key) {
		return
	}
	cache.add(e.key, value, e.decidedAt)
	if resets != b.slots.resetsOf(e.key) {
		cache.remove(e.key) // it was forgotten meanwhile
	}
}

// join queues e at the slot of its record. It reports whether the slot was idle: then
// the caller carries out the exchange.
func (b *backend) join(e *entry) bool {
	s := b.slots.acquire(b, e.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.slot = s
	s.queue = append(s.queue, e)
	if s.busy {
		return false
	}
	s.busy, s.early = true, 1
	if e.assessed.known {
		s.assessed = e.assessed
	}
	s.resets = s.shard.resets.Load()
	return true
}

// leave gives e up, unless it is settled. If e is not sent yet, it never will be.
// Otherwise its result is for Cancel alone.
func (b *backend) leave(e *entry, err error) {
	s := e.slot
	s.mu.Lock()
	if e.settled {
		s.mu.Unlock()
		return
	}
	e.left = err
	e.unsent = !e.round.firm && s.unqueue(e)
	s.mu.Unlock()
	if e.unsent {
		e.round.settle()
		s.release(1)
	}
}

// reset deletes the records of rule's conditions, and forgets what they were.
func (b *backend) reset(ctx context.Context, rule Rule) error {
	conditions := rule.conditions()
	keys := make([]string, len(conditions))
	for i, c := range conditions {
		keys[i] = key(rule.Identifier, c.Name, c.Value)
		b.forget(keys[i]) // what is read until then may be what is deleted
	}
	errs := b.delete(ctx, keys)
	for i, key := range keys {
		b.forget(key)
		if errs[i] == nil {
			b.t.queue.wake(key)
		}
	}
	return join(errs...)
}

// forget drops what is remembered of key.
func (b *backend) forget(key string) {
	b.slots.forget(key)
	if cache := b.cache(); cache != nil {
		cache.remove(key)
	}
}

// delete deletes keys, all at the same time, and returns an error for each. When
// ctx is done, what is still running goes on unheard until the client gives it up.
func (b *backend) delete(ctx context.Context, keys []string) []error {
	errs := make([]error, len(keys))
	if err := ctx.Err(); err != nil {
		return append(errs, err)
	}
	if b.inline {
		for i, key := range keys {
			errs[i] = b.deleteOne(key)
		}
		return errs
	}
	type result struct {
		i   int
		err error
	}
	next, results := make(chan int, len(keys)), make(chan result, len(keys))
	for i := range keys {
		next <- i
	}
	close(next)
	for range min(len(keys), maxUnderWay) {
		go func() {
			for i := range next {
				results <- result{i, b.deleteOne(keys[i])}
			}
		}()
	}
	for range keys {
		select {
		case r := <-results:
			errs[r.i] = r.err
		case <-ctx.Done():
			return append(errs, ctx.Err())
		}
	}
	return errs
}

func (b *backend) deleteOne(key string) error {
	err := b.exchanger.Delete(key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil
	}
	return classified(err)
}

// ban bans the values of rule's conditions for length from now.
func (b *backend) ban(ctx context.Context, rule Rule, length time.Duration) error {
	conditions := rule.conditions()
	entries := make([]*entry, len(conditions))
	for i, c := range conditions {
		entries[i] = &entry{op: opBan, backend: b, key: key(rule.Identifier, c.Name, c.Value), length: length}
	}
	askAll(ctx, entries, false)
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = e.failed(); errs[i] == nil {
			b.t.queue.wake(e.key)
		}
	}
	return join(errs...)
}
