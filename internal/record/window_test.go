package record

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	t0 = 0 * time.Second
	t1 = 1 * time.Second
	t2 = 2 * time.Second
	t3 = 3 * time.Second
	t4 = 4 * time.Second
	t5 = 5 * time.Second
	t9 = 9 * time.Second
)

// cell is one record without a backend: what a sequence of calls makes of it.
type cell struct{ stored []byte }

func (c *cell) call(now time.Time, condition Limit, lockout time.Duration) Outcome {
	o, next := decideBytes(now, condition, lockout, c.stored)
	if next != nil {
		c.stored = next
	}
	return o
}

// step is one call on a cell, and what it must come to.
type step struct {
	at        time.Duration
	blocked   bool
	remaining int
	retry     time.Duration
	reset     time.Duration
}

func runSteps(t *testing.T, c *cell, condition Limit, lockout time.Duration, steps []step) {
	t.Helper()
	for i, s := range steps {
		o := c.call(at(s.at), condition, lockout)
		require.Equal(t, s, step{s.at, o.Blocked, o.Remaining, o.RetryAfter, o.ResetAfter}, "step %d", i)
	}
}

func window(max int, ttl time.Duration) Limit {
	return Limit{Max: max, TTL: ttl}
}

func TestWindowThatIsMadeLargerOrSmallerKeepsItsHits(t *testing.T) {
	c := &cell{}
	small, large := window(5, t9), window(100, t9)
	for i := range 3 {
		require.Equal(t, 4-i, c.call(at(time.Duration(i)*t1+1), small, 0).Remaining)
	}
	require.Equal(t, 96, c.call(at(t3), large, 0).Remaining)
	require.Equal(t, 0, c.call(at(t4), small, 0).Remaining)
	require.Equal(t, []time.Time{at(t9 + 1), at(t9 + t1 + 1), at(t9 + t2 + 1), at(t9 + t3), at(t9 + t4)}, expiriesIn(c.stored))
}

func drawWindow(t *rapid.T) Limit {
	return window(
		rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(30, 40)).Draw(t, "max"),
		time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(10*time.Minute)).Draw(t, "ttl")))
}

func TestHitOfAClockAheadCountsAsOneOfNow(t *testing.T) {
	c := &cell{}
	runSteps(t, c, window(3, t4), 0, []step{
		{at: time.Hour, remaining: 2, reset: t4},
		{at: t0, remaining: 1, reset: t4},
		{at: t1, remaining: 0, retry: t3, reset: t4},
		{at: t2, blocked: true, retry: t2, reset: t3},
		{at: t4, remaining: 1, reset: t4},
	})
}

func TestClocksThatDifferKeepTheListInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, condition, now := &cell{}, drawWindow(t), at(0)
		for range rapid.IntRange(1, 100).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(condition.TTL)).Draw(t, "pause")) / 6)
			skew := time.Duration(rapid.Int64Range(-int64(condition.TTL), int64(condition.TTL)).Draw(t, "skew"))
			other := condition
			other.TTL = max(time.Millisecond, time.Duration(float64(condition.TTL)*rapid.Float64Range(0.1, 10).Draw(t, "TTL change")))
			c.call(now.Add(skew), other, 0)
			times := expiriesIn(c.stored)
			for i := range times[1:] {
				require.False(t, times[i].After(times[i+1]), "%v", times)
			}
		}
	})
}

func TestResetAfterOfAShortenedTTLIsThatTTL(t *testing.T) {
	c := &cell{}
	c.call(at(0), window(9, time.Hour), 0)
	require.Equal(t, t4, c.call(at(0), window(9, t4), 0).ResetAfter)
}

// The original lost the whole list with the newest, shorter expiry.
func TestShorterTTLDoesNotShortenHitsThatBlockNobody(t *testing.T) {
	c := &cell{}
	long, short := window(3, time.Minute), window(3, t1)
	require.Equal(t, 2, c.call(at(t0), long, 0).Remaining)
	require.Equal(t, 1, c.call(at(t1), long, 0).Remaining)
	o := c.call(at(t2), short, 0)
	require.Equal(t, step{0, false, 0, t1, t1}, step{0, o.Blocked, o.Remaining, o.RetryAfter, o.ResetAfter})
	// The short hit is gone, the long ones are not.
	require.Equal(t, 0, c.call(at(t4), long, 0).Remaining)
	require.True(t, c.call(at(t5), long, 0).Blocked)
	require.False(t, c.call(at(time.Minute), long, 0).Blocked)
}

