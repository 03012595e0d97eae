package memstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If the wall clock is set, only an absolute Expiration follows it.
func TestDeadlinesWhenTheClockIsSet(t *testing.T) {
	date := time.Unix(2_000_000_000, 0)
	now := moment{date.Add(-time.Minute), time.Hour}
	relative, absolute := deadlineOf(60, now), deadlineOf(2_000_000_000, now)
	for _, tt := range []struct {
		name               string
		set, passed        time.Duration
		relative, absolute time.Duration // until they pass
	}{
		{"now", 0, 0, time.Minute, time.Minute},
		{"later", 0, 20 * time.Second, 40 * time.Second, 40 * time.Second},
		{"back", -time.Hour, 20 * time.Second, 40 * time.Second, time.Hour + 40*time.Second},
		{"ahead", 50 * time.Second, 20 * time.Second, 40 * time.Second, -10 * time.Second},
		{"never set, both past", 0, 2 * time.Minute, -time.Minute, -time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			then := moment{now.Add(tt.set + tt.passed), now.since + tt.passed}
			require.Equal(t, tt.relative, relative.until(then))
			require.Equal(t, tt.absolute, absolute.until(then))
			require.Equal(t, tt.relative <= 0, relative.passed(then))
			require.Equal(t, tt.absolute <= 0, absolute.passed(then))
			require.Equal(t, time.Hour+time.Minute, relative.due(then))
			require.False(t, never.passed(then))
		})
	}
}

// A deadline that is put off by the clock is looked at again when it is due then.
func TestAnEntryIsDueAgainWhenTheClockIsSetBack(t *testing.T) {
	var x expiries
	now := moment{time.Unix(2_000_000_000, 0).Add(-time.Minute), 0}
	e := &entry{deadline: deadlineOf(2_000_000_000, now)}
	x.update(e, now)
	back := moment{now.Time, 2 * time.Minute} // by 2 minutes
	require.Nil(t, x.expired(back, 10))
	require.Equal(t, 3*time.Minute, e.due)
	require.Same(t, e, x.expired(moment{now.Add(time.Minute), 3 * time.Minute}, 10))
}
