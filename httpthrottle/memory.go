package httpthrottle

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/adaptivethrottler/throttler"
)

const (
	maxMemories   = 4096        // keys that a Transport remembers: the latest
	maxLostWrites = 5           // of what is learned, before the next answer has to tell it again
	refreshEvery  = time.Second // between two readings of what others have learned
	firstAnswer   = time.Second // that the first answer is waited for, at most
	storeTimeout  = time.Second // of one operation on what is learned
	shortestBack  = time.Second // of a pause whose length the server does not tell
	longestBack   = time.Minute // of such a pause
)

// A memory is what a Transport knows of each key. The zero memory is empty.
type memory struct {
	mu    sync.Mutex // guards what follows
	byKey *simplelru.LRU[string, *remembered]
}

// of returns what is known of a key.
func (m *memory) of(key string) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil {
		m.byKey, _ = simplelru.NewLRU[string, *remembered](maxMemories, nil) // fails only for a size of 0
	}
	r, ok := m.byKey.Get(key)
	if !ok {
		r = &remembered{first: make(chan struct{})}
		m.byKey.Add(key, r)
	}
	return r
}

// A remembered is what this process knows of one key.
type remembered struct {
	mu       sync.Mutex    // guards what follows
	learned  lessons       // is replaced, never changed
	read     time.Time     // when it was last read from the store
	reading  chan struct{} // closed at the end of the reading that is under way, or nil
	version  int           // counts the changes of learned
	begun    bool          // a first request is under way, or was
	first    chan struct{} // closed when there was an answer
	refusals int           // in a row that did not say when to come back
	paused   time.Time     // when the last pause began
	until    time.Time     // when it ends
	unstored time.Time     // when a pause ends that others do not know of
}

// known returns the lessons, and their version.
func (r *remembered) known() (lessons, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.learned, r.version
}

// know replaces the lessons.
func (r *remembered) know(learned lessons) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !sameLimits(r.learned, learned) {
		r.version++
	}
	r.learned = learned
}

// sameLimits reports whether requests are limited alike by a and b.
func sameLimits(a, b lessons) bool {
	if len(a) != len(b) {
		return false
	}
	for name, l := range a {
		if other, ok := b[name]; !ok || other.Max != l.Max || other.TTL != l.TTL {
			return false
		}
	}
	return true
}

// startReading returns nil if what others have learned was read since then. If it is being
// read, the result is closed when that ends. Otherwise the caller must read it, and call
// endReading.
func (r *remembered) startReading(since time.Time) (reading chan struct{}, leads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading == nil && !r.read.After(since) {
		r.read, r.reading = time.Now(), make(chan struct{})
		return r.reading, true
	}
	return r.reading, false
}

func (r *remembered) endReading() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.reading)
	r.reading = nil
}

// begin returns when a request may be sent. While nothing is known of the server's limits,
// one request goes ahead, and the others wait for its answer, no longer than most: it may say
// how many there may be.
func (r *remembered) begin(ctx context.Context, most time.Duration) error {
	r.mu.Lock()
	ahead := !r.begun || len(r.learned) > 0
	r.begun = true
	r.mu.Unlock()
	if ahead {
		return nil
	}
	select {
	case <-r.first:
		return nil
	default:
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-r.first:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// answered ends the waiting of begin.
func (r *remembered) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.first:
	default:
		close(r.first)
	}
}

// accepted notes that the server has taken a request.
func (r *remembered) accepted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals = 0
}

// backOff begins a pause after a refusal of a request sent then, if the server does not say for
// how long, and returns its length: base, and twice as long after each further one, but not
// more than most. Requests that were under way when the last pause began add nothing to it.
func (r *remembered) backOff(sent time.Time, base, most time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.Before(r.paused) {
		return max(time.Until(r.until), time.Millisecond)
	}
	r.refusals++
	back := base
	for i := 1; i < r.refusals && back < longestBack; i++ {
		back *= 2
	}
	back = min(back, max(longestBack, base), most)
	r.beginPauseLocked(back)
	return back
}

// beginPauseLocked notes that a pause of that length begins.
func (r *remembered) beginPauseLocked(length time.Duration) {
	r.paused = time.Now()
	r.until = r.paused.Add(length)
}

// pause notes a pause of that length, of which others know if stored is set.
func (r *remembered) pause(length time.Duration, stored bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beginPauseLocked(length)
	if !stored && r.until.After(r.unstored) {
		r.unstored = r.until
	}
}

// closedFor returns for how long there is a pause that only this process knows of.
func (r *remembered) closedFor() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(time.Until(r.unstored), 0)
}

// readLessons returns what is stored under key, and its item, or nil if there is none.
func readLessons(ctx context.Context, client throttler.Client, key string) (ls lessons, item *memcache.Item, err error) {
	item, err = within(ctx, func() (*memcache.Item, error) { return client.Get(key) })
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	return decodeLessons(item.Value, time.Now()), item, nil
}

// writeLessons stores ls in place of item, as it was read; nil stands for no item. won is false
// if somebody else was faster.
func writeLessons(ctx context.Context, client throttler.Client, key string, item *memcache.Item, ls lessons) (won bool, err error) {
	value, err := json.Marshal(ls)
	if err != nil {
		return false, err
	}
	write := client.CompareAndSwap
	if item == nil {
		item, write = &memcache.Item{Key: key}, client.Add
	}
	item.Value = value
	item.Expiration = int32(max(time.Until(ls.end()), 0)/time.Second) + 2 // memcached drops items up to a second early
	_, err = within(ctx, func() (struct{}, error) { return struct{}{}, write(item) })
	for _, lost := range []error{memcache.ErrCASConflict, memcache.ErrNotStored, memcache.ErrCacheMiss} {
		if errors.Is(err, lost) {
			return false, nil
		}
	}
	return err == nil, err
}

// within returns the result of operation, which takes no context, or an error if ctx ends or
// storeTimeout has passed. Then the operation goes on until the client gives it up.
func within[T any](ctx context.Context, operation func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := operation()
		done <- result{value, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
