package throttler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func costing(c throttler.Condition, cost int) throttler.Condition {
	c.Cost = cost
	return c
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
	for _, c := range []throttler.Condition{window(100, t9), leaky(100, t9)} {
		require.Equal(t, 99, (&cell{}).call(at(0), costing(c, 0), 0).Remaining, "0 is 1")
		cell := &cell{}
		require.Equal(t, 0, cell.call(at(0), costing(c, 100), 0).Remaining)
		require.Equal(t, t9, cell.call(at(0), costing(c, 100), 0).RetryAfter)
	}
}

func TestCallThatDoesNotFitBansOnlyIfOneHitWouldNotFitEither(t *testing.T) {
	for _, c := range []throttler.Condition{window(3, t9), leaky(3, t9)} {
		cell := &cell{}
		require.Equal(t, 1, cell.call(at(0), costing(c, 2), t5).Remaining)
		o := cell.call(at(0), costing(c, 2), t5)
		require.True(t, o.Blocked)
		require.False(t, o.Banned)
		require.False(t, cell.call(at(0), costing(c, 1), t5).Blocked)
		require.True(t, cell.call(at(0), costing(c, 2), t5).Banned)
	}
}

func drawCosting(t *rapid.T) throttler.Condition {
	c := drawWindow(t)
	c.Algorithm = rapid.SampledFrom([]throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket}).Draw(t, "algorithm")
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
			var last throttler.Outcome
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
			require.Equal(t, last, o)
			require.Equal(t, single.stored, whole.stored)
		}
	})
}

// The condition that took the call has room for another hit, but not for the same
// call again.
func TestRetryAfterIsForTheSameCallWithAllItsCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(condition("full", 1, 10*time.Second), costing(condition("costly", 10, time.Minute), 4))
		authorize(t, th, rule)
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, 2, d.Outcomes[1].Remaining)
		require.Zero(t, d.Outcomes[1].RetryAfter)
		require.Equal(t, time.Minute, d.RetryAfter)
		time.Sleep(d.RetryAfter - 1)
		require.Equal(t, throttler.Blocked, peek(t, th, rule).Status)
		time.Sleep(time.Nanosecond)
		require.Equal(t, throttler.Authorized, peek(t, th, rule).Status)
	})
}

func TestCancelGivesBackAllThatACallCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, max := range []int{20, 100, 5000} {
			th := throttler.New(memstore.New())
			rule := either(costing(condition("window", max, time.Minute), 7), costing(condition("bucket", max, time.Minute), 7))
			rule.Either[1].Algorithm = throttler.LeakyBucket
			first, second := authorize(t, th, rule), authorize(t, th, rule)
			require.NoError(t, th.Cancel(t.Context(), first))
			require.Equal(t, []int{max - 14, max - 14}, remaining(peek(t, th, rule)))
			require.NoError(t, th.Cancel(t.Context(), second))
			require.Equal(t, []int{max - 7, max - 7}, remaining(peek(t, th, rule)))
		}
	})
}

func TestCancelFindsAHitInAListThatWasMadeCoarserOrFiner(t *testing.T) {
	small, large := either(condition("c", 5, time.Minute)), either(condition("c", 100, time.Minute))
	for _, rules := range [][2]throttler.Rule{{small, large}, {large, small}} {
		synctest.Test(t, func(t *testing.T) {
			th := throttler.New(memstore.New())
			time.Sleep(time.Nanosecond)
			d := authorize(t, th, rules[0])
			before := remaining(authorize(t, th, rules[1]))
			require.NoError(t, th.Cancel(t.Context(), d))
			require.Equal(t, before, remaining(peek(t, th, rules[1])), "one hit less, and the one of this look")
		})
	}
}
