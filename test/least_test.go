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

func TestACallTakesAsMuchAsThereIs(t *testing.T) {
	for name, c := range map[string]throttler.Condition{
		"window":       condition("c", 10, time.Minute),
		"bucket":       inBucket(condition("c", 10, time.Minute)),
		"large window": condition("c", 1000, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(memstore.New())
				part := c.Max / 10
				rule := either(asMuchAs(c, 3*part, 6*part))
				require.Equal(t, []int{6 * part}, costs(peek(t, th, rule)))
				d := authorize(t, th, rule)
				require.Equal(t, []int{6 * part}, costs(d))
				require.Equal(t, []int{4 * part}, remaining(d))

				require.Equal(t, []int{4 * part}, costs(peek(t, th, rule)))
				d = authorize(t, th, rule)
				require.Equal(t, throttler.Authorized, d.Status)
				require.Equal(t, []int{4 * part}, costs(d))
				require.Equal(t, []int{0}, remaining(d))

				require.NoError(t, th.Cancel(t.Context(), d))
				require.Equal(t, []int{4 * part}, room(t, th, either(c)), "as much as it took")
				d = authorize(t, th, either(costing(c, 2*part)))
				require.Equal(t, []int{2 * part}, costs(d))

				d = authorize(t, th, rule)
				require.Equal(t, throttler.Blocked, d.Status, "there is less than Least")
				require.Equal(t, []int{0}, costs(d))
				require.Equal(t, d.RetryAfter, d.Outcomes[0].RetryAfter)
				time.Sleep(d.RetryAfter - time.Millisecond)
				require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
				time.Sleep(time.Millisecond)
				d = authorize(t, th, rule)
				require.Equal(t, throttler.Authorized, d.Status, "RetryAfter is until Least fits")
				require.GreaterOrEqual(t, d.Outcomes[0].Cost, 3*part)
			})
		})
	}
}

func TestCostIsZeroWhereACallCountedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, large := condition("small", 2, time.Minute), asMuchAs(condition("large", 10, time.Minute), 1, 5)
		th := throttler.New(memstore.New())
		rule := either(small, large)
		rule.CountAuthorizedOnly = true
		require.Equal(t, []int{1, 5}, costs(authorize(t, th, rule)))
		require.Equal(t, []int{1, 5}, costs(peek(t, th, rule)))
		require.Equal(t, []int{1, 5}, costs(authorize(t, th, rule)))
		authorize(t, th, either(condition("small", 3, time.Minute)))
		require.NoError(t, th.Reset(t.Context(), either(large)))
		require.Equal(t, []int{0, 0}, costs(authorize(t, th, rule)), "a refused call counts nowhere")
		require.Equal(t, []int{0, 0}, costs(peek(t, th, rule)))
		require.Equal(t, []int{10}, room(t, th, either(condition("large", 10, time.Minute))))
		rule.CountAuthorizedOnly = false
		require.Equal(t, []int{0, 5}, costs(peek(t, th, rule)))
		require.Equal(t, []int{0, 5}, costs(authorize(t, th, rule)))
		rule.Either, rule.All = nil, rule.Either
		require.Equal(t, []int{0, 5}, costs(authorize(t, th, rule)))
		rule.Shadow = true
		require.Equal(t, []int{0, 0}, costs(authorize(t, th, rule)))

		client := newFaulty()
		client.before = func(string, ...string) error { return errDown }
		require.Equal(t, []int{0, 0}, costs(authorize(t, throttler.New(client), rule)), "it failed open")
	})
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
	for _, c := range []throttler.Condition{
		asMuchAs(condition("c", 5, time.Minute), -1, 3), asMuchAs(condition("c", 5, time.Minute), 4, 3), asMuchAs(condition("c", 5, time.Minute), 2, 0),
	} {
		err := either(c).Validate()
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		require.ErrorContains(t, err, "Least")
	}
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
