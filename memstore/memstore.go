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
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/legal"
	"github.com/bradfitz/gomemcache/memcache"
)

// The defaults of a [Store].
const (
	DefaultMaxItems = 100_000
	DefaultMaxBytes = 64 << 20
)

// The bounds of memcached.
const (
	maxRelative = 30 * 24 * 60 * 60 // in seconds; a larger Expiration is a Unix time

	maxItemSize = 1 << 20
	itemHeader  = 59 // header, CAS token, the key's NUL and the value's CR LF
	flagsInItem = 4  // the size of Flags that are not 0
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

	start  sync.Once
	began  time.Time
	seed   maphash.Seed
	shards []shard

	_         cacheLine    // what follows is written, and what is above is only read
	items     atomic.Int64 // the number of items in all shards
	bytes     atomic.Int64 // their size
	evictions atomic.Uint64
	_         cacheLine
}

// A cacheLine keeps apart what several processors use.
type cacheLine [64]byte

// A Store of at least this many items and bytes is divided into shards, each with
// a lock of its own. It evicts the least recently used item of one shard, which is
// nearly that of all.
const (
	shards       = 16
	shardedItems = 1024 * shards
	shardedBytes = maxItemSize * shards
)

// A shard holds the items of some of the keys.
type shard struct {
	mu    sync.Mutex // guards what follows
	nodes slab
	items index
	uses  recency // of the items that are no bans
	bans  recency
	ends  expiries
	last  moment        // the latest that it was asked at
	lent  memcache.Item // what an inlined exchange is told, while it lasts

	lastCAS uint64 // the CAS token of the item that was stored last
	_       cacheLine
}

// A node is what is stored at a key. Its value is written over in place, so it is
// read under the shard's lock alone.
type node struct {
	key      string
	value    []byte
	cas      uint64
	deadline deadline
	due      time.Duration // when to look whether it has expired, since the Store began
	flags    uint32
	index    int32 // in the shard's expiries, from 1; 0: it has no deadline

	place        place // its own
	newer, older place // in the shard's recency
	next         place // in its chain of the shard's index
}

// set makes value that of e. It keeps no more memory in reserve than an eighth, and a little: the
// store bounds the sizes of values, and means the memory that they take.
func (e *node) set(value []byte) {
	if size := cap(e.value); len(value) > size || size > len(value)+len(value)/8+64 {
		round := 31
		if len(value) <= 16 {
			round = 15 // a bucket does not grow
		}
		e.value = make([]byte, 0, (len(value)+round)&^round)
	}
	e.value = append(e.value[:0], value...)
}

// bans reports whether e is a ban.
func (e *node) bans() bool { return e.flags&exchange.BanFlag != 0 }

// item returns a copy of e as the real client returns it.
func (e *node) item() *memcache.Item {
	// bytes.Clone would make nil of an empty value; the client never does.
	value := make([]byte, len(e.value))
	copy(value, e.value)
	return &memcache.Item{Key: e.key, Value: value, Flags: e.flags, CasID: e.cas}
}

// size is what e counts towards MaxBytes.
func (e *node) size() int { return len(e.key) + len(e.value) }

// New returns an empty Store, as new(Store) does.
func New() *Store { return new(Store) }

// Get returns a copy of the item at key: its Key, Value, Flags and CasID. Its
// Expiration is 0, as with the real client. The error is memcache.ErrCacheMiss if
// there is no item, and memcache.ErrMalformedKey if the key is illegal.
func (s *Store) Get(key string) (*memcache.Item, error) {
	if !legal.Key(key) {
		return nil, memcache.ErrMalformedKey
	}
	if it := s.load(key); it != nil {
		return it, nil
	}
	return nil, memcache.ErrCacheMiss
}

// GetMulti returns copies of the items at keys, by key. A missing item has no entry.
// Each is looked up by itself: a write may come between two of them. If a key is
// illegal, the map is nil and the error memcache.ErrMalformedKey.
func (s *Store) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	for _, key := range keys {
		if !legal.Key(key) {
			return nil, memcache.ErrMalformedKey
		}
	}
	m := make(map[string]*memcache.Item, len(keys))
	for _, key := range keys {
		if it := s.load(key); it != nil {
			m[key] = it
		}
	}
	return m, nil
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
func (s *Store) Add(item *memcache.Item) error {
	if err := s.check(item); err != nil {
		return err
	}
	sh := s.lock(item.Key)
	defer s.unlock(sh)
	now := s.now(sh)
	old := s.live(sh, item.Key, now)
	if old != nil {
		return memcache.ErrNotStored
	}
	s.putItem(sh, old, item, now)
	return nil
}

