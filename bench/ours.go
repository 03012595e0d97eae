package main

import (
	"context"
	"errors"
	"net"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// maxCallers is the largest number of callers.
const maxCallers = 64

// Our own systems.
var (
	poolWindow  = system{"throttler, pool", "sliding window", onMemcached, over(poolThrottler, throttler.SlidingWindow)}
	poolBucket  = system{"throttler, pool", "leaky bucket", onMemcached, over(poolThrottler, throttler.LeakyBucket)}
	plainWindow = system{"throttler, gomemcache", "sliding window", onMemcached, over(plainThrottler, throttler.SlidingWindow)}
	plainBucket = system{"throttler, gomemcache", "leaky bucket", onMemcached, over(plainThrottler, throttler.LeakyBucket)}
	poolCached  = system{"throttler, pool, BlockCache", "sliding window", onMemcached, over(cachedThrottler, throttler.SlidingWindow)}

	redisWindow = system{"throttler, redisstore", "sliding window", onRedis, over(redisThrottler, throttler.SlidingWindow)}
	redisBucket = system{"throttler, redisstore", "leaky bucket", onRedis, over(redisThrottler, throttler.LeakyBucket)}

	storeWindow = system{"throttler, memstore", "sliding window", inProcess, over(memoryThrottler, throttler.SlidingWindow)}
	storeBucket = system{"throttler, memstore", "leaky bucket", inProcess, over(memoryThrottler, throttler.LeakyBucket)}
)

// poolThrottler returns a Throttler over pool, and a function that closes it.
func poolThrottler(e env) (*throttler.Throttler, func(), error) {
	p, err := pool.New(e.server.addr)
	if err != nil {
		return nil, nil, err
	}
	p.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) }
	p.Timeout = patience // a busy machine must not count as an outage
	return patient(p), func() { p.Close() }, nil
}

// cachedThrottler is poolThrottler with a BlockCache.
func cachedThrottler(e env) (*throttler.Throttler, func(), error) {
	th, end, err := poolThrottler(e)
	if err == nil {
		th.BlockCache = 10_000
	}
	return th, end, err
}

// redisThrottler returns a Throttler over redisstore, and a function that closes it.
func redisThrottler(e env) (*throttler.Throttler, func(), error) {
	client, err := rueidisClient(e)
	if err != nil {
		return nil, nil, err
	}
	s := redisstore.New(client)
	s.Timeout = patience // a busy machine must not count as an outage
	return patient(s), func() { s.Close(); client.Close() }, nil
}

// plainThrottler returns a Throttler over gomemcache's client, and a function
// that closes it.
func plainThrottler(e env) (*throttler.Throttler, func(), error) {
	client := plainClient(e)
	return patient(client), func() { client.Close() }, nil
}

// patient returns a Throttler that does not take a busy machine for an
// overload.
func patient(client throttler.Client) *throttler.Throttler {
	th := throttler.New(client)
	th.QueueTimeout = patience
	return th
}

// plainClient returns gomemcache's client, with idle connections for all
// callers instead of two.
func plainClient(e env) *memcache.Client {
	client := memcache.New(e.server.addr)
	client.MaxIdleConns = 2 * maxCallers
	client.Timeout = patience
	client.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) }
	return client
}

// memoryThrottler returns a Throttler over process memory.
func memoryThrottler(env) (*throttler.Throttler, func(), error) {
	return patient(memstore.New()), func() {}, nil
}

// over opens what a function returns, with a rule of one condition.
func over(open func(env) (*throttler.Throttler, func(), error), algorithm throttler.Algorithm) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		th, end, err := open(e)
		if err != nil {
			return nil, err
		}
		return deciders{th, ruleOf(e, l, algorithm), end, new(endings)}, nil
	}
}

// ruleOf returns a rule of one condition, without a value.
func ruleOf(e env, l limit, algorithm throttler.Algorithm) throttler.Rule {
	if algorithm == throttler.LeakyBucket {
		l = l.bucket()
	}
	return throttler.Rule{Identifier: e.space, Either: []throttler.Condition{
		{Name: "v", Max: l.Max, TTL: l.Window, Algorithm: algorithm},
	}}
}

// getAndSwap does not limit. It does only what a decision over the plain client
// needs, with a record of the same size.
var getAndSwap = system{"gomemcache", "get + cas", onMemcached, func(e env, _ limit) (limiter, error) {
	client := plainClient(e)
	return &simple{allow: func(ctx context.Context, value string) (bool, error) {
		return true, swap(client, e.space+value)
	}, end: func() { client.Close() }}, nil
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
