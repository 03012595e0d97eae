package coalesce

import (
	"container/list"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// maxBlockRecord is the size in bytes of the largest record that Blocks keep. A
// window of some 20,000 hits has that size.
const maxBlockRecord = 64 << 10

// Blocks remember records that have blocked a call. Each is used for ttl at
// most. If there are too many, the oldest goes that was not used since it was last
// among those to go.
//
// They keep the record, not the verdict: the next call is decided on the record by its
// own rule. If that blocks the call and stores nothing, the backend is not asked. A
// full record stays full until its first hit expires or hits are taken back.
type Blocks struct {
	ttl  time.Duration
	size int

	mu      sync.RWMutex // guards what follows
	records map[string]*blockRecord
	order   list.List // of all records, the next one to go first
}

type blockRecord struct {
	key         string
	value       []byte
	from, until record.Instant // when it is used; after that the backend is asked again
	place       *list.Element  // in the order
	used        atomic.Bool    // since it was last among those to go
}

// NewBlocks returns Blocks of up to size records, each used for ttl at most.
func NewBlocks(size int, ttl time.Duration) *Blocks {
	return &Blocks{ttl: ttl, size: size, records: make(map[string]*blockRecord)}
}

// Get returns the record of key, if there is one to use at now.
func (c *Blocks) Get(key string, now record.Instant) (record.Record, bool) {
	c.mu.RLock()
	kept := c.records[key]
	c.mu.RUnlock()
	if kept == nil {
		return record.Record{}, false
	}
	if now < kept.from || now >= kept.until {
		c.drop(kept)
		return record.Record{}, false
	}
	if !kept.used.Load() { // callers of one value do not wait for each other
		kept.used.Store(true)
	}
	r, err := record.Decode(kept.value)
	return r, err == nil
}

// drop removes kept, unless another record has taken its place.
func (c *Blocks) drop(kept *blockRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records[kept.key] == kept {
		c.removeLocked(kept)
	}
}

// add keeps a record that has blocked a call at now.
func (c *Blocks) add(key string, value []byte, now record.Instant) {
	if len(value) > maxBlockRecord {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.records[key]; old != nil {
		key = old.key
		c.removeLocked(old)
	} else {
		key = strings.Clone(key) // it may be a part of several keys
	}
	for len(c.records) >= c.size {
		oldest := c.order.Front()
		if of := oldest.Value.(*blockRecord); of.used.Swap(false) {
			c.order.MoveToBack(oldest)
		} else {
			c.removeLocked(of)
		}
	}
	kept := &blockRecord{key: key, value: value, from: now, until: now.Add(c.ttl)}
	c.records[key] = kept
	kept.place = c.order.PushBack(kept)
}

func (c *Blocks) remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept := c.records[key]; kept != nil {
		c.removeLocked(kept)
	}
}

// removeLocked removes kept. The caller holds the lock.
func (c *Blocks) removeLocked(kept *blockRecord) {
	delete(c.records, kept.key)
	c.order.Remove(kept.place)
}
