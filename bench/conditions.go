package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/redis/rueidis"
)

// conditionCounts are how many conditions a call of the table of several conditions has.
var conditionCounts = []int{2, 8, 32}

// A pair is throttler over pool and one Lua script on Redis, each with as many conditions
// in a call.
type pair struct{ ours, script system }

func pairOf(conditions int) pair {
	return pair{
		ours:   system{"throttler, pool", fmt.Sprintf("%d sliding windows", conditions), onMemcached, poolOfSeveral(conditions)},
		script: system{"rueidis, Lua", fmt.Sprintf("GCRA of %d keys", conditions), onRedis, rueidisOfSeveral(conditions)},
	}
}

// poolOfSeveral opens throttler over pool with a rule of n conditions, each with a record of
// its own for a value.
func poolOfSeveral(n int) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		th, end, err := poolThrottler(e)
		if err != nil {
			return nil, err
		}
		rule := ruleOf(e, l, throttler.SlidingWindow)
		for i := 1; i < n; i++ {
			c := rule.Either[0]
			c.Name = "v" + strconv.Itoa(i)
			rule.Either = append(rule.Either, c)
		}
		return deciders{th, rule, end, new(endings)}, nil
	}
}

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

func rueidisOfSeveral(n int) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		client, err := rueidisClient(e)
		if err != nil {
			return nil, err
		}
		lua := rueidis.NewLuaScript(severalScript)
		return &simple{allow: func(ctx context.Context, value string) (bool, error) {
			keys := make([]string, n)
			for i := range keys {
				keys[i] = e.space + strconv.Itoa(i) + value
			}
			counted, err := lua.Exec(ctx, client, keys, gcraArgs(time.Now(), l, 0)).AsIntSlice()
			return err == nil && counted[0] == 1, err
		}, end: client.Close}, nil
	}
}

// playSeveral plays the work spread for each of conditionCounts, by one caller and by many.
func (st *stage) playSeveral(ctx context.Context, _ options, out io.Writer) error {
	var byCount [][][]result
	for _, n := range conditionCounts {
		p := pairOf(n)
		both := []system{p.ours, p.script}
		if len(st.playable(both)) < len(both) {
			return nil
		}
		st.report("%d conditions", n)
		if err := st.verify(both); err != nil {
			return err
		}
		scenes, err := st.playAll(ctx, spread, both, besideCallers)
		if err != nil {
			return err
		}
		byCount = append(byCount, scenes)
	}
	severalTable(byCount).write(out)
	return nil
}

// severalTable has the scenes of playSeveral.
func severalTable(byCount [][][]result) table {
	t := table{
		title: "Several conditions in a call",
		note: "The work is spread, and each condition has a record of its own for each value. The script has all keys of a call. " +
			"The ratio is that of the times of a call, ours to the script's: medians of the rounds (quartiles).",
		head: []string{"limiter", "algorithm", "µs a call", "allocations"},
	}
	for _, n := range besideCallers {
		t.head = append(t.head, "ratio, "+callersText(n))
	}
	for _, scenes := range byCount {
		for i, c := range bySystem(scenes) {
			row := []string{
				c[0].system.name, c[0].system.how,
				c.join(func(r result) string { return inMicros(r.median(round.each)) }),
				c.join(result.allocsEach),
			}
			for _, scene := range scenes {
				if i == 0 {
					row = append(row, beside(scene[0], scene[1]).String())
				} else {
					row = append(row, "")
				}
			}
			t.rows = append(t.rows, row)
		}
	}
	return t
}