// Exchange carries out each of xs at once: no write comes between its read and its
// write. It implements [exchange.Exchanger], and ignores ctx.
func (s *Store) Exchange(_ context.Context, xs ...exchange.Exchange) { s.Start(xs...) }

// Start is Exchange.
func (s *Store) Start(xs ...exchange.Exchange) {
	for _, x := range xs {
		x.Done(s.carryOut(x))
	}
}

func (s *Store) carryOut(x exchange.Exchange) exchange.Result {
	sh := s.lock(x.Key())
	defer s.unlock(sh)
	return s.exchange(sh, x, false)
}

// Inline is Exchange for one exchange that keeps nothing that it is given: see
// [exchange.Inliner].
func (s *Store) Inline(x exchange.Exchange) {
	sh := s.lock(x.Key())
	defer s.unlock(sh)
	x.Done(s.exchange(sh, x, true))
	sh.lent = memcache.Item{}
}

// InlineKey has v decide on the record of key: see [exchange.KeyInliner].
func (s *Store) InlineKey(key []byte, at time.Time, v exchange.Visitor) (kept string, err error) {
	s.start.Do(s.divide)
	hash := maphash.Bytes(s.seed, key)
	sh := s.lockShard(hash)
	defer s.unlock(sh)
	now := s.lately(sh, s.momentOf(at))
	old := s.used(sh, find(&sh.items, hash, key), now)
	var found []byte
	if old != nil {
		found = old.value
	}
	value, expiration, flags := v.Visit(now.wall, found)
	switch {
	case value == nil && old == nil:
		return "", nil
	case value == nil:
		return old.key, nil
	case old != nil:
		kept = old.key
	default:
		if kept = string(key); !legal.Key(kept) { // as every key is that is stored
			return "", memcache.ErrMalformedKey
		}
	}
	if err := s.checkSize(len(key)+len(value), flags); err != nil {
		return "", err
	}
	if !s.put(sh, old, kept, value, flags, deadlineOf(expiration, now), now) {
		return "", nil
	}
	return kept, nil
}

// lend returns e as an item that is valid until the exchange ends.
func (sh *shard) lend(e *node) *memcache.Item {
	sh.lent = memcache.Item{Key: e.key, Value: e.value, Flags: e.flags, CasID: e.cas}
	return &sh.lent
}

// exchange carries out x, which is lent what is found, or given a copy. The caller
// holds the shard's lock.
func (s *Store) exchange(sh *shard, x exchange.Exchange, lent bool) exchange.Result {
	key, now := x.Key(), s.now(sh)
	turn := exchange.Turn{Known: true, Now: now.wall}
	old := s.live(sh, key, now)
	switch {
	case old == nil:
		if !legal.Key(key) { // as every key is that is stored
			return exchange.Result{Err: memcache.ErrMalformedKey}
		}
	case lent:
		turn.Found = sh.lend(old)
	default:
		turn.Found = old.item()
	}
	item := x.Propose(turn)
	if item == nil {
		return exchange.Result{Read: true, Found: turn.Found}
	}
	if err := s.checkSize(size(item), item.Flags); err != nil {
		return exchange.Result{Read: true, Found: turn.Found, Err: err}
	}
	s.putItem(sh, old, item, now)
	return exchange.Result{Stored: true}
}

// CompareAndSwap stores a copy of item if its CasID is that of the item at its key.
// If another item was stored since, the error is memcache.ErrCASConflict. If there is
// none any more, it is memcache.ErrCacheMiss, as the real client returns, although its
// documentation says ErrNotStored. Expiration and the other errors are those of Add.
func (s *Store) CompareAndSwap(item *memcache.Item) error {
	if err := s.check(item); err != nil {
		return err
	}
	sh := s.lock(item.Key)
	defer s.unlock(sh)
	now := s.now(sh)
	old := s.live(sh, item.Key, now)
	if old == nil {
		return memcache.ErrCacheMiss
	}
	if old.cas != item.CasID {
		return memcache.ErrCASConflict
	}
	s.putItem(sh, old, item, now)
	return nil
}

// Delete removes the item at key. The error is memcache.ErrCacheMiss if there is no
// item, and memcache.ErrMalformedKey if the key is illegal.
func (s *Store) Delete(key string) error {
	if !legal.Key(key) {
		return memcache.ErrMalformedKey
	}
	sh := s.lock(key)
	defer s.unlock(sh)
	e := s.live(sh, key, s.now(sh))
	if e == nil {
		return memcache.ErrCacheMiss
	}
	s.remove(sh, e)
	return nil
}

