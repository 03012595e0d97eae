package throttler

import (
	"context"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/adaptivethrottler/throttler/internal/plain"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/slots"
	"github.com/bradfitz/gomemcache/memcache"
)

// A Client stores records: pass one to [New], such as a memstore, a pool of memcached
// servers or a redisstore, or write one for a store of your own (docs/stores.md). It has
// five methods of [memcache.Client] of github.com/bradfitz/gomemcache, with the same
// meanings and errors.
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

// A KeyError is an error of GetMulti, from a Client of your own whose servers fail one by
// one: it returns the error of each key, or nil. A key without an error and without an item
// is not stored. After any other error, the throttler asks for each missing key by itself.
type KeyError interface {
	error
	KeyError(key string) error
}

// A MaybeDoneError is an error of Add or CompareAndSwap, from a Client of your own that
// repeats a write whose answer was lost. The record had changed. MaybeDone reports whether the
// first try may have changed it.
type MaybeDoneError interface {
	error
	MaybeDone() bool
}

// What a store of your own may do besides, for one round trip instead of two:
// docs/stores.md says how, and package exchange explains each.
type (
	// An Exchanger is a Client of your own that writes a record and reads it back in one
	// round trip: see docs/stores.md and [exchange.Exchanger].
	Exchanger = exchange.Exchanger

	// An Exchange is what an [Exchanger] of your own carries out: it writes one record and
	// reads it back. See docs/stores.md and [exchange.Exchange].
	Exchange = exchange.Exchange

	// A Turn is what an [Exchanger] of your own tells when it sends an Exchange. See
	// docs/stores.md and [exchange.Turn].
	Turn = exchange.Turn

	// A Result is what an [Exchanger] of your own tells at the end of an Exchange. See
	// docs/stores.md and [exchange.Result].
	Result = exchange.Result

	// An Inliner is an [Exchanger] of your own in process memory. See docs/stores.md and
	// [exchange.Inliner].
	Inliner = exchange.Inliner
)

// ErrOverloaded matches, by errors.Is, the error of a condition that was not decided
// in time although its server answers. This process asks more than the server can
// carry, or too many others change the same record.
var ErrOverloaded = exchange.ErrOverloaded

// ErrUnavailable matches, by errors.Is, the error of a condition whose server does not
// answer: it is down, cut off or hung, or has too many connections to take another one.
var ErrUnavailable = exchange.ErrUnavailable

// ErrNoCAS matches, by errors.Is, the error of a condition whose server is set up wrongly:
// its records come without a CAS token, so nothing can be stored. memcached runs with -C,
// or what answers in its place knows no tokens.
var ErrNoCAS = exchange.ErrNoCAS

// A backend is a store of t's records: the main one, or the fallback.
type backend struct {
	*slots.Table
	t      *Throttler
	memory *items.Store // the store itself, if it is a memstore
}

// newBackend returns the backend of client. blocks may be nil.
func (t *Throttler) newBackend(client Client, blocks *slots.Blocks) *backend {
	timeout := t.queueTimeout()
	x, ok := client.(Exchanger)
	if !ok {
		x = plain.New(client, timeout)
	}
	records, large := t.recordCache()
	var memory *items.Store
	if s, ok := client.(interface{ Inside(client any) *items.Store }); ok {
		memory = s.Inside(client)
	}
	return &backend{t: t, memory: memory, Table: slots.NewTable(x, slots.Config{
		Remembered: records,
		Large:      large,
		Timeout:    timeout,
		Blocks:     blocks,
		Outlasts:   t.Fallback != nil,
		Counts:     &t.counts,
	})}
}

// askAll asks the backend of each of entries. With firm set they are carried out
// even if ctx ends before.
func askAll(ctx context.Context, entries []*entry, firm bool) {
	for len(entries) > 0 {
		b := entries[0].backend
		r := &slots.Round{Firm: firm}
		var others []*entry
		for _, e := range entries {
			if e.backend == b {
				r.Entries = append(r.Entries, &e.Entry)
			} else {
				others = append(others, e)
			}
		}
		b.Ask(ctx, r)
		entries = others
	}
}

// reset deletes the records of rule's conditions, from memory too.
func (b *backend) reset(ctx context.Context, rule Rule) error {
	keys := rule.keys()
	errs := b.Reset(ctx, keys, func(key string) { b.t.queue.Wake(key) })
	for i, err := range errs {
		if !same(err, ctx.Err()) {
			errs[i] = plain.Classified(err)
		}
	}
	return join(errs...)
}

// ban bans the values of rule's conditions for length from now.
func (b *backend) ban(ctx context.Context, rule Rule, length time.Duration) error {
	keys := rule.keys()
	entries := make([]*entry, len(keys))
	for i, key := range keys {
		entries[i] = &entry{length: length}
		entries[i].begin(b, opBan, key)
	}
	askAll(ctx, entries, false)
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = e.Failed(); errs[i] == nil {
			b.t.queue.Wake(e.Key)
		}
	}
	return join(errs...)
}

// tell tells the Throttler of b that hits were given back in the record of key, and wakes the
// calls that wait for it. A Decision may be used through another Throttler, by, that has the
// same records: then that is told too.
func (b *backend) tell(by *Throttler, key string) {
	b.t.queue.Wake(key)
	if by != b.t {
		by.backend().Forget(key)
		by.queue.Wake(key)
	}
}

// keys returns the keys of the records of r's conditions.
func (r *Rule) keys() []string {
	conditions := r.conditions()
	keys := make([]string, len(conditions))
	for i, c := range conditions {
		keys[i] = record.Key(r.Identifier, c.Name, c.Value)
	}
	return keys
}
