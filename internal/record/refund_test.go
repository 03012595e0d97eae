package record

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var start = InstantOf(time.Unix(1_800_000_000, 0))

func bucketOf(max int, ttl time.Duration) *Limit {
	return &Limit{Max: max, TTL: ttl, Algorithm: Bucket}
}

// pour counts n calls of c at now.
func pour(t require.TestingT, b bucket, now Instant, c *Limit, n int) (bucket, []Hit) {
	var counted []Hit
	for range n {
		v := decide(now, c, Lockout{}, Record{bucket: b}, true)
		require.False(t, v.Outcome.Blocked)
		b, counted = v.Next.bucket, append(counted, v.Hit)
	}
	return b, counted
}

// takeBack takes all shares back at now, in random order.
func takeBack(b bucket, now Instant, counted []Hit, random *rand.Rand) bucket {
	for _, i := range random.Perm(len(counted)) {
		b, _ = b.without(counted[i], now)
	}
	return b
}

func TestCancelInRandomOrderEmptiesABucket(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []*Limit{bucketOf(5, time.Minute), bucketOf(100, time.Second), bucketOf(1000, time.Hour), bucketOf(100_000, time.Minute)} {
		for _, cost := range []int{1, c.Max / 20, c.Max / 2} {
			costing := *c
			costing.Cost = cost
			for range 20 {
				b, counted := pour(t, bucket{}, start, &costing, min(1000, c.Max/costing.Hits()))
				require.Equal(t, start, takeBack(b, start, counted, random).score.whole, "Max %d, Cost %d", c.Max, cost)
			}
		}
	}
}

func TestCancelOfTheNewestFirstLeavesNothing(t *testing.T) {
	c := bucketOf(50, time.Minute)
	var b bucket
	now := start
	var counted []Hit
	for range 50 {
		var one []Hit
		b, one = pour(t, b, now, c, 1)
		counted, now = append(counted, one...), now+Instant(time.Second/10)
	}
	for i := range counted {
		b, _ = b.without(counted[49-i], now)
		now += Instant(time.Millisecond)
	}
	require.LessOrEqual(t, b.score.up(), now)
}

// poured is a call that a bucket has taken, and what became of it.
type poured struct {
	Hit
	back   Instant // so much was given back
	closed bool    // it was taken back, or an attempt was made
}

// amount returns how long p takes to leak.
func (p *poured) amount() Instant { return rate{p.TTL, p.Max}.amount(uint64(p.Cost)).whole }

// scoreOf returns the score of a bucket that would have taken calls, each smaller
// by what was given back of it; or of one that has never seen those taken back.
func scoreOf(calls []poured, asIfNever bool) Instant {
	var score Instant
	for _, p := range calls {
		amount := p.amount() - p.back
		if asIfNever && p.closed && p.back > 0 {
			amount = 0
		}
		if amount > 0 {
			score = max(score, p.At) + amount
		}
	}
	return score
}

// wholeBucket draws a bucket whose hits leak in a whole number of nanoseconds.
func wholeBucket(t *rapid.T) *Limit {
	max := rapid.IntRange(1, 60).Draw(t, "max")
	return bucketOf(max, time.Duration(max)*time.Duration(rapid.Int64Range(int64(time.Millisecond)/60, int64(time.Minute)).Draw(t, "interval")))
}

// The argument of doc.go, for any arrivals, costs and orders: a bucket is
// always the one of calls that were smaller by what was given back of them. So
// nothing is ever given back that others' calls hold, and at least all but what
// leaked meanwhile is.
func TestCancelGivesBackNeitherTooMuchNorMuchTooLittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := wholeBucket(t)
		b, now := bucket{}, start
		var calls []poured
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now += Instant(rapid.SampledFrom([]int64{0, 0, 1, int64(c.TTL) / 1000, int64(c.Interval()) / 3, int64(c.TTL) / 3}).Draw(t, "pause"))
			if len(calls) == 0 || rapid.Bool().Draw(t, "count") {
				costing := *c
				costing.Cost = rapid.IntRange(1, max(1, c.Max/3)).Draw(t, "cost")
				v := decide(now, &costing, Lockout{}, Record{bucket: b}, true)
				b = v.Next.bucket
				if v.Store {
					calls = append(calls, poured{Hit: v.Hit})
				}
				continue
			}
			p := &calls[rapid.IntRange(0, len(calls)-1).Draw(t, "which")]
			if p.closed {
				continue
			}
			next, found := b.without(p.Hit, now)
			if next.score != b.score || found {
				require.True(t, found)
				require.True(t, next.score.less(b.score))
			}
			p.back, p.closed = b.score.whole-next.score.whole, true
			require.LessOrEqual(t, p.back, p.amount())
			least := min(p.amount()-(now-p.At), b.score.whole-now)
			if uint64(b.cancels-uint16(p.ID)) <= b.rate.most() {
				require.GreaterOrEqual(t, p.back, least, "all but what leaked meanwhile")
			}
			b = next
			require.Equal(t, max(scoreOf(calls, false), now), max(b.score.whole, now), "smaller calls make the same bucket")
			require.GreaterOrEqual(t, max(b.score.whole, now), scoreOf(calls, true), "others keep what they hold")
		}
	})
}

func TestLongestBucketIsGivenBackAfterManyOthers(t *testing.T) {
	c := bucketOf(1, longestBucket)
	b, counted := pour(t, bucket{}, start, c, 1)
	b.cancels += minMoved // as if so many had been taken back, of no size
	next, found := b.without(counted[0], start+1)
	require.True(t, found)
	require.Equal(t, start+1, next.score.whole, "it is empty")
}

// A bucket of many hits was reset, and others have poured into a new one: none
// of its hits is found there.
func TestCancelAfterAResetFindsNothingInANewBucket(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	large := bucketOf(100_000, time.Hour)
	half := *large
	half.Cost = 50_000 - 1
	for _, others := range []int{1, 60} {
		for range 1000 {
			now := start + Instant(random.Int64N(int64(time.Hour)))
			b, _ := pour(t, bucket{}, now, &half, 1)
			_, counted := pour(t, b, now, large, 1)
			now += Instant(random.Int64N(int64(time.Second)))
			b, _ = pour(t, bucket{}, now, large, others)
			_, found := b.without(counted[0], now+Instant(time.Second))
			require.False(t, found)
		}
	}
}

// In a small one it is found by chance, where both counts begin close together.
func TestCancelAfterAResetRarelyFindsAHitOfANewSmallBucket(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := bucketOf(5, time.Minute)
	found := 0
	for range 10_000 {
		now := start + Instant(random.Int64N(int64(time.Hour)))
		_, counted := pour(t, bucket{}, now, c, 1)
		b, _ := pour(t, bucket{}, now+Instant(1+random.Int64N(int64(time.Second))), c, 2)
		if _, ok := b.without(counted[0], now+Instant(time.Second)); ok {
			found++
		}
	}
	require.LessOrEqual(t, found, 60, "some %d of 65,536 are expected", minMoved)
}