// Len returns the number of items. It includes expired ones that still take up a
// place.
func (s *Store) Len() int { return s.Stats().Items }

// Stats is the state of a Store at one moment.
type Stats struct {
	Items int // as of Len
	Bytes int // of their keys and values

	// Evictions is the number of items that were evicted before they expired,
	// since the Store was first used. Each may be a count or a ban that was
	// forgotten early. If it grows in normal operation, raise MaxItems or
	// MaxBytes.
	Evictions uint64
}

// Stats returns the Stats of now.
func (s *Store) Stats() Stats {
	return Stats{Items: int(s.items.Load()), Bytes: int(s.bytes.Load()), Evictions: s.evictions.Load()}
}

// load returns a copy of the item at key, nil if there is none.
func (s *Store) load(key string) *memcache.Item {
	sh := s.lock(key)
	defer sh.mu.Unlock()
	if e := s.live(sh, key, s.now(sh)); e != nil {
		return e.item()
	}
	return nil
}

// lock returns the shard of key, locked.
func (s *Store) lock(key string) *shard {
	s.start.Do(s.divide)
	return s.lockShard(maphash.String(s.seed, key))
}

// lockShard returns the shard of the keys with that hash, locked.
func (s *Store) lockShard(hash uint64) *shard {
	sh := &s.shards[hash>>60&uint64(len(s.shards)-1)] // of one, or of 16
	sh.mu.Lock()
	return sh
}

// divide makes the shards.
func (s *Store) divide() {
	s.began = time.Now()
	s.seed = maphash.MakeSeed()
	n := 1
	if s.maxItems() >= shardedItems && s.maxBytes() >= shardedBytes {
		n = shards
	}
	s.shards = make([]shard, n)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.items.nodes, sh.items.seed = &sh.nodes, s.seed
		sh.uses.init(&sh.nodes)
		sh.bans.init(&sh.nodes)
		sh.ends.nodes = &sh.nodes
		sh.last = s.momentOf(s.began)
		sh.lastCAS = uint64(i) // no two shards give the same token
	}
}

// remove removes e. The caller holds the lock of its shard, sh.
func (s *Store) remove(sh *shard, e *node) {
	sh.items.remove(e)
	sh.order(e).remove(e)
	sh.ends.remove(e)
	s.account(-1, -e.size())
	sh.nodes.giveBack(e)
}

// order returns the recency that e is in.
func (sh *shard) order(e *node) *recency {
	if e.bans() {
		return &sh.bans
	}
	return &sh.uses
}

// setFlags makes flags those of e, which is the item used last.
func (sh *shard) setFlags(e *node, flags uint32) {
	before := sh.order(e)
	e.flags = flags
	if after := sh.order(e); after != before {
		before.remove(e)
		after.add(e)
	}
}

// evict removes the item of sh that is to go next, of which there is one besides stays.
func (s *Store) evict(sh *shard, stays *node) {
	s.evictions.Add(1)
	s.remove(sh, sh.next(stays))
}

// next returns the item that is to be evicted next: a ban only if they are more than
// half, or there is nothing else. It is not stays, which is the item used last, or nil.
func (sh *shard) next(stays *node) *node {
	if 2*sh.bans.n <= sh.items.n {
		if e := sh.uses.oldest(); e != stays {
			return e
		}
	}
	return sh.bans.oldest()
}

// account adds to the numbers of items and bytes.
func (s *Store) account(items, bytes int) {
	if items != 0 {
		s.items.Add(int64(items))
	}
	if bytes != 0 {
		s.bytes.Add(int64(bytes))
	}
}

// live returns the item at key and makes it the most recently used. If there is none,
// it returns nil. It removes an expired one. The caller holds the shard's lock, and now is
// of [Store.now] or [Store.lately].
func (s *Store) live(sh *shard, key string, now moment) *node {
	return s.used(sh, find(&sh.items, maphash.String(s.seed, key), key), now)
}

// used is live for e, which is at the key, or nil.
func (s *Store) used(sh *shard, e *node, now moment) *node {
	if e == nil {
		return nil
	}
	if e.deadline.passed(now) {
		s.remove(sh, e)
		return nil
	}
	sh.order(e).use(e)
	return e
}

// putItem is put of a copy of item. check has allowed it.
func (s *Store) putItem(sh *shard, old *node, item *memcache.Item, now moment) {
	key := item.Key
	if old == nil {
		// A key cut from a larger string would keep all of that in memory.
		key = strings.Clone(key)
	}
	s.put(sh, old, key, item.Value, item.Flags, deadlineOf(item.Expiration, now), now)
}

