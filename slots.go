package throttler

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// DefaultRecordCache is how many records are remembered if
// [Throttler.RecordCache] is not set. It takes about 560 bytes for each, 9 MB in
// all, and at most 1 KiB more for a large one.
const DefaultRecordCache = 16_384

// slots holds a slot for each record that is being asked about, and for those that
// were asked about most recently.
type slots struct {
	seed   maphash.Seed
	shards []shard
}

// A shard is a part of the slots, with a lock of its own.
type shard struct {
	mu    sync.Mutex // guards what follows
	byKey map[string]*slot
	idle  links // the head of the ring of slots that are only remembered, the latest first
	kept  int   // how many they are
	most  int   // how many may be kept

	resets atomic.Uint64 // how often something was forgotten
}

// links are a place in a ring.
type links struct {
	slot       *slot
	prev, next *links
}

const maxShards = 64

func (t *slots) init(remembered int) {
	n := maxShards
	if remembered > 0 {
		n = min(max(remembered/64, 1), maxShards)
	}
	t.seed = maphash.MakeSeed()
	t.shards = make([]shard, n)
	for i := range t.shards {
		sh := &t.shards[i]
		sh.byKey = make(map[string]*slot)
		sh.idle.prev, sh.idle.next = &sh.idle, &sh.idle
		sh.most = max(remembered, 0) / n
	}
}

func (t *slots) shard(key string) *shard {
	if len(t.shards) == 1 {
		return &t.shards[0]
	}
	return &t.shards[maphash.String(t.seed, key)%uint64(len(t.shards))]
}

// acquire returns the slot of key for one more user.
func (t *slots) acquire(b *backend, key string) *slot {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.byKey[key]
	if s == nil {
		s = newSlot(b, sh, key)
		sh.byKey[key] = s
	} else {
		sh.unlink(s)
	}
	s.users++
	return s
}

// release ends a number of uses of s, 0 if all have ended before. A slot that has no
// users, and no exchange under way, is kept if there is something to remember, and
// removed otherwise.
func (s *slot) release(users int) {
	sh := s.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.users -= users
	if s.users > 0 || sh.byKey[s.key] != s || s.linked() {
		return
	}
	memorable, idle := s.state()
	switch {
	case !idle: // Done releases it
	case sh.most == 0 || !memorable:
		delete(sh.byKey, s.key)
	default:
		sh.link(s)
	}
	if sh.kept > sh.most {
		oldest := sh.idle.prev.slot
		sh.unlink(oldest)
		delete(sh.byKey, oldest.key)
	}
}

// forget drops what is remembered of key, and keeps what is being read of it now
// out of the caches.
func (t *slots) forget(key string) {
	t.changed(key)
	sh := t.shard(key)
	sh.mu.Lock()
	s := sh.byKey[key]
	sh.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		s.seen = sighting{}
		s.mu.Unlock()
	}
}

// changed notes that what is being read of key may have changed since.
func (t *slots) changed(key string) (resets uint64) {
	return t.shard(key).resets.Add(1)
}

// resetsOf returns how often something was forgotten in the shard of key.
func (t *slots) resetsOf(key string) uint64 {
	return t.shard(key).resets.Load()
}

// state reports whether s has seen anything that is remembered, and whether no exchange
// of it is under way.
func (s *slot) state() (memorable, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.known, !s.busy
}

// linked reports whether s is in the list of those that are only remembered.
func (s *slot) linked() bool { return s.neighbor.next != nil }

func (sh *shard) link(s *slot) {
	at := &s.neighbor
	at.slot = s
	at.prev, at.next = &sh.idle, sh.idle.next
	at.prev.next, at.next.prev = at, at
	sh.kept++
}

// unlink takes s out of the list, if it is there.
func (sh *shard) unlink(s *slot) {
	if !s.linked() {
		return
	}
	at := &s.neighbor
	at.prev.next, at.next.prev = at.next, at.prev
	at.prev, at.next = nil, nil
	sh.kept--
}
