package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func leaky(max int, ttl time.Duration) Limit {
	return Limit{Max: max, TTL: ttl, Algorithm: Bucket}
}

func TestBucketTakesABurstAndThenItsRate(t *testing.T) {
	sec := time.Second
	runSteps(t, &cell{}, leaky(3, 60*sec), 0, []step{
		{at: 0, remaining: 2, reset: 20 * sec},
		{at: 0, remaining: 1, reset: 40 * sec},
		{at: 0, remaining: 0, retry: 20 * sec, reset: 60 * sec},
		{at: 0, blocked: true, retry: 20 * sec, reset: 60 * sec},
		{at: 19 * sec, blocked: true, retry: sec, reset: 41 * sec},
		{at: 20*sec - 1, blocked: true, retry: 1, reset: 40*sec + 1},
		{at: 20 * sec, remaining: 0, retry: 20 * sec, reset: 60 * sec},
		{at: 30 * sec, blocked: true, retry: 10 * sec, reset: 50 * sec},
		{at: 70 * sec, remaining: 1, reset: 30 * sec},
		{at: 200 * sec, remaining: 2, reset: 20 * sec},
	})
}

func TestBucketRecordIs12BytesWhateverMaxIs(t *testing.T) {
	for _, max := range []int{1, 1000, 1_000_000_000} {
		c := &cell{}
		for range 3 {
			c.call(at(0), leaky(max, time.Hour), 0)
		}
		require.Len(t, c.stored, 12)
	}
}

func TestBucketWithAnIntervalThatIsNoWholeNanosecondKeepsBurstAndRate(t *testing.T) {
	// A hit leaks in 333,333,333 1/3 ns.
	c := &cell{}
	for i := range 3 {
		require.Equal(t, 2-i, c.call(at(0), leaky(3, time.Second), 0).Remaining)
	}
	o := c.call(at(0), leaky(3, time.Second), 0)
	require.True(t, o.Blocked)
	require.Equal(t, 333_333_334*time.Nanosecond, o.RetryAfter)
	require.True(t, c.call(at(o.RetryAfter-1), leaky(3, time.Second), 0).Blocked)
	require.False(t, c.call(at(o.RetryAfter), leaky(3, time.Second), 0).Blocked)
}

func TestRefusedByABucketChangesNothing(t *testing.T) {
	c := &cell{}
	c.call(at(0), leaky(1, time.Minute), 0)
	o, next := decideBytes(at(t1), leaky(1, time.Minute), 0, c.stored)
	require.True(t, o.Blocked)
	require.Nil(t, next)
}

func TestBucketOfAClockAheadLocksNobodyOutForLongerThanTTL(t *testing.T) {
	c := &cell{}
	c.call(at(time.Hour), leaky(2, t4), 0)
	runSteps(t, c, leaky(2, t4), 0, []step{
		{at: 0, blocked: true, retry: t2, reset: t4},
		{at: t1, blocked: true, retry: t1, reset: t3},
		{at: t2, remaining: 0, retry: t2, reset: t4},
	})
}

func TestBansOfABucketAreThoseOfAWindow(t *testing.T) {
	c := &cell{}
	runSteps(t, c, leaky(1, t1), t5, []step{
		{at: 0, remaining: 0, retry: t1, reset: t1},
		{at: 0, blocked: true, retry: t5, reset: t5},
		{at: t4, blocked: true, retry: t1, reset: t1},
		{at: t5, remaining: 0, retry: t1, reset: t1},
	})
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
	require.EqualValues(t, 2, c.stored[0], "both are in the record")
	c = &cell{}
	c.call(at(0), leaky(1, t1), 0)
	c.call(at(t1), window(1, t9), 0)
	require.EqualValues(t, 1, c.stored[0])
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
