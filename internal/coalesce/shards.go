package coalesce

import (
	"cmp"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/bradfitz/gomemcache/memcache"
)

// shards hold the records that are being asked about, and those that were asked about most
// recently.
type shards struct {
	seed maphash.Seed
	all  []shard
}

// A shard is a part of them, with a lock of its own.
type shard struct {
	mu     sync.Mutex // guards what follows
	memory memory
	spare  []*coalescer // at no record, to be used again

	resets atomic.Uint64 // how often something was forgotten
}

const (
	maxShards = 64
	maxSpare  = 32 // coalescers of a shard
)

func (ss *shards) init(c *Config) {
	n := maxShards
	if c.Remembered > 0 {
		n = min(max(c.Remembered/64, 1), maxShards)
	}
	ss.seed = maphash.MakeSeed()
	ss.all = make([]shard, n)
	for i := range ss.all {
		ss.all[i].memory.most = max(c.Remembered, 0) / n
		ss.all[i].memory.perByte = cmp.Or(c.Large, 1024)
	}
}

// of returns the shard of key, and the hash of key in it.
func (ss *shards) of(key string) (sh *shard, hash uint32) {
	h := maphash.String(ss.seed, key)
	return &ss.all[uint64(uint32(h))*uint64(len(ss.all))>>32], uint32(h >> 32)
}

// acquire returns the coalescer of key for one more user.
func (t *Table) acquire(key string) *coalescer {
	sh, hash := t.shards.of(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	m := &sh.memory
	i := m.find(hash, key)
	if i == 0 {
		s := sh.coalescerOf(t, key)
		m.add(s, hash)
		s.users = 1
		return s
	}
	p := m.at(i)
	if p.coalescer == nil {
		m.wake(i, sh.coalescerOf(t, key))
	}
	p.used = true
	p.coalescer.users++
	return p.coalescer
}

// coalescerOf returns a coalescer for the record of key.
func (sh *shard) coalescerOf(t *Table, key string) (s *coalescer) {
	if last := len(sh.spare) - 1; last >= 0 {
		s, sh.spare = sh.spare[last], sh.spare[:last]
	} else {
		s = newCoalescer(t, sh)
	}
	s.key = key
	return s
}

// release ends a number of uses of s, 0 if all have ended before. The record of a coalescer that
// has no users, and no exchange under way, is only remembered from then on, if it was seen.
func (s *coalescer) release(users int) {
	sh := s.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.users -= users
	if s.users > 0 || s.place == 0 {
		return
	}
	seen, pace, idle := s.retire()
	if !idle {
		return // Done releases it
	}
	sh.memory.rest(s, seen, pace)
	s.key, s.woken = "", memcache.Item{}
	if len(sh.spare) < maxSpare {
		sh.spare = append(sh.spare, s)
	}
}

// retire takes from s what is remembered of its record, unless an exchange of s is under way.
func (s *coalescer) retire() (seen sighting, pace *pace, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return seen, nil, false
	}
	seen, pace = s.seen, s.pace
	s.seen, s.pace, s.leader = sighting{}, nil, nil
	return seen, pace, true
}

// forget drops what is remembered of key, and keeps what is being read of it now
// out of the caches.
func (ss *shards) forget(key string) {
	sh, hash := ss.of(key)
	sh.resets.Add(1) // what is being read of key may have changed since
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := sh.memory.find(hash, key)
	if i == 0 {
		return
	}
	s := sh.memory.at(i).coalescer
	if s == nil {
		sh.memory.forget(i)
		return
	}
	s.mu.Lock()
	s.seen = sighting{}
	s.mu.Unlock()
}

// resetsOf returns how often something was forgotten in the shard of key.
func (ss *shards) resetsOf(key string) uint64 {
	sh, _ := ss.of(key)
	return sh.resets.Load()
}
