package throttler_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func calendar(max int, p throttler.Period) throttler.Condition {
	return throttler.Condition{Name: "c", Value: "v", Max: max, Algorithm: throttler.Calendar, Period: p}
}

// berlin is a month from the 15th, in Berlin.
func berlin(t testing.TB) throttler.Period {
	l, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	return throttler.Period{Unit: throttler.Month, Anchor: 15, Location: l}
}

// sleepTo sleeps in a bubble until a time of the wall clock.
func sleepTo(at time.Time) { time.Sleep(time.Until(at)) }

// TestExactlyMaxIsCountedInEachDayBySeveralProcesses has throttlers whose records are in one
// store call without a pause around midnight, over each kind of client.
func TestExactlyMaxIsCountedInEachDayBySeveralProcesses(t *testing.T) {
	for name, client := range kindsOfClient {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const most, days = 30, 3
				store := client()
				start := time.Now().Truncate(24 * time.Hour)
				var mu sync.Mutex
				counted := make(map[time.Time]int)
				var wg sync.WaitGroup
				for day := range days {
					for range 4 {
						th := throttler.New(store)
						for range 4 {
							wg.Go(func() {
								midnight := start.AddDate(0, 0, day+1)
								sleepTo(midnight.Add(-time.Second))
								for time.Since(midnight) < time.Second {
									d, err := th.Authorize(t.Context(), either(calendar(most, throttler.Period{})))
									assert.NoError(t, err)
									assert.NoError(t, d.Err)
									if d.Status == throttler.Authorized {
										end := time.Now().Add(d.Outcomes[0].ResetAfter)
										mu.Lock()
										counted[end.Round(time.Hour)]++
										mu.Unlock()
									}
									time.Sleep(rand.N(50 * time.Millisecond))
								}
							})
						}
					}
				}
				wg.Wait()
				require.Len(t, counted, days+1)
				for end, n := range counted {
					require.Equal(t, most, n, end)
				}
			})
		})
	}
}

func TestWaitIsServedWhenTheNextPeriodBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(calendar(2, throttler.Period{}))
		midnight := time.Now().Truncate(24*time.Hour).AddDate(0, 0, 1)
		var wg sync.WaitGroup
		served := make([]time.Time, 6)
		for i := range served {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				_, err := th.Wait(t.Context(), rule)
				assert.NoError(t, err)
				served[i] = time.Now()
			})
		}
		wg.Wait()
		for i, at := range served[2:] {
			require.Equal(t, midnight.AddDate(0, 0, i/2), at, "the %dth", i)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 23*time.Hour)
		defer cancel()
		d, err := th.Wait(ctx, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 24*time.Hour, d.RetryAfter)
	})
}

func TestCalendarIsBannedAndShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		th := throttler.New(store)
		rule := either(calendar(2, throttler.Period{}))
		authorize(t, th, rule)
		item, err := store.Get(throttler.RecordKey("test", "c", "v"))
		require.NoError(t, err)
		seen, err := throttler.Inspect(item.Value)
		require.NoError(t, err)
		day := time.Now().Truncate(24 * time.Hour)
		require.Equal(t, 1, seen.Counted)
		require.True(t, seen.PeriodStart.Equal(day))
		require.True(t, seen.PeriodEnd.Equal(day.AddDate(0, 0, 1)))

		rule.Lockout = time.Minute
		authorize(t, th, rule)
		require.True(t, authorize(t, th, rule).Outcomes[0].NewBan)
		time.Sleep(time.Minute)
		require.Equal(t, []int{1}, remaining(authorize(t, th, rule)), "counting starts anew")
	})
}

func TestCalendarsThatDifferConflict(t *testing.T) {
	th, told := toldOf()
	authorize(t, th, either(calendar(3, berlin(t))))
	authorize(t, th, either(calendar(3, berlin(t)))) // another *Location of the same zone
	require.Empty(t, *told)
	authorize(t, th, either(calendar(3, throttler.Period{})))
	require.Equal(t, []string{`test: throttler: condition "c" of "test" has two limits for one record, ` +
		`a calendar of 3 in a month from day 15, Europe/Berlin and a calendar of 3 in a day, UTC: use one, or another Identifier`}, *told)
}

func TestCalendarsAreValidated(t *testing.T) {
	valid := []throttler.Condition{
		calendar(1, throttler.Period{}), calendar(math.MaxInt, throttler.Period{Anchor: 1}),
		calendar(1, throttler.Period{Unit: throttler.Week, Anchor: 7}), calendar(1, throttler.Period{Unit: throttler.Month, Anchor: 31}),
	}
	for _, c := range valid {
		require.NoError(t, either(c).Validate())
	}
	with := func(change func(*throttler.Condition)) throttler.Condition {
		c := calendar(1, throttler.Period{})
		change(&c)
		return c
	}
	for want, c := range map[string]throttler.Condition{
		"Either[0].TTL is 1h0m0s, want 0 for a calendar, which has a Period": with(func(c *throttler.Condition) { c.TTL = time.Hour }),
		"Either[0].TTL is -1ns, want 0 for a calendar, which has a Period":   with(func(c *throttler.Condition) { c.TTL = -1 }),
		"Either[0].Period.Unit is 3, want Day, Week or Month":                with(func(c *throttler.Condition) { c.Period.Unit = 3 }),
		"Either[0].Period.Anchor is 2, want 0 to 1 in a day":                 with(func(c *throttler.Condition) { c.Period.Anchor = 2 }),
		"Either[0].Period.Anchor is 8, want 0 to 7 in a week":                with(func(c *throttler.Condition) { c.Period = throttler.Period{Unit: throttler.Week, Anchor: 8} }),
		"Either[0].Period.Anchor is -1, want 0 to 31 in a month":             with(func(c *throttler.Condition) { c.Period = throttler.Period{Unit: throttler.Month, Anchor: -1} }),
		fmt.Sprintf("Either[0].Max is 0, want 1 to %d", math.MaxInt):         with(func(c *throttler.Condition) { c.Max = 0 }),
		"Either[0].Period is a week from day 1, UTC, want none, or Algorithm: Calendar": with(func(c *throttler.Condition) {
			c.Algorithm, c.TTL, c.Period.Unit = throttler.SlidingWindow, time.Hour, throttler.Week
		}),
	} {
		err := either(c).Validate()
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		require.EqualError(t, err, `throttler: invalid rule "test": condition "c": `+want)
	}
}

// A month's budget of money, counted in millionths of a dollar.
func ExampleCondition_calendar() {
	th := throttler.New(memstore.New())
	zone, _ := time.LoadLocation("Europe/Berlin")
	rule := throttler.Rule{
		Identifier: "budget",
		Either: []throttler.Condition{{
			Name: "customer", Value: "c-42", Max: 99_000_000, Cost: 40_000_000,
			Algorithm: throttler.Calendar,
			Period:    throttler.Period{Unit: throttler.Month, Anchor: 15, Location: zone},
		}},
	}
	for range 3 {
		d, _ := th.Authorize(context.Background(), rule)
		fmt.Println(d.Status, d.Outcomes[0].Remaining)
	}
	// Output:
	// authorized 59000000
	// authorized 19000000
	// blocked 19000000
}
