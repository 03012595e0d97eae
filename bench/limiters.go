package main

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/mennanov/limiters"
)

// mennanov/limiters on memcached. Its sliding window is two fixed windows
// without a lock. Its token bucket uses a lock in memcached, or none; then
// processes overwrite each other's hits.
var (
	limitersWindow   = system{"mennanov/limiters", "two fixed windows", onMemcached, overLimiters(stateless, slidingWindow)}
	limitersLocked   = system{"mennanov/limiters", "token bucket, lock", onMemcached, overLimiters(kept, lockedBucket)}
	limitersUnlocked = system{"mennanov/limiters", "token bucket, no lock", onMemcached, overLimiters(kept, unlockedBucket)}
)

// A oneValue is the limiter of one value.
type oneValue interface {
	Limit(context.Context) (time.Duration, error)
}

func overLimiters(lifetime func(func(string) oneValue) func(string) oneValue, limiterOf func(*memcache.Client, string, limit) oneValue) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		client := plainClient(e)
		of := lifetime(func(value string) oneValue { return limiterOf(client, e.space+value, l) })
		return &simple{allow: func(ctx context.Context, value string) (bool, error) {
			_, err := of(value).Limit(ctx)
			if errors.Is(err, limiters.ErrLimitExhausted) {
				return false, nil
			}
			return err == nil, err
		}, end: func() { client.Close() }}, nil
	}
}

// stateless makes a limiter for each call. It is for limiters that hold only
// their settings.
func stateless(of func(string) oneValue) func(string) oneValue { return of }

// kept keeps one limiter for each value, since it has a mutex for its callers.
func kept(of func(string) oneValue) func(string) oneValue {
	var all sync.Map
	return func(value string) oneValue {
		if l, ok := all.Load(value); ok {
			return l.(oneValue)
		}
		l, _ := all.LoadOrStore(value, of(value))
		return l.(oneValue)
	}
}

// slidingWindow returns a window of a day with l's rate. Its windows begin at
// fixed times, and their length does not change the time of a decision.
func slidingWindow(client *memcache.Client, key string, l limit) oneValue {
	backend := limiters.NewSlidingWindowMemcached(client, key)
	return limiters.NewSlidingWindow(int64(perDay(l)), day, backend, limiters.NewSystemClock(), 1e-9)
}

func lockedBucket(client *memcache.Client, key string, l limit) oneValue {
	return tokenBucket(client, key, l, limiters.NewLockMemcached(client, key+"lock"))
}

func unlockedBucket(client *memcache.Client, key string, l limit) oneValue {
	return tokenBucket(client, key, l, limiters.NewLockNoop())
}

func tokenBucket(client *memcache.Client, key string, l limit, lock limiters.DistLocker) oneValue {
	state := limiters.NewTokenBucketMemcached(client, key, l.Window, false)
	refill := time.Duration(math.Max(1, float64(l.Window)/float64(l.Max)))
	return limiters.NewTokenBucket(int64(l.Max), refill, lock, state, limiters.NewSystemClock(), limiters.NewStdLogger())
}
