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

// mennanov/limiters on memcached. Its sliding window counts in two fixed ones and
// needs no lock. Its token bucket is read and written under a lock in memcached,
// or without one, where processes overwrite each other's hits.
var (
	limitersWindow   = system{"mennanov/limiters", "two fixed windows", onMemcached, overLimiters(stateless, slidingWindow)}
	limitersLocked   = system{"mennanov/limiters", "token bucket, lock", onMemcached, overLimiters(kept, lockedBucket)}
	limitersUnlocked = system{"mennanov/limiters", "token bucket, no lock", onMemcached, overLimiters(kept, unlockedBucket)}
)

// A oneValue is a limiter for one value.
type oneValue interface {
	Limit(context.Context) (time.Duration, error)
}

func overLimiters(lifetime func(func(string) oneValue) func(string) oneValue, limiterOf func(*memcache.Client, string, limit) oneValue) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		client := plainClient(e)
		of := lifetime(func(value string) oneValue { return limiterOf(client, e.space+value, l) })
		ctx := context.Background()
		return simple{func(value string) (bool, error) {
			_, err := of(value).Limit(ctx)
			if errors.Is(err, limiters.ErrLimitExhausted) {
				return false, nil
			}
			return err == nil, err
		}, func() { client.Close() }}, nil
	}
}

// stateless is for limiters that are nothing but their settings, and are made
// anew for each call.
func stateless(of func(string) oneValue) func(string) oneValue { return of }

// kept keeps the limiter of a value, which has a mutex for its callers.
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

// slidingWindow has a window of a day, with l's rate: its windows begin at fixed
// times, and a decision takes as long whatever their length.
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
