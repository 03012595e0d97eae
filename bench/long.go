package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/rueidis"
)

// This file measures windows that hold many hits when they are asked. Their hits are spread
// over the last hour.

// longHits are how many hits the windows hold when they are filled.
var longHits = []int{50, 1000, 10_000, 100_000}

// longestLog is the longest sorted set that is measured: more take too much memory.
const longestLog = 1000

var longNames = names(1000, func(i int) string { return fmt.Sprintf("long%04d", i) })

// longWork is decisions on windows that hold so many hits.
func longWork(hits int) work {
	return work{
		name: fmt.Sprintf("%d hits", hits), limit: limit{throttler.MaxHits, time.Hour}, allowed: true,
		values: anyOf(longNames),
	}
}

// longSystems are those whose windows are filled with so many hits.
func longSystems(hits int) []system {
	all := []system{
		filled(poolWindow, fillMemcached, hits), filled(redisWindow, fillRedis, hits), rueidisBucket,
	}
	if hits <= longestLog {
		all = append(all, filled(rueidisLog, fillLog, hits))
	}
	return all
}

// filled returns s, with so many hits in each window when it is opened.
func filled(s system, fill func(env, int) error, hits int) system {
	open := s.open
	s.open = func(e env, l limit) (limiter, error) {
		if l == longWork(hits).limit {
			if err := fill(e, hits); err != nil {
				return nil, err
			}
		}
		return open(e, l)
	}
	return s
}

// fillMemcached stores windows as throttler does.
func fillMemcached(e env, hits int) error {
	client := plainClient(e)
	defer client.Close()
	return fillStore(e, client, hits)
}

// fillRedis stores windows as throttler does.
func fillRedis(e env, hits int) error {
	client, err := rueidisClient(e)
	if err != nil {
		return err
	}
	defer client.Close()
	store := redisstore.New(client)
	defer store.Close()
	return fillStore(e, store, hits)
}

func fillStore(e env, client throttler.Client, hits int) error {
	value := longWindow(time.Now(), hits, time.Hour)
	for _, name := range longNames {
		item := &memcache.Item{Key: throttler.RecordKey(e.space, "v", name), Value: value, Expiration: 3700}
		if err := client.Add(item); err != nil {
			return err
		}
	}
	return nil
}

// longWindow returns the record of a window that holds so many hits, spread over a TTL that
// ends at now.
func longWindow(now time.Time, hits int, ttl time.Duration) []byte {
	const most = 5000 // times at which hits are counted
	steps := min(hits, most)
	var r record.Record
	for i := range steps {
		at := now.Add(-ttl * time.Duration(steps-i) / time.Duration(steps+1))
		var v record.Verdict
		one := record.Limit{Max: throttler.MaxHits, TTL: ttl, Cost: (i+1)*hits/steps - i*hits/steps}
		v.Decide(record.InstantOf(at), &one, record.Lockout{}, &r, true)
	}
	return r.Encode()
}

// fillScript adds ARGV[3] hits to a log, each ARGV[2] microseconds after the one before.
const fillScript = `
for i = 1, tonumber(ARGV[3]) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', tonumber(ARGV[1]) + i * tonumber(ARGV[2])), 'f' .. i)
end
redis.call('PEXPIRE', KEYS[1], 3600000)`

// fillLog stores windows as sorted sets.
func fillLog(e env, hits int) error {
	client, err := rueidisClient(e)
	if err != nil {
		return err
	}
	defer client.Close()
	step := time.Hour / time.Duration(hits+1)
	args := []string{micros(time.Now().Add(-time.Hour).UnixMicro()), micros(step.Microseconds()), strconv.Itoa(hits)}
	for _, name := range longNames {
		err := client.Do(context.Background(), client.B().Eval().Script(fillScript).Numkeys(1).Key(e.space+name).Arg(args...).Build()).Error()
		if err != nil && !rueidis.IsRedisNil(err) {
			return err
		}
	}
	return nil
}

// long plays a scene for each number of hits and of callers.
func (st *stage) long(ctx context.Context, longHits []int, out io.Writer) error {
	var byHits [][][]result
	for _, hits := range longHits {
		played, err := st.playAll(ctx, longWork(hits), longSystems(hits), besideCallers)
		if err != nil {
			return err
		}
		byHits = append(byHits, played)
	}
	longTable(longHits, byHits).write(out)
	return nil
}

// longTable has the results by the hits that the windows hold.
func longTable(longHits []int, byHits [][][]result) table {
	t := table{
		title: "Windows by the hits that they hold",
		note: fmt.Sprintf("%d values at random, with a limit of %d an hour that none comes near. The ratio is to GCRA by rueidis, "+
			"which stores one number: median of the rounds (quartiles).", len(longNames), throttler.MaxHits),
		head: []string{"hits", "limiter", "algorithm", "µs a decision", "p99, µs", "ratio, 1 caller", fmt.Sprintf("ratio, %s", callersText(maxCallers))},
	}
	for i, scenes := range byHits {
		for _, c := range bySystem(scenes) {
			row := []string{
				strconv.Itoa(longHits[i]), c[0].system.name, c[0].system.how,
				c.join(func(r result) string { return inMicros(r.median(round.each)) }),
				c.join(func(r result) string { return inMicros(r.median(round.tail)) }),
			}
			for n := range scenes {
				cell := "-"
				if b, found := find(scenes[n], rueidisBucket); found {
					cell = beside(c[n], b).String()
				}
				row = append(row, cell)
			}
			t.rows = append(t.rows, row)
		}
	}
	return t
}
