package main

import (
	"context"
	"errors"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
)

// getAndSwap does not limit. It does only what a decision over the plain client
// needs, with a record of the same size.
var getAndSwap = system{"gomemcache", "get + cas", onMemcached, func(e env, _ limit) (limiter, error) {
	client := plainClient(e)
	return simple{func(value string) (bool, error) {
		return true, swap(client, e.space+value)
	}, func() { client.Close() }}, nil
}}

// swap reads the record at key and writes it. If another caller is faster, it
// returns nil; a decision would try again.
func swap(client *memcache.Client, key string) error {
	record := make([]byte, 24)
	item, err := client.Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		err = client.Add(&memcache.Item{Key: key, Value: record, Expiration: 60})
	case err == nil:
		err = client.CompareAndSwap(&memcache.Item{Key: key, Value: record, Expiration: 60, CasID: item.CasID})
	}
	if errors.Is(err, memcache.ErrCASConflict) || errors.Is(err, memcache.ErrNotStored) {
		return nil
	}
	return err
}

// Our own systems with a ctx that can end, as that of an HTTP request.
var (
	poolCancelable  = system{"throttler, pool, ctx can end", "sliding window", onMemcached, cancelable(poolThrottler)}
	plainCancelable = system{"throttler, gomemcache, ctx can end", "sliding window", onMemcached, cancelable(plainThrottler)}
)

// cancelable returns a function that opens a throttler whose callers have a ctx
// that can end.
func cancelable(open func(env) (*throttler.Throttler, func(), error)) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		th, end, err := open(e)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		return deciders{ctx, th, ruleOf(e, l, throttler.SlidingWindow), func() {
			cancel()
			end()
		}}, nil
	}
}
