// Package memstore keeps items in process memory with the semantics of a
// memcached server. With it, a throttler needs no server. Each process counts by
// itself, and its items end with it.
//
// A [Store] has five methods of *memcache.Client of github.com/bradfitz/gomemcache,
// with the arguments, results and errors that memcached 1.6.18 gives through that
// client. These differ:
//
//   - An item expires at its own time, to the nanosecond, and never early.
//     memcached counts in whole seconds and may drop it up to a second early.
//   - If the wall clock is set, only an absolute Expiration follows it.
//   - An empty key is memcache.ErrMalformedKey. The real client sends it, and the
//     server answers ERROR and reads the value as the next command.
package memstore

import (
	"context"
	"sync"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/bradfitz/gomemcache/memcache"
)

// The defaults of a [Store].
const (
	defaultMaxItems = 100_000
	defaultMaxBytes = 64 << 20
)

// A Store holds up to MaxItems items in memory, with up to MaxBytes of keys and
// values. If a new item does not fit, the Store removes expired items, and then evicts
// the least recently used: in a large Store, first of a sixteenth of all keys. Get,
// GetMulti, CompareAndSwap and Add use an item, even an Add that stores nothing.
//
// Bans go last: a flood of other values does not evict one. An item is a ban if its
// Flags have the bit [exchange.BanFlag]. If more than half of the items are bans,
// the least recently used ban is evicted instead, so that there is room for what is
// still being counted.
//
// An expired item is never returned. It takes up its place until its key is asked
// for or something is stored. Of a removed item, about 90 bytes are kept for later ones.
// A Store starts no goroutine and needs no Close.
//
// The zero Store is ready to use. Set the options before the first use, and do not
// copy a Store after it. All methods are safe for concurrent use.
type Store struct {
	// MaxItems is the largest number of items. An item takes about 120 bytes
	// besides its key and value: a full Store with keys of 35 and values of 60
	// bytes is 21 MB. A limit of each of a million values needs a million: what does
	// not fit is evicted, which only [Stats] and otelthrottle's metric
	// throttler.memory.evictions tell. Default: 100,000.
	MaxItems int

	// MaxBytes is the largest size of all keys and values together. A single item
	// that is larger is refused. With both defaults a Store takes about 100 MB at
	// most. Default: 64 MiB.
	MaxBytes int

	once  sync.Once
	items *items.Store
}

// New returns an empty Store, as new(Store) does.
func New() *Store { return new(Store) }

// inside returns what keeps the items of s.
func (s *Store) inside() *items.Store {
	s.once.Do(func() {
		s.items = items.New(positive(s.MaxItems, defaultMaxItems), positive(s.MaxBytes, defaultMaxBytes))
	})
	return s.items
}

func positive(n, byDefault int) int {
	if n < 1 {
		return byDefault
	}
	return n
}

// Inside is for package throttler, which decides on records where they are. It returns nil if
// client is not s itself: a Client that embeds s may have methods of its own.
func (s *Store) Inside(client any) *items.Store {
	if client != any(s) {
		return nil
	}
	return s.inside()
}

// Get returns a copy of the item at key: its Key, Value, Flags and CasID. Its
// Expiration is 0, as with the real client. The error is memcache.ErrCacheMiss if
// there is no item, and memcache.ErrMalformedKey if the key is illegal.
func (s *Store) Get(key string) (*memcache.Item, error) { return s.inside().Get(key) }

// GetMulti returns copies of the items at keys, by key. A missing item has no entry.
// Each is looked up by itself: a write may come between two of them. If a key is
// illegal, the map is nil and the error memcache.ErrMalformedKey.
func (s *Store) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	return s.inside().GetMulti(keys)
}

// Add stores a copy of item if there is none at its key. If there is one, the error is
// memcache.ErrNotStored.
//
// Expiration is in seconds. 0 means never. Up to 30 days it counts from now, and a
// larger one is a Unix time. If it is negative or past, Add returns no error, and the
// item is gone at once.
//
// The error is memcache.ErrMalformedKey if the key is illegal. It gives the sizes if
// key and value exceed MaxBytes, or the item exceeds 1 MiB as memcached counts: the
// key, the value, 59 bytes, and 4 more if Flags are not 0. After an error the Store is
// unchanged.
func (s *Store) Add(item *memcache.Item) error { return s.inside().Add(item) }

// CompareAndSwap stores a copy of item if its CasID is that of the item at its key.
// If another item was stored since, the error is memcache.ErrCASConflict. If there is
// none any more, it is memcache.ErrCacheMiss, as the real client returns, although its
// documentation says ErrNotStored. Expiration and the other errors are those of Add.
func (s *Store) CompareAndSwap(item *memcache.Item) error { return s.inside().CompareAndSwap(item) }

// Delete removes the item at key. The error is memcache.ErrCacheMiss if there is no
// item, and memcache.ErrMalformedKey if the key is illegal.
func (s *Store) Delete(key string) error { return s.inside().Delete(key) }

// Exchange carries out each of xs at once: no write comes between its read and its
// write. It implements [exchange.Exchanger], and ignores ctx.
func (s *Store) Exchange(_ context.Context, xs ...exchange.Exchange) { s.inside().Start(xs...) }

// Start is Exchange.
func (s *Store) Start(xs ...exchange.Exchange) { s.inside().Start(xs...) }

// Stats is the state of a Store at one moment.
type Stats struct {
	Items int // expired ones included that still take up a place
	Bytes int // of their keys and values

	// Evictions is the number of items that were evicted before they expired,
	// since the Store was first used. Each may be a count or a ban that was
	// forgotten early. If it grows in normal operation, raise MaxItems or
	// MaxBytes.
	Evictions uint64
}

// Stats returns the Stats of now.
func (s *Store) Stats() Stats {
	n, bytes, evictions := s.inside().Stats()
	return Stats{Items: n, Bytes: bytes, Evictions: evictions}
}
