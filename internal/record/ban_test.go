package record

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBanHoldsForItsLengthAndIsNotProlonged(t *testing.T) {
	c, lockout := &cell{}, 1500*time.Millisecond
	runSteps(t, c, window(1, t1), lockout, []step{
		{at: 0, remaining: 0, retry: t1, reset: t1},
		{at: t1 / 2, blocked: true, retry: lockout, reset: lockout}, // sets it
		{at: t1, blocked: true, retry: t1, reset: t1},
		{at: t2 - 1, blocked: true, retry: 1, reset: 1},
		{at: t2, remaining: 0, retry: t1, reset: t1}, // counting starts anew
	})
}

func TestBanReplacesTheHits(t *testing.T) {
	c := &cell{}
	for range 3 {
		c.call(at(0), window(2, time.Hour), t1)
	}
	end, length, ok := banIn(c.stored)
	require.True(t, ok)
	require.Equal(t, at(t1), end)
	require.Equal(t, t1, length)
	require.Empty(t, expiriesIn(c.stored))
	require.Equal(t, 1, c.call(at(t1), window(2, time.Hour), t1).Remaining)
}

func TestBanIsReportedByTheCallThatSetsIt(t *testing.T) {
	c := &cell{}
	require.False(t, c.call(at(0), window(1, t1), t5).Banned)
	require.True(t, c.call(at(0), window(1, t1), t5).Banned)
	require.True(t, c.call(at(t4), window(1, t1), t5).Banned)
	require.False(t, c.call(at(t5), window(1, t1), t5).Banned)
}

func TestBanHoldsForARuleWithoutLockout(t *testing.T) {
	c := &cell{}
	c.call(at(0), window(1, t1), t5)
	c.call(at(0), window(1, t1), t5)
	require.True(t, c.call(at(t4), window(10, t1), 0).Banned)
}

func TestBanOfAClockAheadLastsForItsLengthFromNow(t *testing.T) {
	c := &cell{}
	c.call(at(time.Hour), window(1, t1), t5)
	c.call(at(time.Hour), window(1, t1), t5)
	runSteps(t, c, window(1, t1), t5, []step{
		{at: 0, blocked: true, retry: t5, reset: t5},
		{at: t3, blocked: true, retry: t2, reset: t2},
		{at: t5, remaining: 0, retry: t1, reset: t1},
	})
}

func TestLongBansHold(t *testing.T) {
	for _, lockout := range []time.Duration{40 * 24 * time.Hour, 10 * 365 * 24 * time.Hour, math.MaxInt64} {
		// Nothing ends after the year 2262.
		want := min(lockout, math.MaxInt64-time.Duration(epoch.UnixNano()))
		c := &cell{}
		c.call(at(0), window(1, t1), lockout)
		require.Equal(t, want, c.call(at(0), window(1, t1), lockout).RetryAfter)
		require.True(t, c.call(at(want-time.Second), window(1, t1), lockout).Banned, lockout)
	}
}

func TestItemsOutliveTheirContent(t *testing.T) {
	const day = 24 * 60 * 60
	now := at(0)
	for _, tt := range []struct {
		content time.Duration
		want    int32
	}{
		{0, 3},
		{1, 3},
		{time.Millisecond, 3},
		{time.Second, 4},
		{1500 * time.Millisecond, 4},
		{time.Minute, 63},
		{30*24*time.Hour - 3*time.Second, 30 * day},
		// Beyond 30 days it is a date, with an hour for the server's clock.
		{30 * 24 * time.Hour, int32(now.Unix()) + 30*day + 3 + 3600},
		{40 * 24 * time.Hour, int32(now.Unix()) + 40*day + 3 + 3600},
		{100 * 365 * 24 * time.Hour, math.MaxInt32},
		{math.MaxInt64, math.MaxInt32},
	} {
		require.Equal(t, tt.want, Expiration(InstantOf(now), InstantOf(now).Add(tt.content)), tt.content)
	}
	// After 2038 there are no dates any more.
	require.EqualValues(t, 30*day, expirationOf(time.Unix(1<<31, 0), 40*24*time.Hour))
	require.EqualValues(t, 30*day, expirationOf(time.Unix(1<<31-10*day, 0), 40*24*time.Hour))
}

