package record

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCalendarCountsEachPeriodByItself(t *testing.T) {
	const day = 24 * time.Hour
	midnight := InstantOf(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
	limit := Limit{Algorithm: Calendar, Max: 3}
	var r Record
	empty := decide(midnight, &limit, Lockout{}, r, false)
	require.Equal(t, Outcome{Remaining: 3}, empty.Outcome)
	for i, s := range []struct {
		at    time.Duration // since midnight
		cost  int
		again time.Duration
		want  Outcome
	}{
		{at: 0, cost: 1, want: Outcome{Cost: 1, Remaining: 2, ResetAfter: day}},
		{at: time.Hour, cost: 3, again: 23 * time.Hour, want: Outcome{Blocked: true, Remaining: 2, RetryAfter: 23 * time.Hour, ResetAfter: 23 * time.Hour}},
		{at: time.Hour, cost: 2, again: 23 * time.Hour, want: Outcome{Cost: 2, RetryAfter: 23 * time.Hour, ResetAfter: 23 * time.Hour}},
		{at: day - 1, cost: 1, again: 1, want: Outcome{Blocked: true, RetryAfter: 1, ResetAfter: 1}},
		{at: day, cost: 2, again: day, want: Outcome{Cost: 2, Remaining: 1, ResetAfter: day}},                    // room for one, not for as many again
		{at: day - 1, cost: 1, again: day + 1, want: Outcome{Cost: 1, RetryAfter: day + 1, ResetAfter: day + 1}}, // a clock that is behind
		{at: 0, cost: 1, again: 2 * day, want: Outcome{Blocked: true, RetryAfter: 2 * day, ResetAfter: 2 * day}},
		{at: -1, cost: 1, want: Outcome{Cost: 1, Remaining: 2, ResetAfter: 1}}, // the one stored is not even the next
	} {
		limit.Cost = s.cost
		v := decide(midnight+Instant(s.at), &limit, Lockout{}, r, true)
		require.Equal(t, s.want, v.Outcome, "step %d", i)
		require.Equal(t, s.again, v.Again, "step %d", i)
		require.Equal(t, !s.want.Blocked, v.Store, "step %d", i)
		r = v.Next
	}
	require.Len(t, r.Encode(), 34, "one number, whatever Max is")
}

func TestCalendarTakesAnyMax(t *testing.T) {
	now := InstantOf(epoch)
	limit := Limit{Algorithm: Calendar, Max: math.MaxInt, Cost: math.MaxInt}
	v := decide(now, &limit, Lockout{}, Record{}, true)
	require.False(t, v.Outcome.Blocked)
	require.Zero(t, v.Outcome.Remaining)
	limit.Cost = 1
	v = decide(now, &limit, Lockout{}, v.Next, true)
	require.True(t, v.Outcome.Blocked)
	limit.Max = 2 // a rule that was changed
	v = decide(now, &limit, Lockout{}, v.Next, true)
	require.True(t, v.Outcome.Blocked)
	require.Zero(t, v.Outcome.Remaining)
}

// TestCalendarAdmitsMaxInEachPeriodByAnyClocks has callers whose clocks differ by up to a
// day call in any order. Each hit is counted in one period, and none takes more than Max.
func TestCalendarAdmitsMaxInEachPeriodByAnyClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Algorithm: Calendar, Max: rapid.IntRange(1, 5).Draw(t, "max"), Period: &Period{Location: zone(t, "Europe/Berlin")}}
		var clocks [3]time.Duration
		for i := range clocks {
			clocks[i] = time.Duration(rapid.Int64Range(0, int64(22*time.Hour)).Draw(t, "clock"))
		}
		now := InstantOf(time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)) // a day of 23 hours comes
		var r Record
		counted := make(map[Instant]int)
		var hits []Hit
		for range rapid.IntRange(1, 100).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(4*time.Hour)).Draw(t, "step")))
			local := now.Add(clocks[rapid.IntRange(0, 2).Draw(t, "caller")])
			if len(hits) > 0 && rapid.IntRange(0, 3).Draw(t, "cancel") == 0 {
				i := rapid.IntRange(0, len(hits)-1).Draw(t, "hit")
				if next, found := r.Without(hits[i], local); found {
					r = next
					counted[hits[i].Expiry] -= hits[i].Cost
				}
				hits = append(hits[:i], hits[i+1:]...)
				continue
			}
			limit.Cost = rapid.IntRange(1, limit.Max).Draw(t, "cost")
			limit.Least = rapid.IntRange(0, limit.Cost).Draw(t, "least")
			v := decide(local, &limit, Lockout{}, r, true)
			if v.Store {
				r = v.Next
			}
			if v.Hit.Cost == 0 {
				require.Greater(t, counted[r.calendar.end]+limit.Needed(), limit.Max, "refused only where there is no room")
				continue
			}
			require.Equal(t, v.Outcome.Cost, v.Hit.Cost)
			hits = append(hits, v.Hit)
			counted[v.Hit.Expiry] += v.Hit.Cost
			require.LessOrEqual(t, counted[v.Hit.Expiry], limit.Max)
			require.Equal(t, limit.Max-counted[v.Hit.Expiry], v.Outcome.Remaining)
		}
	})
}