// put stores a copy of value at key under a fresh CAS token, in place of old, the unexpired
// item there, nil if there is none. It keeps key if old is nil. It reports whether there is
// an item now, which has not expired at once. The caller holds the shard's lock.
func (s *Store) put(sh *shard, old *node, key string, value []byte, flags uint32, ends deadline, now moment) bool {
	e := old
	if ends.passed(now) {
		if e != nil {
			s.remove(sh, e)
		}
		return false
	}
	if e != nil {
		sh.setFlags(e, flags)
		more := len(value) - len(e.value)
		s.makeSpace(sh, now, e, more)
		s.account(0, more)
	} else {
		s.makeSpace(sh, now, nil, len(key)+len(value))
		s.account(1, len(key)+len(value))
		e = sh.nodes.take()
		e.key, e.flags = key, flags
		sh.items.add(e, maphash.String(s.seed, key))
		sh.order(e).add(e)
	}
	e.set(value)
	sh.lastCAS += uint64(len(s.shards))
	e.cas, e.deadline = sh.lastCAS, ends
	sh.ends.update(e, now)
	return true
}

// makeSpace removes items of sh until there is space for that many further bytes, and for
// one more item unless grows is an item that they are for: expired ones, and if there
// are none the one that is to be evicted next. grows is the item used last, and stays.
//
// It removes up to two expired items even if there is space. Each put adds one item at
// most, so expired items do not pile up. The caller holds the shard's lock.
func (s *Store) makeSpace(sh *shard, now moment, grows *node, bytes int) {
	more, least := 1, 0
	if grows != nil {
		more, least = 0, 1
	}
	for spare := 2; sh.items.n > least; {
		over, moves := s.full(more, bytes), spare
		if over {
			moves = sh.items.n // as many as it takes
		}
		switch gone := sh.ends.expired(now, moves); {
		case gone != nil && (over || spare > 0):
			spare--
			s.remove(sh, gone)
		case over:
			s.evict(sh, grows)
		default:
			return
		}
	}
}

// full reports whether the given number of further items and bytes would exceed a
// bound.
func (s *Store) full(items, bytes int) bool {
	return s.items.Load()+int64(items) > int64(s.maxItems()) || s.bytes.Load()+int64(bytes) > int64(s.maxBytes())
}

// unlock ends the use of sh. If a bound is still exceeded,
// because sh has nothing left to evict, items of the other shards go: those that have
// expired, and then those that are to be evicted next.
func (s *Store) unlock(sh *shard) {
	sh.mu.Unlock()
	if !s.full(0, 0) {
		return
	}
	s.makeSpaceBeside(sh, func(other *shard) bool {
		gone := other.ends.expired(s.now(other), other.items.n)
		if gone != nil {
			s.remove(other, gone)
		}
		return gone != nil
	})
	s.makeSpaceBeside(sh, func(other *shard) bool {
		if other.items.n == 0 {
			return false
		}
		s.evict(other, nil)
		return true
	})
}

// makeSpaceBeside has removeOne remove items of one shard after the other, except sh,
// until no bound is exceeded. removeOne is called under the shard's lock, and returns
// false if it has removed nothing.
func (s *Store) makeSpaceBeside(sh *shard, removeOne func(*shard) bool) {
	for i := 0; i < len(s.shards) && s.full(0, 0); i++ {
		other := &s.shards[i]
		if other == sh {
			continue
		}
		other.mu.Lock()
		for s.full(0, 0) && removeOne(other) {
		}
		other.mu.Unlock()
	}
}

// check returns an error if item can never be stored.
func (s *Store) check(item *memcache.Item) error {
	if !legal.Key(item.Key) {
		return memcache.ErrMalformedKey
	}
	return s.checkSize(size(item), item.Flags)
}

// checkSize returns an error if an item of n bytes is too large.
func (s *Store) checkSize(n int, flags uint32) error {
	if limit := s.maxBytes(); n > limit {
		return fmt.Errorf("memstore: item too large: key and value of %d bytes, MaxBytes is %d", n, limit)
	}
	n += itemHeader
	if flags != 0 {
		n += flagsInItem
	}
	if n > maxItemSize {
		return fmt.Errorf("memstore: item too large: %d bytes with its header, at most %d", n, maxItemSize)
	}
	return nil
}

func (s *Store) maxItems() int {
	if s.MaxItems < 1 {
		return DefaultMaxItems
	}
	return s.MaxItems
}

func (s *Store) maxBytes() int {
	if s.MaxBytes < 1 {
		return DefaultMaxBytes
	}
	return s.MaxBytes
}

// size returns the bytes of item that count towards MaxBytes.
func size(item *memcache.Item) int { return len(item.Key) + len(item.Value) }