// growing returns a lockout whose bans grow up to longest.
func growing(length, longest time.Duration, growth float64) Lockout {
	return Lockout{Length: length, Growth: growth, Longest: longest}
}

// bans fills a window again after each ban has ended and a pause, and
// returns how long the bans were.
func bans(t *testing.T, l Lockout, pauses ...time.Duration) []time.Duration {
	var stored []byte
	var lengths []time.Duration
	now := at(0)
	for _, pause := range append(pauses, 0) {
		for range 2 {
			o, next := decideWith(now, window(1, t1), l, stored)
			if next != nil {
				stored = next
			}
			if o.Banned {
				lengths = append(lengths, o.RetryAfter)
				now = now.Add(o.RetryAfter + pause)
			}
		}
	}
	require.Len(t, lengths, len(pauses)+1)
	return lengths
}

func TestBansGrow(t *testing.T) {
	min := time.Minute
	require.Equal(t,
		[]time.Duration{min, 2 * min, 4 * min, 5 * min, 5 * min},
		bans(t, growing(min, 5*min, 2), 0, 0, 0, 0))
	require.Equal(t,
		[]time.Duration{min, min * 3 / 2, min * 9 / 4},
		bans(t, growing(min, 24*time.Hour, 1.5), 0, 0))
}

// A clock that is behind meets a grown ban and leaves it its own length.
func TestGrownBanOfAClockAheadLastsForItsGrownLength(t *testing.T) {
	rule := growing(time.Minute, 24*time.Hour, 2)
	stored := banRecord(at(-1), time.Minute, 1)
	for range 2 {
		_, stored = decideWith(at(time.Hour), window(1, t1), rule, stored)
	}
	_, length, _ := banIn(stored)
	require.Equal(t, 2*time.Minute, length)
	o, _ := decideWith(at(time.Hour), window(1, t1), rule, stored)
	require.Equal(t, 2*time.Minute, o.RetryAfter)
	o, _ = decideWith(at(0), window(1, t1), rule, stored)
	require.Equal(t, 2*time.Minute, o.RetryAfter)
}

func TestBansAreAlikeWithoutGrowth(t *testing.T) {
	for _, growth := range []float64{0, 1} {
		require.Equal(t, []time.Duration{t5, t5, t5}, bans(t, growing(t5, 24*time.Hour, growth), 0, 0))
	}
}

func TestGrowthIsForgottenAfterAWhile(t *testing.T) {
	memory := LockoutMemory
	require.Equal(t,
		[]time.Duration{t1, t2, t4, t1, t2},
		bans(t, growing(t1, 24*time.Hour, 2), 0, memory-1, memory, time.Hour))
}

func TestGrowthSurvivesManyBans(t *testing.T) {
	lengths := bans(t, growing(time.Millisecond, time.Second, 1e300), make([]time.Duration, 300)...)
	require.Equal(t, time.Second, lengths[300])
	_, next := decideWith(at(0), window(1, t1), growing(time.Millisecond, time.Second, 2),
		windowRecord(t1, at(t1)))
	for range 300 {
		end, _, ok := banIn(next)
		require.True(t, ok)
		for range 2 {
			_, next = decideWith(end, window(1, t1), growing(time.Millisecond, time.Second, 2), next)
		}
	}
}

func TestRepeatsAreStoredOnlyWithGrowth(t *testing.T) {
	ban := func(l Lockout) (stored []byte) {
		for range 2 {
			_, stored = decideWith(at(0), window(1, t1), l, stored)
		}
		return stored
	}
	require.Len(t, ban(growing(t5, 24*time.Hour, 0)), 18)
	require.Len(t, ban(growing(t5, 24*time.Hour, 2)), 19)

	// After the ban the hits stand beside what is remembered of it.
	stored := ban(growing(t5, 24*time.Hour, 2))
	_, stored = decideWith(at(t5), window(1, t1), growing(t5, 24*time.Hour, 2), stored)
	require.Len(t, expiriesIn(stored), 1)
	end, _, ok := banIn(stored)
	require.True(t, ok)
	require.Equal(t, at(t5), end)

	// A rule that does not want it drops it.
	_, stored = decideWith(at(t9), window(1, t1), growing(t5, 24*time.Hour, 0), stored)
	_, _, ok = banIn(stored)
	require.False(t, ok)
}
