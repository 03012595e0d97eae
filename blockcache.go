package throttler

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// DefaultBlockCacheTTL is the default of [Throttler.BlockCacheTTL].
const DefaultBlockCacheTTL = 5 * time.Second

// maxBlockRecord is the size in bytes of the largest record that a blockCache keeps. A
// window of some 20,000 hits has that size.
const maxBlockRecord = 64 << 10

// A blockCache remembers records that have blocked a call. Each is used for ttl at
// most, and the least recently used go first.
//
// It keeps the record, not the verdict: the next call is decided on the record by its
// own rule. If that blocks the call and stores nothing, the backend is not asked. A
// full record stays full until its first hit expires or hits are taken back.
type blockCache struct {
	ttl time.Duration

	mu      sync.RWMutex // guards records
	records *simplelru.LRU[string, *blockRecord]
	latest  atomic.Pointer[blockRecord] // the most recently used one; changed under mu
}

type blockRecord struct {
	value       []byte
	from, until instant // when it is used; after that the backend is asked again
}

func newBlockCache(size int, ttl time.Duration) *blockCache {
	c := &blockCache{ttl: ttl}
	if c.ttl <= 0 {
		c.ttl = DefaultBlockCacheTTL
	}
	c.records, _ = simplelru.NewLRU[string, *blockRecord](size, nil) // fails for no size only
	return c
}

// get returns the record of key, if there is one to use at now.
func (c *blockCache) get(key string, now instant) (record, bool) {
	c.mu.RLock()
	kept, ok := c.records.Peek(key)
	c.mu.RUnlock()
	if !ok {
		return record{}, false
	}
	if now < kept.from || now >= kept.until {
		c.drop(key, kept)
		return record{}, false
	}
	c.use(key, kept)
	r, err := decode(kept.value)
	return r, err == nil
}

// use makes kept the most recently used record. A value that is asked for again
// and again is that already: its callers do not wait for each other.
func (c *blockCache) use(key string, kept *blockRecord) {
	if c.latest.Load() == kept {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if current, _ := c.records.Get(key); current == kept {
		c.latest.Store(kept)
	}
}

// drop removes kept, unless another record has taken its place.
func (c *blockCache) drop(key string, kept *blockRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if current, ok := c.records.Peek(key); ok && current == kept {
		c.records.Remove(key)
	}
}

// add keeps a record that has blocked a call at now.
func (c *blockCache) add(key string, value []byte, now instant) {
	if len(value) > maxBlockRecord {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &blockRecord{value: value, from: now, until: now.add(c.ttl)}
	c.records.Add(key, kept)
	c.latest.Store(kept)
}

func (c *blockCache) remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records.Remove(key)
}
