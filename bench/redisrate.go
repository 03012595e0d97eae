package main

import (
	"context"
	"net"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

var redisRate = system{"redis_rate, go-redis", "GCRA", onRedis, overGoRedis}

func overGoRedis(e env, l limit) (limiter, error) {
	client := redis.NewClient(&redis.Options{
		Addr:     e.server.addr,
		PoolSize: 2 * maxCallers, // with the default, 10 for each core, callers would queue
		Dialer:   func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) },
	})
	lim := redis_rate.NewLimiter(client)
	ctx := context.Background()
	l = l.bucket()
	rate := redis_rate.Limit{Rate: l.Max, Burst: l.Max, Period: l.Window}
	return simple{func(value string) (bool, error) {
		answer, err := lim.Allow(ctx, e.space+value, rate)
		return err == nil && answer.Allowed == 1, err
	}, func() { client.Close() }}, nil
}
