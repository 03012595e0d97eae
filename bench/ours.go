package main

import (
	"context"
	"net"
	"slices"
	"strconv"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// maxCallers is the largest number of callers.
const maxCallers = 64

const (
	window = throttler.SlidingWindow
	bucket = throttler.LeakyBucket
)

// hows are the algorithms in words.
var hows = map[throttler.Algorithm]string{window: "sliding window", bucket: "leaky bucket"}

// Our own systems.
var (
	poolWindow  = over("throttler, pool", onMemcached, poolClient, window)
	poolBucket  = over("throttler, pool", onMemcached, poolClient, bucket)
	poolCached  = over("throttler, pool, BlockCache", onMemcached, poolClient, window, cached)
	poolAhead   = over("throttler, pool, Prefetch", onMemcached, poolClient, window, ahead)
	plainWindow = over("throttler, gomemcache", onMemcached, plain, window)
	redisWindow = over("throttler, redisstore", onRedis, redisClient, window)
	redisBucket = over("throttler, redisstore", onRedis, redisClient, bucket)
	storeWindow = over("throttler, memstore", inProcess, memory, window)
	storeBucket = over("throttler, memstore", inProcess, memory, bucket)
	takeWindow  = taking(window)
	takeBucket  = taking(bucket)
)

// over returns a Throttler over what client returns, with a rule of one
// condition that edits change.
func over(name string, b backend, client func(env) (throttler.Client, func(), error), algorithm throttler.Algorithm,
	edits ...func(*throttler.Throttler, *throttler.Rule)) system {
	return system{name: name, how: hows[algorithm], backend: b, open: func(e env, l limit) (limiter, error) {
		c, end, err := client(e)
		if err != nil {
			return limiter{}, err
		}
		th, rule := throttler.New(c), ruleOf(e, l, algorithm)
		th.QueueTimeout = patience // a busy machine must not count as an overload
		for _, edit := range edits {
			edit(th, &rule)
		}
		return limiter{caller: func() allow { return authorizing(th, rule) }, flush: func() {}, close: end}, nil
	}}
}

func cached(th *throttler.Throttler, _ *throttler.Rule) { th.BlockCache = 10_000 }

// ahead takes up to a tenth of Max ahead.
func ahead(_ *throttler.Throttler, rule *throttler.Rule) {
	rule.Either[0].Prefetch = max(1, rule.Either[0].Max/10)
}

// several returns throttler over pool with n conditions, each with a record of
// its own for a value.
func several(n int) system {
	s := over("throttler, pool", onMemcached, poolClient, window, func(_ *throttler.Throttler, rule *throttler.Rule) {
		for i := 1; i < n; i++ {
			c := rule.Either[0]
			c.Name = "v" + strconv.Itoa(i)
			rule.Either = append(rule.Either, c)
		}
	})
	s.how += "s"
	return s
}

// authorizing returns a function that sets the value in a rule of its own, so
// that no decision pays for making a rule.
func authorizing(th *throttler.Throttler, rule throttler.Rule) allow {
	rule.Either = slices.Clone(rule.Either)
	return func(ctx context.Context, value string) (bool, error) {
		for i := range rule.Either {
			rule.Either[i].Value = value
		}
		d, err := th.Authorize(ctx, rule)
		if err == nil {
			err = d.Err
		}
		return d.Status == throttler.Authorized, err
	}
}

// taking returns a Limit over process memory, whose Take returns no Decision.
func taking(algorithm throttler.Algorithm) system {
	return system{name: "throttler, memstore, Take", how: hows[algorithm], open: func(e env, l limit) (limiter, error) {
		prepared, err := throttler.New(memstore.New()).Limit(ruleOf(e, l, algorithm))
		return simple(func(ctx context.Context, value string) (bool, error) {
			o := prepared.Take(ctx, value)
			return !o.Blocked, o.Err
		}, func() {}), err
	}}
}

// ruleOf returns a rule of one condition, without a value.
func ruleOf(e env, l limit, algorithm throttler.Algorithm) throttler.Rule {
	if algorithm == bucket {
		l = l.bucket()
	}
	return throttler.Rule{Identifier: e.space, Either: []throttler.Condition{
		{Name: "v", Max: l.Max, TTL: l.Window, Algorithm: algorithm},
	}}
}

func poolClient(e env) (throttler.Client, func(), error) {
	p, err := pool.New(e.server.addr)
	if err != nil {
		return nil, nil, err
	}
	p.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) }
	p.Timeout, p.DialTimeout, p.QueueTimeout = patience, patience, patience // a busy machine must not count as an outage
	return p, func() { p.Close() }, nil
}

func redisClient(e env) (throttler.Client, func(), error) {
	client, err := rueidisClient(e)
	if err != nil {
		return nil, nil, err
	}
	s := redisstore.New(client)
	s.Timeout, s.QueueTimeout = patience, patience
	return s, func() { s.Close(); client.Close() }, nil
}

func plain(e env) (throttler.Client, func(), error) {
	client := plainClient(e)
	return client, func() { client.Close() }, nil
}

func memory(env) (throttler.Client, func(), error) { return memstore.New(), func() {}, nil }

// plainClient returns gomemcache's client, with idle connections for all
// callers instead of two.
func plainClient(e env) *memcache.Client {
	client := memcache.New(e.server.addr)
	client.MaxIdleConns = 2 * maxCallers
	client.Timeout = patience
	client.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) }
	return client
}
