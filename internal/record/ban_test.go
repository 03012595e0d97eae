package record

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
