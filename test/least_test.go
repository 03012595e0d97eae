package throttler_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asMuchAs is c for calls that take between least and most hits.
func asMuchAs(c throttler.Condition, least, most int) throttler.Condition {
	c.Least, c.Cost = least, most
	return c
}

// costs returns the Cost of each Outcome of d.
func costs(d throttler.Decision) []int {
	all := make([]int, len(d.Outcomes))
	for i, o := range d.Outcomes {
		all[i] = o.Cost
	}
	return all
}

func inBucket(c throttler.Condition) throttler.Condition {
	c.Algorithm = throttler.LeakyBucket
	return c
}

func TestWaitIsOverWhenLeastFits(t *testing.T) {
	for _, c := range []throttler.Condition{condition("c", 10, 10*time.Second), inBucket(condition("c", 10, 10*time.Second))} {
		synctest.Test(t, func(t *testing.T) {
			th := throttler.New(memstore.New())
			authorize(t, th, either(costing(c, 5)))
			time.Sleep(2 * time.Second)
			authorize(t, th, either(costing(c, 5)))
			start := time.Now()
			left := peek(t, th, either(asMuchAs(c, 5, 10)))
			d, err := th.Wait(t.Context(), either(asMuchAs(c, 5, 10)))
			require.NoError(t, err)
			require.Equal(t, []int{5}, costs(d))
			require.Equal(t, left.RetryAfter, time.Since(start))
			require.Greater(t, left.RetryAfter, time.Duration(0))

			ctx, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer end()
			d, err = th.Wait(ctx, either(asMuchAs(c, 1, 10)))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, []int{0}, costs(d))
		})
	}
}

func TestLeastIsBetween0AndCost(t *testing.T) {
	th := throttler.New(memstore.New())
	authorize(t, th, either(condition("c", 5, time.Minute))) // which prepares the rule
	for _, c := range []throttler.Condition{
		asMuchAs(condition("c", 5, time.Minute), -1, 3), asMuchAs(condition("c", 5, time.Minute), 4, 3), asMuchAs(condition("c", 5, time.Minute), 2, 0),
	} {
		err := either(c).Validate()
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		require.ErrorContains(t, err, "Least")
		_, err = th.Authorize(t.Context(), either(c))
		require.ErrorContains(t, err, "Least")
	}
	_, err := th.Authorize(t.Context(), either(costing(condition("c", 5, time.Minute), 6)))
	require.ErrorContains(t, err, "Cost")
	for _, c := range []throttler.Condition{asMuchAs(condition("c", 5, time.Minute), 3, 3), asMuchAs(condition("c", 5, time.Minute), 1, 0)} {
		require.NoError(t, either(c).Validate())
	}
}

func TestManyCallsTogetherTakeExactlyWhatThereIs(t *testing.T) {
	for _, c := range []throttler.Condition{condition("c", 1000, time.Hour), inBucket(condition("c", 1000, time.Hour))} {
		th := throttler.New(memstore.New())
		var mu sync.Mutex
		var wg sync.WaitGroup
		taken := 0
		for range 64 {
			wg.Go(func() {
				d, err := th.Authorize(context.Background(), either(asMuchAs(c, 1, 37)))
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				taken += d.Outcomes[0].Cost
			})
		}
		wg.Wait()
		require.Equal(t, 1000, taken)
	}
}