func TestShorterTTLHoldsForHitsThatBlock(t *testing.T) {
	c := &cell{}
	require.Equal(t, 0, c.call(at(t0), window(1, time.Hour), 0).Remaining)
	runSteps(t, c, window(1, t4), 0, []step{
		{at: t1, blocked: true, retry: t4, reset: t4},
		{at: t2, blocked: true, retry: t3, reset: t3},
		{at: t5, remaining: 0, retry: t4, reset: t4},
	})
}

// A full window always says when to come back: a list that cannot is none.
func TestListOutOfOrderThatCannotSayWhenItOpensCountsAsNone(t *testing.T) {
	c := &cell{stored: windowRecord(time.Hour, at(t9), at(-t1), at(3*t9))}
	runSteps(t, c, window(2, time.Hour), 0, []step{{at: 0, remaining: 1, reset: time.Hour}})
}

func TestSmallerMaxWaitsForSoManyHitsToExpire(t *testing.T) {
	c := &cell{}
	for i := range 5 {
		require.False(t, c.call(at(time.Duration(i)*t1), window(5, 10*t1), 0).Blocked)
	}
	// Hits expire at 10, 11, 12, 13, 14 s. With a Max of 2 the fourth of them
	// has to go.
	runSteps(t, c, window(2, 10*t1), 0, []step{
		{at: t5, blocked: true, retry: 8 * t1, reset: 9 * t1},
		{at: 13*t1 - 1, blocked: true, retry: 1, reset: t1 + 1},
		{at: 13 * t1, remaining: 0, retry: t1, reset: 10 * t1},
	})
}

func TestLongestTTLCountsUntilTheYear2262(t *testing.T) {
	c := &cell{}
	o := c.call(at(0), window(1, math.MaxInt64), 0)
	require.False(t, o.Blocked)
	o = c.call(at(24*time.Hour), window(1, math.MaxInt64), 0)
	require.True(t, o.Blocked)
	require.Greater(t, o.RetryAfter, 235*365*24*time.Hour)
}

// Hits are told apart by their expiry, and a call of a clock that is behind has corrected that. To
// take another hit back in its place might take one of another call.
func TestAHitOfAClockAheadThatWasCorrectedIsNotFoundAgain(t *testing.T) {
	for _, tt := range []struct {
		behind time.Duration // the clock of the second call
		passed time.Duration // from the first call to the second
		left   int           // hits after the first was given back
	}{
		{behind: 1, left: 1}, // no more than rounding adds
		{behind: 2, left: 2},
		{behind: time.Millisecond, left: 2},
		{behind: time.Millisecond, passed: time.Millisecond, left: 1},
	} {
		c := window(5, time.Minute)
		mine := decide(start, &c, Lockout{}, Record{}, true)
		now := start + Instant(tt.passed-tt.behind)
		other := decide(now, &c, Lockout{}, mine.Next, true)
		for name, giveBack := range map[string]func(r *Record){
			"Cancel":    func(r *Record) { *r, _ = r.Without(mine.Hit, start) },
			"Settle":    func(r *Record) { (&Settlement{Limit: c, Hits: []Hit{mine.Hit}, Total: 1}).Apply(start, r) },
			"withdrawn": func(r *Record) { *r, _ = r.Withdrawn(mine.Hit, start, &c) },
		} {
			r := reread(t, other.Next)
			giveBack(&r)
			require.Equal(t, tt.left, r.hits.len(), "%s of %+v", name, tt)
			r.hits.expire(max(now.Add(c.TTL), mine.Hit.Expiry))
			require.Zero(t, r.hits.len(), "both end in their time")
		}
	}
}

// BenchmarkDecide measures what a decision costs beside the backend.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{50, 500, 1000, 10_000, 100_000} {
		full := evenly(n, time.Hour).Encode() // the last hit was counted at start
		after := func(d time.Duration) time.Time { return time.Unix(0, int64(start.Add(d))) }
		c := window(n, time.Hour)
		b.Run(fmt.Sprintf("op=refuse/hits=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if o, _ := decideBytes(after(0), c, 0, full); !o.Blocked {
					b.Fatal("authorized")
				}
			}
		})
		b.Run(fmt.Sprintf("op=add/hits=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			// The oldest hits expire, and the new one takes their place.
			for b.Loop() {
				if o, _ := decideBytes(after(time.Hour/time.Duration(min(n, 500))), c, 0, full); o.Blocked {
					b.Fatal("blocked")
				}
			}
		})
		b.Run(fmt.Sprintf("op=drop/hits=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			// A random part of the hits has expired.
			random := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				decideBytes(after(time.Duration(random.Int64N(int64(time.Hour)))), c, 0, full)
			}
		})
	}
}
