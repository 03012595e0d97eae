package slots

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxBlockRecord is the size in bytes of the largest record that Blocks keep. A
// window of some 20,000 hits has that size.
const maxBlockRecord = 64 << 10

// Blocks remember records that have blocked a call. Each is used for ttl at
// most, and the least recently used go first.
//
// They keep the record, not the verdict: the next call is decided on the record by its
// own rule. If that blocks the call and stores nothing, the backend is not asked. A
// full record stays full until its first hit expires or hits are taken back.
type Blocks struct {
	ttl time.Duration

	mu      sync.RWMutex // guards records
	records *simplelru.LRU[string, *blockRecord]
	latest  atomic.Pointer[blockRecord] // the most recently used one; changed under mu
}

type blockRecord struct {
	value       []byte
	from, until record.Instant // when it is used; after that the backend is asked again
}

// NewBlocks returns Blocks of up to size records, each used for ttl at most.
func NewBlocks(size int, ttl time.Duration) *Blocks {
	c := &Blocks{ttl: ttl}
	c.records, _ = simplelru.NewLRU[string, *blockRecord](size, nil) // fails for no size only
	return c
}

// Get returns the record of key, if there is one to use at now.
func (c *Blocks) Get(key string, now record.Instant) (record.Record, bool) {
	c.mu.RLock()
	kept, ok := c.records.Peek(key)
	c.mu.RUnlock()
	if !ok {
		return record.Record{}, false
	}
	if now < kept.from || now >= kept.until {
		c.drop(key, kept)
		return record.Record{}, false
	}
	c.use(key, kept)
	r, err := record.Decode(kept.value)
	return r, err == nil
}

// use makes kept the most recently used record. A value that is asked for again
// and again is that already: its callers do not wait for each other.
func (c *Blocks) use(key string, kept *blockRecord) {
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
func (c *Blocks) drop(key string, kept *blockRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if current, ok := c.records.Peek(key); ok && current == kept {
		c.records.Remove(key)
	}
}

// add keeps a record that has blocked a call at now.
func (c *Blocks) add(key string, value []byte, now record.Instant) {
	if len(value) > maxBlockRecord {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &blockRecord{value: value, from: now, until: now.Add(c.ttl)}
	c.records.Add(key, kept)
	c.latest.Store(kept)
}

func (c *Blocks) remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records.Remove(key)
}
