package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// context checks that calls end with their ctx, whatever becomes of them.
func (s *suite) context() {
	rule := s.rule("context", 50)
	ended, end := context.WithCancel(context.Background())
	end()
	begun := time.Now()
	d, err := throttler.New(s.a).Authorize(ended, rule)
	require.NoError(s, err)
	require.ErrorIs(s, d.Err, context.Canceled)
	require.Less(s, time.Since(begun), 20*time.Second)

	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i, th := range append(s.throttlers(), s.throttlers()...) {
		random := rand.New(rand.NewPCG(uint64(i), 0))
		wg.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(400))*time.Microsecond)
				d, err := th.Authorize(ctx, rule)
				cancel()
				if assert.NoError(s, err) && d.Err == nil && d.Status == throttler.Authorized {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(s, admitted.Load(), int64(50))
	s.crowd(rule, 16, 8)
	require.Empty(s, s.crowd(rule, 4, 1), "the limit is full")
}

// overload checks that many callers at once all get an answer, and are admitted no more
// than Max.
func (s *suite) overload() {
	rules := make([]throttler.Rule, 20)
	admitted := make([]atomic.Int64, len(rules))
	for i := range rules {
		rules[i] = s.rule("overload"+strconv.Itoa(i), 10)
	}
	var wg sync.WaitGroup
	for range 500 {
		for _, th := range []*throttler.Throttler{throttler.New(s.a), throttler.New(s.b)} {
			wg.Go(func() {
				i := rand.IntN(len(rules))
				d, err := th.Authorize(context.Background(), rules[i])
				switch {
				case !assert.NoError(s, err):
				case d.Err != nil:
					assert.True(s, errors.Is(d.Err, throttler.ErrOverloaded) || errors.Is(d.Err, throttler.ErrUnavailable), "%v", d.Err)
				case d.Status == throttler.Authorized:
					admitted[i].Add(1)
				}
			})
		}
	}
	wg.Wait()
	for i := range admitted {
		require.LessOrEqual(s, admitted[i].Load(), int64(10))
	}
}
