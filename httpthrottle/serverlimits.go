package httpthrottle

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/adaptivethrottler/throttler"
)

const (
	maxKeys      = 4096               // that a Transport knows of: the latest
	maxLimits    = 8                  // limits of one key that are kept
	longestLife  = 7 * 24 * time.Hour // of a limit that no answer tells again
	refreshEvery = time.Second        // between two readings of what others were told
	storeTimeout = time.Second        // of one operation on what is stored
	shortestBack = time.Second        // of a pause whose length the server does not tell
	longestBack  = time.Minute        // of such a pause
)

// A limit is one that the server tells: Max requests in TTL.
type limit struct {
	Max  int           `json:"max"`
	TTL  time.Duration `json:"ttl"`
	Told time.Time     `json:"told"` // the last time
}

// condition returns the name of l's condition.
func (l limit) condition() string { return limitCondition + l.TTL.String() }

// life returns how long l holds after the last answer that tells it.
func (l limit) life() time.Duration {
	return min(max(10*min(l.TTL, longestLife), time.Minute), longestLife)
}

// valid reports whether l makes sense and holds at now. What is stored may be anything.
func (l limit) valid(now time.Time) bool {
	return l.Max >= 1 && l.Max <= throttler.MaxHits && l.TTL >= time.Millisecond && l.TTL <= throttler.MaxBucketTTL &&
		now.Sub(l.Told).Abs() < l.life()
}

// The limits of one key are each for another window.
type limits []limit

// of returns the index of the limit for a window.
func (ls limits) of(window time.Duration) (i int, ok bool) {
	i = slices.IndexFunc(ls, func(l limit) bool { return l.TTL == window })
	return i, i >= 0
}

// with returns ls with l, and whether that changes anything that others should know. ls stays
// as it is.
//
// A lower limit counts at once. A higher one counts when the lower one was last told a
// window ago, or else two answers that disagree would take turns.
func (ls limits) with(l limit) (next limits, changed bool) {
	next = slices.DeleteFunc(slices.Clone(ls), func(old limit) bool { return !old.valid(l.Told) })
	i, found := next.of(l.TTL)
	if !found {
		return append(next, l), len(next) < maxLimits
	}
	age := l.Told.Sub(next[i].Told)
	switch {
	case l.Max > next[i].Max && age < max(l.TTL, time.Second), l.Max == next[i].Max && age < max(l.TTL/2, time.Second/2):
		return ls, false
	}
	next[i] = l
	return next, true
}

// learnLimit learns the limit of q for all processes, if q tells its window and the rule is not
// stricter.
func (t *Transport) learnLimit(ctx context.Context, l *target, k *knowledge, q quota) {
	latest := limit{Max: q.limit, TTL: q.window, Told: time.Now()}
	if !q.requests || !latest.valid(latest.Told) || l.keeps(q.limit, q.window) {
		return
	}
	if !t.store(l, k, latest) {
		return
	}
	// Count what the server has counted: this request, or as many as it says until the reset.
	for _, c := range l.serverConditions(limits{latest}, t.margin, latest.Told)[1:] {
		c.Cost = 1
		if q.remaining >= 0 {
			c.Cost = min(q.limit-q.remaining, c.Max)
		}
		if q.reset > 0 {
			c.TTL = min(c.TTL, q.reset+t.margin(q.reset))
		}
		if c.Cost > 0 {
			t.Throttler.Authorize(ctx, throttler.Rule{Identifier: l.rule.Identifier, Either: []throttler.Condition{c}}) // if the backend fails, answers go on telling
		}
	}
}

// store adds a limit to what k knows, and to what is stored. It reports whether this call was
// the first to store one for its window. What cannot be stored holds for this process.
func (t *Transport) store(l *target, k *knowledge, latest limit) (added bool) {
	next, changed := k.serverLimits().with(latest)
	if !changed {
		return false
	}
	client := t.Throttler.Client()
	if stored, item, err := readLimits(client, l.key); err == nil {
		if next, changed = stored.with(latest); changed {
			_, found := stored.of(latest.TTL)
			added = writeLimits(client, l.key, item, next) && !found
		}
	}
	k.know(next)
	return added
}

