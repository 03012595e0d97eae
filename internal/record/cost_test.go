package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func costing(limit Limit, cost int) Limit {
	limit.Cost = cost
	return limit
}

func TestCostIsCountedWholeOrNotAtAll(t *testing.T) {
	sec := time.Second
	runSteps(t, &cell{}, costing(window(10, 60*sec), 4), 0, []step{
		{at: 0, remaining: 6, reset: 60 * sec},
		{at: 10 * sec, remaining: 2, reset: 60 * sec}, // takes another hit, though not another 4
		{at: 20 * sec, blocked: true, remaining: 2, retry: 40 * sec, reset: 50 * sec},
		{at: 60*sec - 1, blocked: true, remaining: 2, retry: 1, reset: 10*sec + 1},
		{at: 60 * sec, remaining: 2, reset: 60 * sec},
	})
	runSteps(t, &cell{}, costing(leaky(10, 60*sec), 4), 0, []step{
		{at: 0, remaining: 6, reset: 24 * sec},
		{at: 0, remaining: 2, reset: 48 * sec},
		{at: 0, blocked: true, remaining: 2, retry: 12 * sec, reset: 48 * sec},
		{at: 12*sec - 1, blocked: true, remaining: 3, retry: 1, reset: 36*sec + 1},
		{at: 12 * sec, remaining: 0, retry: 6 * sec, reset: 60 * sec},
	})
}

func TestCostOfAllThatFitsAndOfNothing(t *testing.T) {
	for _, c := range []Limit{window(100, t9), leaky(100, t9)} {
		require.Equal(t, 99, (&cell{}).call(at(0), costing(c, 0), 0).Remaining, "0 is 1")
		cell := &cell{}
		require.Equal(t, 0, cell.call(at(0), costing(c, 100), 0).Remaining)
		require.Equal(t, t9, cell.call(at(0), costing(c, 100), 0).RetryAfter)
	}
}

func TestCallThatDoesNotFitBansOnlyIfOneHitWouldNotFitEither(t *testing.T) {
	for _, c := range []Limit{window(3, t9), leaky(3, t9)} {
		cell := &cell{}
		require.Equal(t, 1, cell.call(at(0), costing(c, 2), t5).Remaining)
		o := cell.call(at(0), costing(c, 2), t5)
		require.True(t, o.Blocked)
		require.False(t, o.Banned)
		require.False(t, cell.call(at(0), costing(c, 1), t5).Blocked)
		require.True(t, cell.call(at(0), costing(c, 2), t5).Banned)
	}
}

func drawCosting(t *rapid.T) Limit {
	c := drawWindow(t)
	c.Algorithm = rapid.SampledFrom([]Algorithm{Window, Bucket}).Draw(t, "algorithm")
	return c
}

// A call that costs n is answered as n calls would be that are all let through or
// none, and RetryAfter is when it fits.
func TestCostIsThatManyHits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, single, c, now := &cell{}, &cell{}, drawCosting(t), at(0)
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(c.TTL)).Draw(t, "pause")) / 4)
			cost := rapid.IntRange(1, c.Max).Draw(t, "cost")
			o := whole.call(now, costing(c, cost), 0)
			trial := *single
			var last Outcome
			fits := 0
			for ; fits < cost; fits++ {
				if last = trial.call(now, c, 0); last.Blocked {
					break
				}
			}
			require.Equal(t, fits < cost, o.Blocked)
			if o.Blocked {
				require.Equal(t, fits, o.Remaining)
				early := *whole
				require.True(t, early.call(now.Add(o.RetryAfter-1), costing(c, cost), 0).Blocked)
				late := *whole
				require.False(t, late.call(now.Add(o.RetryAfter), costing(c, cost), 0).Blocked)
				continue
			}
			*single = trial
			last.Cost = cost
			require.Equal(t, last, o)
			require.Equal(t, single.stored, whole.stored)
		}
	})
}
