package items_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/stretchr/testify/require"
)

// An item with an absolute Expiration and one with a relative one, both in a minute.
// If the wall clock is set, only the absolute one follows it.
func TestExpiryWhenTheWallClockIsSet(t *testing.T) {
	date := time.Unix(2_000_000_000, 0)
	stored := items.At(date.Add(-time.Minute), time.Hour)
	for _, tt := range []struct {
		name               string
		set, passed        time.Duration
		relative, absolute bool // whether they have expired
	}{
		{"not set", 0, time.Minute - 1, false, false},
		{"not set, a minute later", 0, time.Minute, true, true},
		{"set back", -time.Hour, time.Minute, true, false},
		{"set back, later", -time.Hour, time.Hour + time.Minute, true, true},
		{"set ahead", 59 * time.Second, time.Second - 1, false, false},
		{"set ahead, later", 59 * time.Second, time.Second, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := items.At(date.Add(-time.Minute+tt.set+tt.passed), time.Hour+tt.passed)
			require.Equal(t, tt.relative, items.Passed(60, stored, now))
			require.Equal(t, tt.absolute, items.Passed(2_000_000_000, stored, now))
			require.False(t, items.Passed(0, stored, now))

			for _, alone := range []bool{true, false} {
				var x items.Expiries
				x.Store("absolute", 2_000_000_000, stored)
				want := ""
				if tt.absolute {
					want = "absolute"
				}
				if !alone {
					for range 10 {
						x.Store("relative", 60, stored)
					}
					x.Store("never", 0, stored)
					if tt.relative && !tt.absolute {
						want = "relative"
					}
				}
				require.Empty(t, x.Expired(stored))
				got := x.Expired(now)
				if tt.relative && tt.absolute && !alone {
					require.NotEmpty(t, got)
					continue
				}
				require.Equal(t, want, got)
			}
		})
	}
}

// Items are stored before the clock is set back, and before it is set right again.
func TestItemsMakeRoomWhenTheWallClockIsSetRightAgain(t *testing.T) {
	date := time.Unix(2_000_000_000, 0)
	right := func(since time.Duration) time.Time { return date.Add(since - time.Minute) }
	for _, looked := range []bool{true, false} { // for expired ones while it was set back
		var x items.Expiries
		x.Store("first", 2_000_000_000, items.At(right(0), 0))
		require.Empty(t, x.Expired(items.At(right(0), 0)))
		back := items.At(right(0).Add(-time.Hour), time.Second)
		if looked {
			require.Empty(t, x.Expired(back))
		}
		x.Store("second", 2_000_000_000, back)
		for i := range 2 {
			require.NotEmpty(t, x.Expired(items.At(right(time.Minute), time.Minute)), i)
			x.Remove()
		}
	}
}
