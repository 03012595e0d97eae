package record

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func leaky(max int, ttl time.Duration) Limit {
	return Limit{Max: max, TTL: ttl, Algorithm: Bucket}
}

// While the Algorithm of a condition is being changed, some processes count by
// the one and some by the other, in one record.
func TestChangingTheAlgorithmLeavesWhatTheOtherHasCounted(t *testing.T) {
	c := &cell{}
	for range 20 {
		c.call(at(0), window(2, t9), 0)
		c.call(at(0), leaky(3, t9), 0)
	}
	require.Len(t, expiriesIn(c.stored), 2)
	require.True(t, c.call(at(t1), window(2, t9), 0).Blocked)
	require.Equal(t, t2, c.call(at(t1), leaky(3, t9), 0).RetryAfter)
	require.False(t, c.call(at(t3), leaky(3, t9), 0).Blocked)
	require.True(t, c.call(at(t9-1), window(2, t9), 0).Blocked)
	require.False(t, c.call(at(t9), window(2, t9), 0).Blocked)
}

func TestAlgorithmThatNobodyCountsByAnyMoreIsForgotten(t *testing.T) {
	c := &cell{}
	c.call(at(0), leaky(1, t1), 0)
	c.call(at(t1-1), window(1, t9), 0)
	require.Equal(t, byte(timesSection|bucketSection), c.stored[1])
	c = &cell{}
	c.call(at(0), leaky(1, t1), 0)
	c.call(at(t1), window(1, t9), 0)
	require.Equal(t, byte(timesSection), c.stored[1])
}

func TestChangingTheAlgorithmKeepsABan(t *testing.T) {
	c := &cell{}
	c.call(at(0), leaky(1, t9), 0)
	c.call(at(0), window(1, t9), 0)
	require.True(t, c.call(at(t2), window(1, t9), t5).Banned)
	require.True(t, c.call(at(t3), leaky(1, t9), t5).Banned)
	require.False(t, c.call(at(t2+t5), leaky(1, t9), 0).Blocked, "counting starts anew")
}

func TestLongestBucket(t *testing.T) {
	c := &cell{}
	condition := leaky(1, longestBucket)
	require.False(t, c.call(at(0), condition, 0).Blocked)
	require.Equal(t, longestBucket-time.Hour, c.call(at(time.Hour), condition, 0).RetryAfter)
}

// TestBucketKeepsItsRateWhateverClocksDiffer has callers whose clocks differ by up to what a
// bucket takes call as often as they like. In no time T more than Max + (T+d)/I calls are
// authorized, also if calls are taken back, settled or refused by other conditions.
func TestBucketKeepsItsRateWhateverClocksDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := *bucketOf(rapid.IntRange(1, 30).Draw(t, "max"), time.Duration(rapid.Int64Range(int64(10*time.Millisecond), int64(10*time.Minute)).Draw(t, "ttl")))
		apart := Instant(rapid.Int64Range(0, int64(farthest(limit.TTL))).Draw(t, "apart"))
		if rapid.Bool().Draw(t, "close") {
			apart = min(apart, Instant(limit.TTL)/20)
		}
		clocks := []Instant{0, apart, apart / 2}
		var r Record
		var admitted []Instant
		var hits []Hit // of admitted
		now := start
		for range rapid.IntRange(10, 200).Draw(t, "calls") {
			now += Instant(rapid.Int64Range(0, int64(limit.Interval())/2).Draw(t, "pause"))
			local := now + rapid.SampledFrom(clocks).Draw(t, "clock")
			if n := len(hits); n > 0 && rapid.IntRange(0, 9).Draw(t, "cancel") == 0 {
				if next, found := r.Without(hits[n-1], local); found {
					r, admitted = reread(t, next), admitted[:n-1]
				}
				hits = hits[:len(admitted)]
				continue
			}
			v := decide(local, &limit, Lockout{}, r, rapid.IntRange(0, 4).Draw(t, "count") > 0)
			if v.Store {
				r = reread(t, v.Next)
			}
			if v.Hit.Cost > 0 {
				admitted, hits = append(admitted, now), append(hits, v.Hit)
			}
		}
		for i, from := range admitted {
			for j := i + limit.Max; j < len(admitted); j++ {
				beyond := Instant(j-i+1-limit.Max) * limit.Interval()
				require.LessOrEqual(t, beyond, admitted[j]-from+apart, "%d calls in %v", j-i+1, time.Duration(admitted[j]-from))
			}
		}
	})
}

// A clock that is ahead, or was, locks nobody out for longer than TTL or a minute.
func TestBucketOfAClockAheadOpensInTime(t *testing.T) {
	for _, limit := range []*Limit{bucketOf(3, time.Second), bucketOf(3, time.Hour)} {
		for _, ahead := range []time.Duration{time.Millisecond, time.Second, 59 * time.Second, 61 * time.Second, time.Hour, 100 * time.Hour} {
			r := Record{}
			for range limit.Max {
				r = decide(start.Add(ahead), limit, Lockout{}, r, true).Next
			}
			v := decide(start, limit, Lockout{}, r, true)
			require.True(t, v.Outcome.Blocked)
			require.LessOrEqual(t, v.Outcome.RetryAfter, max(limit.TTL, time.Minute)+time.Duration(limit.Interval()))
			if v.Store {
				r = reread(t, v.Next)
			}
			require.False(t, decide(start.Add(v.Outcome.RetryAfter), limit, Lockout{}, r, true).Outcome.Blocked)
		}
	}
}

