package storetest

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exactness checks that many callers are admitted exactly Max.
func (s *suite) exactness() {
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket} {
		rule := s.rule("crowd"+strconv.Itoa(int(algorithm)), 40)
		rule.Either[0].Algorithm = algorithm
		rule.Either[0].TTL = 1000 * time.Hour // no hit leaks meanwhile
		require.Equal(s, 40, len(s.crowd(rule, 16, 8)), "admitted of a Max of 40")
	}
	rule := s.rule("canceled", 40)
	hits := s.crowd(rule, 16, 8)
	require.Len(s, hits, 40)
	var wg sync.WaitGroup
	for i, d := range hits {
		if i%2 == 0 {
			wg.Go(func() { assert.NoError(s, s.throttlers()[i/2%2].Cancel(context.Background(), d)) })
		}
	}
	wg.Wait()
	require.Len(s, s.crowd(rule, 16, 8), 20, "admitted after 20 were canceled")

	two := s.rule("one", 30)
	two.All = append(two.Either, throttler.Condition{Name: "other", Value: "two", Max: 30, TTL: time.Hour})
	two.Either = nil
	s.crowd(two, 8, 8)
	for _, c := range two.All {
		d, err := s.throttlers()[1].Peek(context.Background(), throttler.Rule{Identifier: s.space, Either: []throttler.Condition{c}})
		require.NoError(s, err)
		require.NoError(s, d.Err)
		require.Equal(s, throttler.Blocked, d.Status)
		c.Max++
		d, err = s.throttlers()[0].Peek(context.Background(), throttler.Rule{Identifier: s.space, Either: []throttler.Condition{c}})
		require.NoError(s, err)
		require.Equal(s, throttler.Authorized, d.Status, "a hit too many is stored")
	}
}

// crowd has goroutines call rule at once, over both clients, and returns the decisions
// of those that were admitted. None may fail.
func (s *suite) crowd(rule throttler.Rule, goroutines, calls int) (admitted []throttler.Decision) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, th := range s.throttlers() {
		for range goroutines / 2 {
			wg.Go(func() {
				for range calls {
					d, err := th.Authorize(context.Background(), rule)
					if !assert.NoError(s, err) || !assert.NoError(s, d.Err) {
						return
					}
					if d.Status == throttler.Authorized {
						mu.Lock()
						admitted = append(admitted, d)
						mu.Unlock()
					}
				}
			})
		}
	}
	wg.Wait()
	return admitted
}