// TestCalendarIsCountedTogetherWhateverBoundsItsCallersKnow has callers who disagree when a
// period begins call in any order: each stored period takes Max, and another one begins at its
// end.
func TestCalendarIsCountedTogetherWhateverBoundsItsCallersKnow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		periods := []Period{
			{}, {Location: zone(t, "Europe/Berlin")}, {Location: time.FixedZone("", -9*60*60)},
			{Unit: Week}, {Unit: Week, Anchor: 4}, {Unit: Month, Anchor: 15, Location: zone(t, "Asia/Tokyo")},
		}
		limit := Limit{Algorithm: Calendar, Max: rapid.IntRange(1, 5).Draw(t, "max")}
		now := InstantOf(time.Date(2026, 3, 20, 12, 0, 0, 0, time.UTC))
		var r Record
		var current calendar
		counted := 0
		for range rapid.IntRange(1, 100).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(12*time.Hour)).Draw(t, "step")))
			limit.Period = &periods[rapid.IntRange(0, len(periods)-1).Draw(t, "caller")]
			v := decide(now, &limit, Lockout{}, r, true)
			if v.Store {
				r = v.Next
			}
			if c := r.calendar; c.start != current.start || c.end != current.end {
				require.GreaterOrEqual(t, now, current.end, "a period that has not ended stays")
				current, counted = c, 0
			}
			counted += v.Hit.Cost
			require.LessOrEqual(t, counted, limit.Max)
			require.Equal(t, counted == limit.Max && v.Hit.Cost == 0, v.Outcome.Blocked)
		}
	})
}

// A receipt that was redeemed without zone data knows the bounds of one period.
func TestSettleByAProcessWithoutZoneDataKeepsTheNewPeriod(t *testing.T) {
	berlin := Period{Unit: Month, Location: zone(t, "Europe/Berlin")}
	limit := Limit{Algorithm: Calendar, Max: 10, Period: &berlin}
	at := func(month time.Month, day int) Instant {
		return InstantOf(time.Date(2026, month, day, 12, 0, 0, 0, time.UTC))
	}
	old := decide(at(3, 20), &limit, Lockout{}, Record{}, true)
	bounds := berlin.Around(at(3, 20))
	r := old.Next
	for range 7 {
		r = decide(at(4, 2), &limit, Lockout{}, r, true).Next
	}
	for _, actual := range []int{0, 3} {
		s := Settlement{
			Limit:  Limit{Algorithm: Calendar, Max: 10, Period: &Period{Unit: Month, Location: time.FixedZone("Europe/Berlin", 60*60)}},
			Bounds: &bounds, Hits: []Hit{old.Hit}, Total: 1, Actual: actual,
		}
		settled := r
		s.Apply(at(4, 2), &settled)
		require.EqualValues(t, 7+max(actual-1, 0), settled.calendar.count)
	}
}

// A calendar of which it is known what its Period comes to asks no time zone, in that period and
// in the next one.
func TestACalendarAsksNoTimeZoneIfTheNearPeriodsAreKnown(t *testing.T) {
	day := Instant(24 * time.Hour)
	noon := InstantOf(epoch)/day*day + day/2
	limit := Limit{Algorithm: Calendar, Max: 2, Near: (&Period{}).Near(noon)}
	limit.Period = &Period{Unit: Month} // a month would be another period
	for at, end := range map[Instant]Instant{noon: noon + day/2, noon + day: noon + 3*day/2} {
		require.Equal(t, end, decide(at, &limit, Lockout{}, Record{}, true).Next.calendar.end)
	}
	for _, at := range []Instant{noon - day, noon + 2*day} {
		c := decide(at, &limit, Lockout{}, Record{}, true).Next.calendar
		require.Greater(t, c.end-c.start, 27*day, "of another time")
	}
	s := &Settlement{Limit: limit, Actual: 1}
	var r Record
	require.True(t, s.Apply(noon, &r))
	require.Equal(t, noon+day/2, r.calendar.end)
}
