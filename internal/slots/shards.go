package slots

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// shards hold a slot for each record that is being asked about, and for those that
// were asked about most recently.
type shards struct {
	seed maphash.Seed
	all  []shard
}

// A shard is a part of them, with a lock of its own.
type shard struct {
	mu         sync.Mutex // guards what follows
	byKey      map[string]*slot
	idle       links // the head of the ring of slots that are only remembered, the latest first
	remembered int   // how many they are
	weight     int   // what they weigh together
	most       int   // what they may weigh

	resets atomic.Uint64 // how often something was forgotten
}

// links are a place in a ring.
type links struct {
	slot       *slot
	prev, next *links
}

const maxShards = 64

func (ss *shards) init(remembered int) {
	n := maxShards
	if remembered > 0 {
		n = min(max(remembered/64, 1), maxShards)
	}
	ss.seed = maphash.MakeSeed()
	ss.all = make([]shard, n)
	for i := range ss.all {
		sh := &ss.all[i]
		sh.byKey = make(map[string]*slot)
		sh.idle.prev, sh.idle.next = &sh.idle, &sh.idle
		sh.most = max(remembered, 0) / n
	}
}

func (ss *shards) of(key string) *shard {
	if len(ss.all) == 1 {
		return &ss.all[0]
	}
	return &ss.all[maphash.String(ss.seed, key)%uint64(len(ss.all))]
}

// acquire returns the slot of key for one more user.
func (t *Table) acquire(key string) *slot {
	sh := t.shards.of(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.byKey[key]
	if s == nil {
		s = newSlot(t, sh, key)
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
	weight, idle := s.state()
	switch {
	case !idle: // Done releases it
	case weight == 0 || weight > sh.most:
		delete(sh.byKey, s.key)
	default:
		s.weight = weight
		sh.link(s)
	}
	for sh.weight > sh.most {
		oldest := sh.idle.prev.slot
		sh.unlink(oldest)
		delete(sh.byKey, oldest.key)
	}
}

// forget drops what is remembered of key, and keeps what is being read of it now
// out of the caches.
func (ss *shards) forget(key string) {
	ss.changed(key)
	sh := ss.of(key)
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
func (ss *shards) changed(key string) (resets uint64) {
	return ss.of(key).resets.Add(1)
}

// resetsOf returns how often something was forgotten in the shard of key.
func (ss *shards) resetsOf(key string) uint64 {
	return ss.of(key).resets.Load()
}

// state returns what s weighs if it is remembered: one, and one more for each KiB of its
// record; 0 if it has seen nothing. It reports whether no exchange of s is under way.
func (s *slot) state() (weight int, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.known {
		weight = 1
	}
	if s.seen.item != nil {
		weight += len(s.seen.item.Value) / 1024
	}
	return weight, !s.busy
}

// linked reports whether s is in the list of those that are only remembered.
func (s *slot) linked() bool { return s.neighbor.next != nil }

func (sh *shard) link(s *slot) {
	at := &s.neighbor
	at.slot = s
	at.prev, at.next = &sh.idle, sh.idle.next
	at.prev.next, at.next.prev = at, at
	sh.remembered++
	sh.weight += s.weight
}

// unlink takes s out of the list, if it is there.
func (sh *shard) unlink(s *slot) {
	if !s.linked() {
		return
	}
	at := &s.neighbor
	at.prev.next, at.next.prev = at.next, at.prev
	at.prev, at.next = nil, nil
	sh.remembered--
	sh.weight -= s.weight
}