// refresh reads what others were told, once in refreshEvery.
func (t *Transport) refresh(l *target, k *knowledge) {
	if !k.isStale() {
		return
	}
	if stored, _, err := readLimits(t.Throttler.Client(), l.key); err == nil {
		k.know(stored)
	}
}

// knowledgeOf returns what this process knows of a key.
func (t *Transport) knowledgeOf(key string) *knowledge {
	t.begin.Do(func() {
		t.byKey, _ = lru.New[string, *knowledge](maxKeys) // fails only for a size of 0
	})
	if k, ok := t.byKey.Get(key); ok {
		return k
	}
	k := new(knowledge)
	if before, ok, _ := t.byKey.PeekOrAdd(key, k); ok {
		return before
	}
	return k
}

// A knowledge is what this process knows of one key.
type knowledge struct {
	mu       sync.Mutex // guards what follows
	limits   limits     // is replaced, never changed
	read     time.Time  // when limits were last read from the store
	refusals int        // in a row that did not say when to come back
	paused   time.Time  // when the last pause began
	until    time.Time  // when it ends
	unstored time.Time  // when a pause ends that others do not know of
}

// serverLimits returns the limits that the server tells.
func (k *knowledge) serverLimits() limits {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limits
}

func (k *knowledge) know(ls limits) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limits = ls
}

// isStale reports whether the caller is to read what is stored.
func (k *knowledge) isStale() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.read) < refreshEvery {
		return false
	}
	k.read = time.Now()
	return true
}

// accepted notes that the server has taken a request.
func (k *knowledge) accepted() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusals = 0
}

// backOff begins a pause after a refusal of a request sent then, if the server does not say for
// how long, and returns its length: a second, and twice as long after each further one, but not
// more than most. Requests that were under way when the last pause began add nothing to it.
func (k *knowledge) backOff(sent time.Time, most time.Duration) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sent.Before(k.paused) {
		return max(time.Until(k.until), time.Millisecond)
	}
	back := min(shortestBack<<min(k.refusals, 6), longestBack, most)
	k.refusals++
	k.beginPauseLocked(back)
	return back
}

// beginPauseLocked notes that a pause of that length begins.
func (k *knowledge) beginPauseLocked(length time.Duration) {
	k.paused = time.Now()
	k.until = k.paused.Add(length)
}

// pause notes a pause of that length, of which others know if stored is set.
func (k *knowledge) pause(length time.Duration, stored bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beginPauseLocked(length)
	if !stored && k.until.After(k.unstored) {
		k.unstored = k.until
	}
}

// unstoredPause returns for how long there is a pause that only this process knows of.
func (k *knowledge) unstoredPause() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(time.Until(k.unstored), 0)
}

// readLimits returns what is stored under key, and its item, or nil if there is none.
func readLimits(client throttler.Client, key string) (ls limits, item *memcache.Item, err error) {
	item, err = client.Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	if json.Unmarshal(item.Value, &ls) != nil || len(ls) > maxLimits {
		ls = nil // something else, which is replaced
	}
	now := time.Now()
	return slices.DeleteFunc(ls, func(l limit) bool { return !l.valid(now) }), item, nil
}

// writeLimits stores ls in place of item, as it was read; nil stands for no item. It reports
// whether it could: another process may have been faster, and have been told the same.
func writeLimits(client throttler.Client, key string, item *memcache.Item, ls limits) bool {
	value, err := json.Marshal(ls)
	if err != nil {
		return false
	}
	write := client.CompareAndSwap
	if item == nil {
		item, write = &memcache.Item{Key: key}, client.Add
	}
	item.Value = value
	var life time.Duration
	for _, l := range ls {
		life = max(life, l.life())
	}
	item.Expiration = int32(life/time.Second) + 2 // memcached drops items up to a second early
	return write(item) == nil
}