// A caller that takes all there is gets Max in each TTL, to a millionth, though an interval is
// no whole number of nanoseconds.
func TestBucketGivesMaxInEachTTL(t *testing.T) {
	for _, limit := range []*Limit{
		bucketOf(7, 5*time.Second), bucketOf(3, time.Second), bucketOf(110_000_000, time.Second), bucketOf(600_000_000, time.Second),
		bucketOf(999_999_999, time.Second), bucketOf(1_000_000_000, time.Second), bucketOf(1_000_003, 7*24*time.Hour),
	} {
		costing := *limit
		costing.Cost = max(limit.Max/3, 1)
		r, now, taken := Record{}, start, int64(0)
		for range 3000 {
			v := decide(now, &costing, Lockout{}, r, true)
			if v.Outcome.Blocked {
				now = now.Add(v.Outcome.RetryAfter)
				v = decide(now, &costing, Lockout{}, r, true)
				require.False(t, v.Outcome.Blocked)
			}
			r, taken = v.Next, taken+int64(costing.Cost)
		}
		most := float64(limit.Max) * (1 + float64(now-start)/float64(limit.TTL))
		require.LessOrEqual(t, float64(taken), most*(1+1e-12))
		require.InEpsilon(t, most-float64(limit.Max), float64(taken)-float64(limit.Max), 1e-6+float64(costing.Cost)/float64(taken), "Max %d", limit.Max)
	}
}

func TestALowerRateGrantsNoBurst(t *testing.T) {
	fast, slow := bucketOf(10, time.Second), bucketOf(10, 10*time.Second)
	r := Record{}
	for range 10 {
		r = decide(start, fast, Lockout{}, r, true).Next
	}
	v := decide(start, slow, Lockout{}, r, true)
	require.True(t, v.Outcome.Blocked)
	require.Equal(t, time.Second, v.Outcome.RetryAfter)
	require.True(t, v.Store, "or else the hits would leak at the old rate")
	r = reread(t, v.Next)
	require.True(t, decide(start.Add(time.Second-1), slow, Lockout{}, r, true).Outcome.Blocked)
	v = decide(start, fast, Lockout{}, r, true)
	require.Equal(t, 100*time.Millisecond, v.Outcome.RetryAfter, "a higher one holds at once")
	small := bucketOf(5, time.Second)
	v = decide(start, small, Lockout{}, r, true)
	require.Equal(t, small.Interval(), Instant(v.Outcome.RetryAfter), "what is full stays full")
}

func TestWhatLeakedBeforeAChangeOfTheRateLeakedAtTheOldOne(t *testing.T) {
	slow, fast := bucketOf(10, time.Minute), bucketOf(10, 20*time.Second)
	for _, c := range []struct {
		from, to *Limit
		pass     int // after 10 s
	}{{slow, fast, 1}, {fast, slow, 5}} {
		var r Record
		for range 10 {
			r = decide(start, c.from, Lockout{}, r, true).Next
		}
		passed := 0
		for range 10 {
			v := decide(start.Add(10*time.Second), c.to, Lockout{}, r, true)
			if r = reread(t, v.Next); !v.Outcome.Blocked {
				passed++
			}
		}
		require.Equal(t, c.pass, passed, "from %v to %v", c.from.TTL, c.to.TTL)
	}
}

func TestABucketIsNoLessFullAtAnotherRate(t *testing.T) {
	b := decide(start, bucketOf(3, 3*time.Second), Lockout{}, Record{}, true).Next.bucket
	b.enter(start, bucketOf(3, time.Second))
	require.Equal(t, start+333_333_334, b.score.whole, "rounded up")
}

// A receipt from before a change of the rate finds nothing: how much it has poured in is not
// what the bucket now holds of it.
func TestAChangedRateIsAnotherBucketToReceipts(t *testing.T) {
	fast, slow := bucketOf(10, time.Second), bucketOf(10, 10*time.Second)
	first := decide(start, fast, Lockout{}, Record{}, true)
	second := decide(start, slow, Lockout{}, first.Next, true)
	_, found := second.Next.Without(first.Hit, start)
	require.False(t, found)
	_, found = second.Next.Without(second.Hit, start)
	require.True(t, found)
}

// A bucket that takes the rate of such a hit would be stored in a form that is not read again.
func TestANumberThatIsNoMaxMakesNoHitOfABucket(t *testing.T) {
	numbers := Hit{Cost: 1, Kind: Bucket, Expiry: start + 1, At: start, TTL: Instant(time.Minute), Max: 10, ID: 3}.Numbers()
	require.NotZero(t, HitOf(numbers))
	for _, most := range []int64{0, -1, math.MinInt64} {
		numbers[5] = most
		require.Zero(t, HitOf(numbers), most)
	}
}
