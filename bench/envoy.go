package main

import (
	"context"
	"math"
	"math/rand"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/memcached"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	"github.com/envoyproxy/ratelimit/src/utils"
	gostats "github.com/lyft/gostats"
)

var envoy = system{name: "envoyproxy/ratelimit", how: "fixed window", backend: onMemcached, open: overEnvoy}

// day is the window of limiters that know only calendar units or fixed windows.
const day = 24 * time.Hour

// perDay returns l's rate in calls a day, bounded by the type.
func perDay(l limit) uint32 {
	return uint32(min(math.MaxUint32, float64(l.Max)*float64(day)/float64(l.Window)))
}

// overEnvoy opens the part of the service that asks memcached, as the service
// does. It leaves out the gRPC call, which would take longer than the rest. The
// local cache is off, as by default.
func overEnvoy(e env, l limit) (limiter, error) {
	client := plainClient(e)
	random := rand.New(utils.NewLockedSource(time.Now().UnixNano()))
	manager := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.Settings{})
	cache := memcached.NewRateLimitCacheImpl(client, utils.NewTimeSourceImpl(), random, 0, nil, manager, 0.8, "")
	limits := []*config.RateLimit{
		config.NewRateLimit(perDay(l), pb.RateLimitResponse_RateLimit_DAY, manager.NewStats(e.space), false, false, false, "", nil, false),
	}
	return limiter{
		caller: func() allow {
			return func(ctx context.Context, value string) (bool, error) {
				statuses := cache.DoLimit(ctx, asking(e.space, value), limits)
				return statuses[0].Code == pb.RateLimitResponse_OK, nil
			}
		},
		flush: cache.Flush, // waits until all allowed calls are counted
		close: func() {
			cache.Flush()
			client.Close()
		},
	}, nil
}
