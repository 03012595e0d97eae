// Package items keeps the items of package memstore: bounded, each until it expires.
//
// It is a package of its own so that a throttler can decide on a record where it is, under
// the lock of the [Store]: see [Store.Visit].
package items

import (
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

// The bounds of memcached.
const (
	maxRelative = 30 * 24 * 60 * 60 // in seconds; a larger Expiration is a Unix time

	maxItemSize = 1 << 20
	itemHeader  = 59 // header, CAS token, the key's NUL and the value's CR LF
	flagsInItem = 4  // the size of Flags that are not 0
)

// A Store is the inside of a memstore.Store, which documents what it does.
type Store struct {
	maxItems, maxBytes int

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
	last  moment // the latest that it was asked at
	room  []byte // memory for a value, of a visit

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
	if len(value) == len(e.value) {
		copy(e.value, value)
		return
	}
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

// New returns an empty Store of up to maxItems items, and maxBytes of keys and values.
func New(maxItems, maxBytes int) *Store {
	s := &Store{maxItems: maxItems, maxBytes: maxBytes, began: time.Now(), seed: maphash.MakeSeed()}
	n := 1
	if maxItems >= shardedItems && maxBytes >= shardedBytes {
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
	return s
}

// Get is memstore.Store.Get, and so are the methods of its name below.
func (s *Store) Get(key string) (*memcache.Item, error) {
	if !legal.Key(key) {
		return nil, memcache.ErrMalformedKey
	}
	if it := s.load(key); it != nil {
		return it, nil
	}
	return nil, memcache.ErrCacheMiss
}

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

// Start carries out each of xs at once: no write comes between its read and its write.
func (s *Store) Start(xs ...exchange.Exchange) {
	for _, x := range xs {
		x.Done(s.carryOut(x))
	}
}

func (s *Store) carryOut(x exchange.Exchange) exchange.Result {
	sh := s.lock(x.Key())
	defer s.unlock(sh)
	return s.exchange(sh, x)
}

// A Decide decides on one record where it is: under the lock of its Store. It returns the value
// to be stored in place of found at now, with the Expiration and the Flags of its item, or nil:
// then found stays as it is. found is empty if there is no record. room is memory for the value.
// Both are valid until Decide returns.
type Decide func(now time.Time, found, room []byte) (value []byte, expiration int32, flags uint32)

// Visit has decide decide on the record of a key, and stores what it returns: no other write
// comes between the two. The time that decide is given is at, the clock of the caller, or a
// later one if others have used the record since. kept is the key as the Store keeps it, or ""
// if there is no record afterwards. err says why nothing was stored.
//
// The key is head and tail. It is put together only for a new record. Visit keeps nothing that it
// is given, so all of that may be on the stack.
func (s *Store) Visit(head Head, tail string, at time.Time, decide Decide) (kept string, err error) {
	hash := head.hash + maphash.String(s.seed, tail)
	sh := s.lockShard(hash)
	defer s.unlock(sh) // decide may panic
	now := s.lately(sh, s.momentOf(at))
	e := s.used(sh, sh.items.findParts(hash, head.text, tail), now)
	var found []byte
	if e != nil {
		found, kept = e.value, e.key
	}
	value, expiration, flags := decide(now.wall, found, sh.room[:0])
	if value == nil {
		return kept, nil
	}
	if size := cap(value); size > cap(sh.room) && size <= maxRoom {
		sh.room = value
	}
	ends := deadlineOf(expiration, now)
	if e != nil && s.fits(e, value, flags) && !ends.passed(now) && !sh.ends.mayHaveExpired(now) {
		s.overwrite(sh, e, value, ends, now)
		return kept, nil
	}
	if e == nil {
		kept = head.text + tail
		if !legal.Key(kept) || headOf(kept) != head.text { // as every key is that is stored
			return "", memcache.ErrMalformedKey
		}
	}
	if err := s.checkSize(len(kept)+len(value), flags); err != nil {
		return "", err
	}
	if !s.put(sh, e, kept, value, flags, ends, now) {
		return "", nil
	}
	return kept, nil
}

// A Head is what the keys of many records begin with, up to the second '#'.
type Head struct {
	text string
	hash uint64
}

// Head returns the Head of a key, and its tail.
func (s *Store) Head(key string) (Head, string) {
	text := headOf(key)
	return Head{text, headHash(s.seed, text)}, key[len(text):]
}

func headHash(seed maphash.Seed, head string) uint64 {
	if head == "" {
		return 0
	}
	return maphash.String(seed, head) * 0x9e3779b97f4a7c15
}

// headOf returns the beginning of a key up to its second '#', or "".
func headOf(key string) string {
	first := strings.IndexByte(key, '#') + 1
	second := strings.IndexByte(key[first:], '#') + 1
	if first == 0 || second == 0 {
		return ""
	}
	return key[:first+second]
}

// hashOf returns the hash of a key.
func hashOf(seed maphash.Seed, key string) uint64 {
	head := headOf(key)
	return headHash(seed, head) + maphash.String(seed, key[len(head):])
}

const maxRoom = 4096 // bytes that a shard keeps for the next value

// fits reports whether value may take the place of that of e without a check of bounds or kind.
func (s *Store) fits(e *node, value []byte, flags uint32) bool {
	more := len(value) - len(e.value)
	return flags == e.flags && (more <= 0 || len(e.key)+len(value) <= maxItemSize/2 && !s.full(0, more))
}

// overwrite stores value in place of that of e, where it fits.
func (s *Store) overwrite(sh *shard, e *node, value []byte, ends deadline, now moment) {
	s.account(0, len(value)-len(e.value))
	e.set(value)
	sh.lastCAS += uint64(len(s.shards))
	e.cas, e.deadline = sh.lastCAS, ends
	if e.index == 0 || ends.by() != monotonic || ends.at() < e.due {
		sh.ends.update(e, now)
	} // else the deadline is put off, and the item moves later: see expiries
}

// exchange carries out x. The caller holds the shard's lock.
func (s *Store) exchange(sh *shard, x exchange.Exchange) exchange.Result {
	key, now := x.Key(), s.now(sh)
	turn := exchange.Turn{Known: true, Now: now.wall}
	old := s.live(sh, key, now)
	switch {
	case old == nil:
		if !legal.Key(key) { // as every key is that is stored
			return exchange.Result{Err: memcache.ErrMalformedKey}
		}
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

// Stats returns the numbers of items and of their bytes now, and how many items were evicted
// before they expired.
func (s *Store) Stats() (items, bytes int, evictions uint64) {
	return int(s.items.Load()), int(s.bytes.Load()), s.evictions.Load()
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
	return s.lockShard(hashOf(s.seed, key))
}

// lockShard returns the shard of the keys with that hash, locked.
func (s *Store) lockShard(hash uint64) *shard {
	sh := &s.shards[hash>>60&uint64(len(s.shards)-1)] // of one, or of 16
	sh.mu.Lock()
	return sh
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
	return s.used(sh, sh.items.find(hashOf(s.seed, key), key), now)
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
		sh.items.add(e, hashOf(s.seed, key))
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
	return s.items.Load()+int64(items) > int64(s.maxItems) || s.bytes.Load()+int64(bytes) > int64(s.maxBytes)
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
	if limit := s.maxBytes; n > limit {
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

// size returns the bytes of item that count towards MaxBytes.
func size(item *memcache.Item) int { return len(item.Key) + len(item.Value) }
