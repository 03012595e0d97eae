package record

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestARecordThatAClockAheadHasWrittenIsTold(t *testing.T) {
	day := Period{Unit: Day, Location: time.UTC}
	for name, limit := range map[string]Limit{
		"window":           {Algorithm: Window, Max: 3, TTL: time.Minute},
		"window in cells":  {Algorithm: Window, Max: 2000, TTL: time.Minute, Cost: 1000},
		"bucket":           {Algorithm: Bucket, Max: 3, TTL: time.Minute},
		"calendar":         {Algorithm: Calendar, Max: 3, Period: &day},
		"taken beforehand": {Algorithm: Window, Max: 30, TTL: time.Minute, Cost: 20, Least: 1, Ahead: time.Second},
	} {
		count := func(r *Record, at Instant, l Lockout) {
			t.Helper()
			var v Verdict
			v.Decide(at, &limit, l, r, true)
		}
		var r Record
		require.False(t, r.IsAhead(start, &limit), name)
		count(&r, start, Lockout{})
		require.False(t, r.IsAhead(start, &limit), name)
		require.False(t, r.IsAhead(start-Instant(999*time.Millisecond), &limit), "%s: the call is old", name)
		require.True(t, r.IsAhead(start-Instant(3*time.Second), &limit), name)
		shorter := limit
		shorter.TTL /= 2
		require.False(t, r.IsAhead(start, &shorter), "%s: only counted under a longer TTL", name)
		count(&r, start-Instant(3*time.Second), Lockout{})
		if limit.Algorithm == Window {
			require.False(t, r.IsAhead(start-Instant(3*time.Second), &limit), "%s: put right", name)
		}
	}
	limit := Limit{Algorithm: Window, Max: 1, TTL: time.Minute}
	var r Record
	for range 2 {
		var v Verdict
		v.Decide(start, &limit, Lockout{Length: time.Hour}, &r, true)
	}
	require.True(t, r.HoldsBan(start))
	require.False(t, r.IsAhead(start, &limit))
	require.True(t, r.IsAhead(start-Instant(3*time.Second), &limit))
}
