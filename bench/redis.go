package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// rueidis pipelines the requests of all callers on shared connections. It runs
// the two scripts that an exact limiter on Redis needs, with the caller's
// clock.
var (
	rueidisBucket = overRueidis("GCRA", gcraScript, 1, gcraArgs)
	rueidisLog    = overRueidis("sorted-set log", logScript, 1, logArgs)
	rueidisBoth   = []system{rueidisBucket, rueidisLog}
)

// gcraScript keeps the time at which the bucket is empty. ARGV is now, the
// interval of a hit and the window, in microseconds. It returns whether the hit
// was counted, and if not, the time until it could be.
const gcraScript = `
local now, interval, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local empty = tonumber(redis.call('GET', KEYS[1]) or now)
if empty < now then empty = now end
empty = empty + interval
if empty > now + window then return {0, empty - now - window} end
redis.call('SET', KEYS[1], string.format('%.0f', empty), 'PX', math.ceil((empty - now) / 1000))
return {1, 0}`

func gcraArgs(now time.Time, l limit, _ uint64) []string {
	l = l.bucket()
	return []string{
		micros(now.UnixMicro()),
		micros(max(1, l.Window.Microseconds()/int64(l.Max))),
		micros(l.Window.Microseconds()),
	}
}

// logScript keeps each hit for the window, in a sorted set by time. ARGV is now
// and the time before which hits have expired (in microseconds), the limit, the
// hit's name, and the window in milliseconds. It returns the same as
// gcraScript.
const logScript = `
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return {0, tonumber(oldest[2]) - tonumber(ARGV[2])}
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {1, 0}`

func logArgs(now time.Time, l limit, hit uint64) []string {
	return []string{
		micros(now.UnixMicro()),
		micros(now.Add(-l.Window).UnixMicro()),
		strconv.Itoa(l.Max),
		strconv.FormatUint(hit, 36),
		strconv.FormatInt(max(1, l.Window.Milliseconds()), 10),
	}
}

func micros(n int64) string { return strconv.FormatInt(n, 10) }

// severalScript is gcraScript for any number of keys: it counts the hit in all of them, or
// in none.
const severalScript = `
local now, interval, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local empty = redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do
  local at = tonumber(empty[i] or now)
  if at < now then at = now end
  at = at + interval
  if at > now + window then return {0, at - now - window} end
  empty[i] = at
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], string.format('%.0f', empty[i]), 'PX', math.ceil((empty[i] - now) / 1000))
end
return {1, 0}`

func severalKeys(n int) system {
	return overRueidis(fmt.Sprintf("GCRA of %d keys", n), severalScript, n, gcraArgs)
}

// overRueidis runs a script with a number of keys.
func overRueidis(how, script string, keys int, args func(time.Time, limit, uint64) []string) system {
	return system{name: "rueidis, Lua", how: how, backend: onRedis, open: func(e env, l limit) (limiter, error) {
		client, err := rueidisClient(e)
		if err != nil {
			return limiter{}, err
		}
		lua := rueidis.NewLuaScript(script)
		var hits atomic.Uint64
		// Names of hits must differ between processes.
		hits.Store(uint64(time.Now().UnixNano()))
		return simple(func(ctx context.Context, value string) (bool, error) {
			all := make([]string, keys)
			all[0] = e.space + value
			for i := 1; i < keys; i++ {
				all[i] = e.space + strconv.Itoa(i) + value
			}
			counted, err := lua.Exec(ctx, client, all, args(time.Now(), l, hits.Add(1))).AsIntSlice()
			return err == nil && counted[0] == 1, err
		}, client.Close), nil
	}}
}

// increx is Redis's own counter with a bound, since Redis 8.8 and Valkey 9.2: one command, and
// no script. Its windows begin with their first hit, so up to twice the limit passes around
// their edges.
var increx = system{name: "rueidis, INCREX", how: "fixed window", backend: onIncrex, open: overIncrex}

func overIncrex(e env, l limit) (limiter, error) {
	client, err := rueidisClient(e)
	if err != nil {
		return limiter{}, err
	}
	return simple(func(ctx context.Context, value string) (bool, error) {
		answer := client.Do(ctx, client.B().Arbitrary("INCREX").Keys(e.space+value).Args(increxArgs(l)...).Build())
		counted, err := answer.AsIntSlice() // the new value, and what was added
		return err == nil && counted[1] == 1, err
	}, client.Close), nil
}

// increxArgs are those of one more hit in the window of l, if it has room.
func increxArgs(l limit) []string {
	return []string{"UBOUND", strconv.Itoa(l.Max), "PX", strconv.FormatInt(max(1, l.Window.Milliseconds()), 10), "ENX"}
}

// rueidisClient returns a client of e's server.
func rueidisClient(e env) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress:  []string{e.server.addr},
		DisableCache: true, // the client-side cache, which is not used
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return e.dial(ctx)
		},
	})
}

var redisRate = system{name: "redis_rate, go-redis", how: "GCRA", backend: onRedis, open: overGoRedis}

func overGoRedis(e env, l limit) (limiter, error) {
	client := redis.NewClient(&redis.Options{
		Addr:     e.server.addr,
		PoolSize: 2 * maxCallers, // with the default, 10 for each core, callers would queue
		Dialer:   func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) },
	})
	lim := redis_rate.NewLimiter(client)
	l = l.bucket()
	rate := redis_rate.Limit{Rate: l.Max, Burst: l.Max, Period: l.Window}
	return simple(func(ctx context.Context, value string) (bool, error) {
		answer, err := lim.Allow(ctx, e.space+value, rate)
		return err == nil && answer.Allowed == 1, err
	}, func() { client.Close() }), nil
}
