package throttler

import (
	"runtime"
	"time"
)

// What the tests of the pure core see of it: decisions on stored bytes.

const (
	Coarse    = time.Duration(coarse)
	MaxFine   = maxFine
	HashedKey = hashedKey
	MaxKey    = maxKey
	MaxStalls = maxStalls
	MaxLosses = maxLosses
)

var (
	Key        = key
	ErrStalled = errStalled
	CutShort   = cutShort
	Expiration = func(now time.Time, after time.Duration) int32 {
		return expiration(instantOf(now), instantOf(now).add(after))
	}
)

// Decide decides on the record stored, as a call does. The record to be stored
// is nil if stored stays as it is.
func Decide(now time.Time, c Condition, length time.Duration, stored []byte) (Outcome, []byte) {
	return DecideRule(now, Rule{Identifier: "test", Either: []Condition{c}, Lockout: length}, stored)
}

// DecideRule is Decide for the first condition of r.
func DecideRule(now time.Time, r Rule, stored []byte) (Outcome, []byte) {
	rec, _ := decode(stored)
	c := &r.conditions()[0]
	v := decide(instantOf(now), c, r.lockout(c), rec, true)
	if !v.store {
		return v.outcome, nil
	}
	return v.outcome, v.next.encode()
}

// TakeBack counts a call of c on the record stored, with a ban by hand and one of
// a lockout after it, and takes it back in every way there is.
func TakeBack(now time.Time, c Condition, stored []byte) {
	r, _ := decode(stored)
	at := instantOf(now)
	v := decide(at, &c, lockout{length: 1, keepHits: true}, r, true)
	for _, r := range []record{r, v.next, decide(at, &c, lockout{length: 1, keepHits: true}, v.next, true).next} {
		r.without(v.hit, at)
		r.withdrawn(v.hit, at, &c)
		r.banned(at, 1)
	}
}

// Recode decodes b and encodes the result.
func Recode(b []byte) (recoded []byte, ok bool) {
	r, err := decode(b)
	if err != nil {
		return nil, false
	}
	return r.encode(), true
}

// DecodeError returns why b is not read.
func DecodeError(b []byte) error {
	_, err := decode(b)
	return err
}

// BothRecord returns the record of all that records hold.
func BothRecord(records ...[]byte) []byte {
	var both record
	for _, b := range records {
		r, _ := decode(b)
		if r.ban.end != 0 {
			both.ban = r.ban
		}
		if r.hits.len() > 0 {
			both.hits = r.hits
		}
		if r.bucket.score != 0 {
			both.bucket = r.bucket
		}
	}
	return both.encode()
}

// WindowRecord returns the record of a window of max that holds hits which
// expire at the given times, in order, the longest of them counted under ttl.
func WindowRecord(max int, ttl time.Duration, expiries ...time.Time) []byte {
	h := hits{unit: unitFor(max)}
	h.ttl = h.up(instant(ttl))
	for _, t := range expiries {
		h.last = h.up(instantOf(t))
		h.entries = appendLow(h.entries, h.last, h.width())
	}
	return record{hits: h}.encode()
}

// BanRecord returns the record of a ban, the last of so many in a row; 0 where
// they are all alike.
func BanRecord(end time.Time, length time.Duration, repeats int) []byte {
	return record{ban: ban{end: instantOf(end), length: instant(length), repeats: repeats}}.encode()
}

// BucketRecord returns the record of a bucket.
func BucketRecord(score time.Time, cancels uint16) []byte {
	return record{bucket: bucket{score: instantOf(score), cancels: cancels}}.encode()
}

// Expiries returns the expiry times of the hits in a record, as stored.
func Expiries(b []byte) []time.Time {
	r, err := decode(b)
	if err != nil {
		return nil
	}
	var times []time.Time
	for i := range r.hits.stored() {
		times = append(times, time.Unix(0, int64(r.hits.time(i))))
	}
	return times
}

// BanEnd returns when the ban in a record ends, and how long it was.
func BanEnd(b []byte) (end time.Time, length time.Duration, ok bool) {
	r, err := decode(b)
	if err != nil || r.ban.end == 0 {
		return time.Time{}, 0, false
	}
	return time.Unix(0, int64(r.ban.end)), time.Duration(r.ban.length), true
}

// CachedBanHolds reports whether a ban of the given length, that was cached for
// ttl when it was set, holds by the cache when it is asked.
func CachedBanHolds(set, asked time.Time, length, ttl time.Duration) bool {
	c := newBlockCache(1, ttl)
	now := instantOf(set)
	r := record{ban: ban{end: now.add(length), length: instant(length)}}
	c.add("key", r.encode(), now)
	r, ok := c.get("key", instantOf(asked))
	return ok && r.ban.holds(instantOf(asked))
}

// ForgetAsItIsKept forgets key, as a Reset does, when a call is about to put its record
// into the BlockCache, which is empty. It returns before that.
func ForgetAsItIsKept(th *Throttler, key string) {
	cache := th.blockCache()
	cache.mu.RLock()
	go func() {
		defer cache.mu.RUnlock()
		for cache.mu.TryRLock() { // until the call waits for the lock
			cache.mu.RUnlock()
			runtime.Gosched()
		}
		th.backend().slots.forget(key)
	}()
}

// WaitLines returns how many lines there are of calls that wait for th.
func WaitLines(th *Throttler) int {
	th.queue.mu.Lock()
	defer th.queue.mu.Unlock()
	return len(th.queue.lines)
}

// Queued returns how many entries wait for the next exchange of key.
func Queued(th *Throttler, key string) int {
	slots := &th.backend().slots
	sh := slots.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.byKey[key]
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// Slots returns how many records th has slots for, and how many of them are of
// records that are asked about.
func Slots(th *Throttler) (all, used int) {
	slots := &th.backend().slots
	for i := range slots.shards {
		sh := &slots.shards[i]
		sh.mu.Lock()
		all += len(sh.byKey)
		used += len(sh.byKey) - sh.kept
		sh.mu.Unlock()
	}
	return all, used
}

// Records returns the number of records that s keeps.
func Records(s *Simulation) int { return len(s.records) }
