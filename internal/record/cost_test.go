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
