package main

import (
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/bradfitz/gomemcache/memcache"
)

// This file fills windows with hits before they are asked.

var (
	longNames = names(1000, func(i int) string { return fmt.Sprintf("long%04d", i) })
	longLimit = limit{throttler.MaxHits, time.Hour}
)

// filled returns s, over memcached, with so many hits in each window when it is opened.
func filled(s system, hits int) system {
	open := s.open
	s.open = func(e env, l limit) (limiter, error) {
		client, value := plainClient(e), longWindow(time.Now(), hits, longLimit.Window)
		defer client.Close()
		for _, name := range longNames {
			item := &memcache.Item{Key: throttler.RecordKey(e.space, "v", name), Value: value, Expiration: 3700}
			if err := client.Add(item); err != nil {
				return limiter{}, err
			}
		}
		return open(e, l)
	}
	return s
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
