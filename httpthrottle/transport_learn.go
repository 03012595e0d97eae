package httpthrottle

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
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

// limitsItem is the name, in place of a condition's, of the item that holds the limits that the
// server tells.
const limitsItem = "server-limits"

// A limit is one that the server tells: Max requests in TTL.
type limit struct {
	Max  int           `json:"max"`
	TTL  time.Duration `json:"ttl"`
	Told time.Time     `json:"told"` // the last time
}

// life returns how long l holds after the last answer that tells it.
func (l limit) life() time.Duration {
	return max(10*min(l.TTL, longestLife/10), time.Minute)
}

// valid reports whether l makes sense and holds at now. What is stored may be anything.
func (l limit) valid(now time.Time) bool {
	return l.Max >= 1 && l.Max <= throttler.MaxHits && l.TTL >= time.Millisecond && l.TTL <= record.MaxBucketTTL &&
		now.Sub(l.Told).Abs() < l.life()
}

// The limits of one key are each for another window.
type limits []limit

// at returns those of ls that hold at now.
func (ls limits) at(now time.Time) limits {
	return slices.DeleteFunc(slices.Clone(ls), func(l limit) bool { return !l.valid(now) })
}

// with returns those of ls that hold at now, when the server tells others, and whether these
// change anything that other processes should know. ls stays as it is.
//
// A lower limit counts at once. A higher one counts when the lower one was last told a
// window ago, or else two answers that disagree would take turns.
func (ls limits) with(told limits, now time.Time) (next limits, changed bool) {
	next = ls.at(now)
	for _, l := range told {
		i := slices.IndexFunc(next, func(known limit) bool { return known.TTL == l.TTL })
		if i < 0 {
			if len(next) < maxLimits {
				next, changed = append(next, l), true
			}
			continue
		}
		age := now.Sub(next[i].Told)
		if l.Max > next[i].Max && age < max(l.TTL, time.Second) || l.Max == next[i].Max && age < max(l.TTL/2, time.Second/2) {
			continue
		}
		next[i], changed = l, true
	}
	return next, changed
}

// A knowledge is what this process knows of one key.
type knowledge struct {
	key string // of the item with the limits that the server tells

	mu       sync.Mutex // guards what follows
	limits   limits     // is replaced, never changed
	read     time.Time  // when limits were last read from the store
	refusals int        // in a row that did not say when to come back
	began    time.Time  // the pause after the last of these
	until    time.Time  // its end
}

// knowledgeOf returns what this process knows of a key.
func (t *Transport) knowledgeOf(key string) *knowledge {
	t.begin.Do(func() {
		t.own = throttler.New(memstore.New())
		t.byKey, _ = lru.New[string, *knowledge](maxKeys) // fails only for a size of 0
	})
	if k, ok := t.byKey.Get(key); ok {
		return k
	}
	k := &knowledge{key: key}
	if before, ok, _ := t.byKey.PeekOrAdd(key, k); ok {
		return before
	}
	return k
}

// limitsAt returns the limits that the server tells and that hold at now.
func (k *knowledge) limitsAt(now time.Time) limits {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limits.at(now)
}

func (k *knowledge) know(ls limits) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limits = ls
}

// accepted notes that the server has taken a request.
func (k *knowledge) accepted() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusals = 0
}

// backOff begins a pause after a refusal of a request sent then, if the server does not say for
// how long, and returns its length: a second, and twice as long after each further one. Requests
// that were under way when the last pause began add nothing to it.
func (k *knowledge) backOff(sent time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !sent.Before(k.began) {
		k.began = time.Now()
		k.until = k.began.Add(min(shortestBack<<min(k.refusals, 6), longestBack))
		k.refusals++
	}
	return max(time.Until(k.until), time.Millisecond)
}

// learn learns from the answer to a request that was sent then, by those decisions. If the
// server has refused it for a limit, the result is the time for which it wants no requests.
func (t *Transport) learn(ctx context.Context, l *target, allowed []throttler.Decision, response *http.Response, sent time.Time) time.Duration {
	said := readAnswer(response, time.Now())
	t.share(l.knowledge, said.limits)
	pause, refused := said.pause(), said.refused()
	switch {
	case pause > 0:
		pause += t.margin(pause)
	case refused:
		pause = l.backOff(sent)
	}
	pause = min(pause, t.maxPause())
	ctx = context.WithoutCancel(ctx) // what was learned is for others too
	if refused {
		t.close(ctx, l, pause)
		t.cancel(ctx, allowed) // this wakes those who wait, which then find the pause
		return pause
	}
	l.accepted()
	t.count(ctx, l, allowed)
	if pause > 0 && !t.waits(ctx, l, pause) {
		t.close(ctx, l, pause)
	}
	return 0
}

// count counts a request that those decisions have allowed in the limits that it was sent without,
// since they are known only now.
func (t *Transport) count(ctx context.Context, l *target, allowed []throttler.Decision) {
	for _, limit := range l.limitsAt(time.Now()) {
		c := l.condition(limit, t.margin)
		if !slices.ContainsFunc(allowed, func(d throttler.Decision) bool {
			return slices.ContainsFunc(d.Outcomes, func(o throttler.Outcome) bool { return o.Name == c.Name })
		}) {
			t.Throttler.Authorize(ctx, l.ruleOf(c)) // if the backend fails, answers go on telling
		}
	}
}

// share adds limits to what k knows, and to what is stored for others. What cannot be stored
// holds for this process: another one may have been faster, and have been told the same.
func (t *Transport) share(k *knowledge, told limits) {
	now := time.Now()
	next, changed := k.limitsAt(now).with(told, now)
	if !changed {
		return
	}
	client := t.Throttler.Client()
	if stored, item, err := readLimits(client, k.key); err == nil {
		if next, changed = stored.with(told, now); changed {
			writeLimits(client, k.key, item, next)
		}
	}
	k.know(next)
}

// refresh reads what others were told, once in refreshEvery.
func (t *Transport) refresh(k *knowledge) {
	k.mu.Lock()
	fresh := time.Since(k.read) < refreshEvery
	if !fresh {
		k.read = time.Now()
	}
	k.mu.Unlock()
	if fresh {
		return
	}
	if stored, _, err := readLimits(t.Throttler.Client(), k.key); err == nil {
		k.know(stored)
	}
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
	return ls.at(time.Now()), item, nil
}

// writeLimits stores ls in place of item, as it was read; nil stands for no item.
func writeLimits(client throttler.Client, key string, item *memcache.Item, ls limits) {
	write := client.CompareAndSwap
	if item == nil {
		item, write = &memcache.Item{Key: key}, client.Add
	}
	var life time.Duration
	for _, l := range ls {
		life = max(life, l.life())
	}
	item.Expiration = int32(life/time.Second) + 2 // memcached drops items up to a second early
	item.Value, _ = json.Marshal(ls)              // numbers and times of this century always marshal
	_ = write(item)
}
