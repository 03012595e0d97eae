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

// A Client stores records. It has five methods of [memcache.Client] of
// github.com/bradfitz/gomemcache, with the same meanings and errors. Package
// memstore has a Client in process memory, package pool one over memcached servers.
//
// The throttler calls the methods from several goroutines at once, always with
// legal keys. An item that the Client gets or returns belongs to the throttler, which
// does not change the Value of a returned item.
//
// A Client may implement [Exchanger]. Its errors may implement [KeyError] and
// [MaybeDoneError].
type Client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

// A KeyError is an error of GetMulti that returns the error of each key, or nil. A
// key without an error and without an item is not stored. After any other error, the
// throttler asks for each missing key by itself.
type KeyError interface {
	error
	KeyError(key string) error
}

// A MaybeDoneError is an error of Add or CompareAndSwap, from a Client that repeats a
// write whose answer was lost. The record had changed. MaybeDone reports whether the
// first try may have changed it.
type MaybeDoneError interface {
	error
	MaybeDone() bool
}

// lostRace reports whether err, of Add or CompareAndSwap, means that the record has
// changed since it was read.
func lostRace(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) ||
		errors.Is(err, memcache.ErrNotStored) ||
		errors.Is(err, memcache.ErrCacheMiss)
}

// maybeDone reports whether the write that returned err may have changed the record
// itself.
func maybeDone(err error) bool {
	var lost MaybeDoneError
	return errors.As(err, &lost) && lost.MaybeDone()
}

// An unavailableError is the error of a client whose server does not answer.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error        { return e.error }
func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

// classified returns err. If err means that a server does not answer, the result
// matches [ErrUnavailable].
func classified(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || !(isTimeout(err) || isBroken(err)) {
		return err
	}
	return unavailableError{err}
}

// isTimeout reports whether err is a timeout. That of gomemcache for a dial does not say
// so by a method.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	var dial *memcache.ConnectTimeoutError
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() ||
		errors.As(err, &dial)
}

// isBroken reports whether err means that a connection is lost or cannot be made.
func isBroken(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, memcache.ErrNoServers) || errors.Is(err, net.ErrClosed)
}

// A backend is a client of a Throttler, with the exchanges that are under way there.
type backend struct {
	client    Client
	exchanger Exchanger
	inliner   Inliner // does exchanges at once, on the caller's goroutine; nil: the exchanger does them
	slots     slots
	t         *Throttler
}

func newBackend(client Client, t *Throttler) *backend {
	b := &backend{client: client, t: t}
	var ok bool
	if b.exchanger, ok = client.(Exchanger); !ok {
		b.exchanger = &plain{client: client, gate: gate{places: maxUnderWay, limit: t.queueTimeout()}}
	}
	b.inliner, _ = client.(Inliner)
	b.slots.init(t.recordCache())
	return b
}

// ask sends all entries of r. It returns when each is settled or ctx ends. Entries
// that are not settled then are left.
func (b *backend) ask(ctx context.Context, r *round) {
	if err := ctx.Err(); err != nil && !r.firm {
		for _, e := range r.entries {
			e.left, e.unsent = err, true
		}
		return
	}
	if b.inliner != nil {
		x := r.inlined
		if x == nil {
			x = new(inlined)
		}
		for _, e := range r.entries {
			x.entry = e
			b.askInline(x)
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
	clear(led) // the room of a later call
	if r.wait(ctx) {
		return
	}
	for _, e := range r.entries {
		b.leave(e, ctx.Err())
	}
}

// lead carries out the exchanges of the slots in led. If it is one slot, r carries out
// its next exchanges too, as long as r needs them.
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

// cache returns the cache of b's records that block, or nil.
func (b *backend) cache() *blockCache {
	if b != b.t.backend() {
		return nil
	}
	return b.t.blockCache()
}

// keep remembers value, a record that blocks e. resets is the count of resetsOf when
// the record was read or written.
func (b *backend) keep(e *entry, value []byte, resets uint64) {
	cache := b.cache()
	if cache == nil || resets != b.slots.resetsOf(e.key) {
		return
	}
	cache.add(e.key, value, e.decidedAt)
	if resets != b.slots.resetsOf(e.key) {
		cache.remove(e.key) // the record was reset meanwhile
	}
}

// join queues e at the slot of its record. It reports whether the slot was idle. The
// caller must then carry out the exchange.
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

// leave gives e up with err, unless e is settled. If e is not sent yet, it never will
// be. Otherwise only Cancel uses its result.
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

// reset deletes the records of rule's conditions, from memory too.
func (b *backend) reset(ctx context.Context, rule Rule) error {
	conditions := rule.conditions()
	keys := make([]string, len(conditions))
	for i, c := range conditions {
		keys[i] = key(rule.Identifier, c.Name, c.Value)
		b.forget(keys[i]) // calls that read now may see the record that is deleted
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

// forget removes the record of key from memory.
func (b *backend) forget(key string) {
	b.slots.forget(key)
	if cache := b.cache(); cache != nil {
		cache.remove(key)
	}
}

// delete deletes keys, all at the same time, and returns an error for each. If ctx
// ends meanwhile, its error is added, and the deletions go on by themselves.
func (b *backend) delete(ctx context.Context, keys []string) []error {
	errs := make([]error, len(keys))
	if err := ctx.Err(); err != nil {
		return append(errs, err)
	}
	if b.inliner != nil {
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
		entries[i] = &entry{question: question{op: opBan, backend: b, key: key(rule.Identifier, c.Name, c.Value), length: length}}
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
