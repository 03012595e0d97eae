package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/adapter"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/waitqueue"
	"github.com/bradfitz/gomemcache/memcache"
)

// Config is what an Engine is made with. See the fields of throttler.Throttler of the same
// names.
type Config struct {
	Client       adapter.Client
	BlockCache   int // 0 or less: none
	BlockTTL     time.Duration
	QueueTimeout time.Duration
	Records      int  // to remember
	Large        int  // a record counts once more for each so many bytes
	Outlasts     bool // a fallback is to know what was last seen
}

// An Engine decides calls. It holds everything that outlives one: the stores, what is known of
// their records, the calls that wait, and the leases that are held.
type Engine struct {
	config    Config
	main      *backend
	second    atomic.Pointer[backend] // see fallback
	blocks    *coalesce.Blocks        // records of main that block; nil: none
	counts    coalesce.Counts
	cacheHits atomic.Uint64
	ahead     atomic.Uint64   // records that were found as a clock ahead had written them
	queue     waitqueue.Queue // of the calls of Wait
	holds     holds           // of Hold
	hands     hands           // of Prefetch
}

// New returns an Engine.
func New(c Config) *Engine {
	e := new(Engine)
	if c.BlockCache > 0 {
		e.blocks = coalesce.NewBlocks(c.BlockCache, c.BlockTTL)
	}
	e.main = e.newBackend(c.Client, e.blocks, &c)
	e.config = c
	return e
}

// UseFallback lets client decide where the main backend has failed, from now on: a share of each
// Max. Only the first call counts.
func (e *Engine) UseFallback(client adapter.Client, share float64) {
	if e.second.Load() == nil {
		b := e.newBackend(client, nil, &e.config)
		b.share = share
		e.second.CompareAndSwap(nil, b)
	}
}

// fallback returns the backend that decides where the main one has failed, or nil.
func (e *Engine) fallback() *backend { return e.second.Load() }

// A backend is a store of an Engine's records: the main one, or the fallback.
type backend struct {
	*coalesce.Table
	engine *Engine
	items  *items.Store // decides at once, on the caller's goroutine; nil: the Table does
	hashed items.Head   // of keys in memory that are hashed
	share  float64      // of the fallback: the part of each Max that it allows; 0: all
}

// newBackend returns the backend of client. blocks may be nil.
func (e *Engine) newBackend(client adapter.Client, blocks *coalesce.Blocks, c *Config) *backend {
	x, ok := client.(coalesce.Exchanger)
	if !ok {
		x = adapter.New(client, c.QueueTimeout)
	}
	b := &backend{engine: e, Table: coalesce.NewTable(x, coalesce.Config{
		Remembered: c.Records,
		Large:      c.Large,
		Timeout:    c.QueueTimeout,
		Blocks:     blocks,
		Outlasts:   c.Outlasts,
		Counts:     &e.counts,
	})}
	// A memstore has its records in items.Store, and decisions go there past its public face.
	if s, ok := client.(interface{ Inside(client any) *items.Store }); ok {
		if b.items = s.Inside(client); b.items != nil {
			b.hashed, _ = b.items.Head(record.HashedKey)
		}
	}
	return b
}

// ask carries out the entries of r. It returns when each has ended, or ctx has.
func (b *backend) ask(ctx context.Context, r *coalesce.Round) {
	if b.items == nil {
		b.Ask(ctx, r)
		return
	}
	at := time.Now()
	for _, e := range r.Entries {
		if err := ctx.Err(); err != nil && !r.Firm {
			e.Left, e.Unsent = err, true
			continue
		}
		head, tail := b.items.Head(e.Key)
		_, e.Note, e.Err = b.visit(e.Change.(*change), head, tail, &at)
	}
}

// visit carries out c on the record of a key in memory, at the time at or later. It returns
// the key as the store keeps it, "" if there is no record. What could not be stored has failed
// with err, unless it blocks all the same: then note says why it was not stored.
func (b *backend) visit(c *change, head items.Head, tail string, at *time.Time) (key string, note, err error) {
	key, err = b.apply(c, head, tail, at, true)
	if err != nil && !errors.Is(err, record.ErrNewerRecord) {
		c.Doubt() // what could not be stored bans nobody
		if _, again := b.apply(c, head, tail, at, false); again == nil && c.Stands() {
			return key, err, nil
		}
	}
	return key, nil, err
}

// apply applies c to the record of a key in memory, and stores it if store is set.
func (b *backend) apply(c *change, head items.Head, tail string, at *time.Time, store bool) (key string, err error) {
	b.engine.counts.Exchanges.Add(1)
	var newer error
	key, err = b.items.Visit(head, tail, *at, func(now time.Time, found, room []byte) (value []byte, expiration int32, flags uint32) {
		*at = now
		var r record.Record
		if len(found) > 0 {
			if newer = r.Decode(found); newer == record.ErrNewerRecord {
				return nil, 0, 0
			}
			newer = nil
		}
		i := record.InstantOf(now)
		if !c.Apply(i, &r) || !store {
			return nil, 0, 0
		}
		if r.HoldsBan(i) {
			flags = exchange.BanFlag
		}
		return r.Append(room), record.Expiration(i, r.End()), flags
	})
	if newer != nil {
		err = newer
	}
	return key, err
}

// reset deletes the records of keys.
func (b *backend) reset(ctx context.Context, keys []string) error {
	if b.items == nil {
		errs := b.Reset(ctx, keys, b.engine.freed)
		for i, err := range errs {
			if !Same(err, ctx.Err()) {
				errs[i] = adapter.Classified(err)
			}
		}
		return Join(errs...)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var failed error
	for _, key := range keys {
		if err := b.items.Delete(key); err != nil && err != memcache.ErrCacheMiss {
			failed = Join(failed, err)
			continue
		}
		b.engine.freed(key)
	}
	return failed
}

// freed notes that there is room in the record of key, and wakes the calls that wait for it.
func (e *Engine) freed(key string) {
	e.hands.reopen(key)
	e.queue.Wake(key)
}

// notify tells the Engine of b that hits were given back in the record of key, and wakes the
// calls that wait for it. A Decision may be used through another Engine, by, that has the
// same records: then that is told too.
func (b *backend) notify(by *Engine, key string) {
	b.engine.freed(key)
	if by != b.engine {
		by.main.Forget(key)
		by.freed(key)
	}
}

// Stats are counts since the Engine was made, and gauges of now.
type Stats struct {
	Exchanges, Guesses, RightGuesses, LostRaces, CacheHits, ClockAhead uint64

	GivenBack, Expired uint64 // hits that were taken ahead

	InHand     int // hits
	Waiting    int // records that calls wait for
	Remembered int // records that are remembered
	Busy       int // of these, records that are asked about
}

// Stats returns the Stats of now.
func (e *Engine) Stats() Stats {
	s := Stats{
		Exchanges: e.counts.Exchanges.Load(), Guesses: e.counts.Guesses.Load(), RightGuesses: e.counts.RightGuesses.Load(),
		LostRaces: e.counts.LostRaces.Load(), CacheHits: e.cacheHits.Load(), ClockAhead: e.ahead.Load(), Waiting: e.queue.Len(),
	}
	s.Remembered, s.Busy = e.main.Size()
	e.hands.mu.Lock()
	defer e.hands.mu.Unlock()
	s.GivenBack, s.Expired = e.hands.givenBack, e.hands.expired
	now := time.Now()
	for _, h := range e.hands.all {
		if h.holds(now) {
			s.InHand += h.count()
		}
	}
	return s
}
