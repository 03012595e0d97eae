package throttler_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What the limiters promise, for any rules and arrivals, through the API and in
// time that is held.

// check checks a property under synctest.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, property) })
}

// drawLimiter draws a condition that takes few hits. Its TTL is any number of
// nanoseconds, so that an interval of a bucket need not be a whole one.
func drawLimiter(t *rapid.T, algorithm throttler.Algorithm) throttler.Condition {
	return throttler.Condition{
		Name:      "limiter",
		Max:       rapid.IntRange(1, 12).Draw(t, "Max"),
		TTL:       time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(10*time.Minute)).Draw(t, "TTL")),
		Algorithm: algorithm,
	}
}

// pause sleeps for up to a part of ttl, or not at all.
func pause(t *rapid.T, ttl time.Duration, part int64) {
	if rapid.Bool().Draw(t, "pause?") {
		time.Sleep(time.Duration(rapid.Int64Range(0, int64(ttl)/part).Draw(t, "pause")))
	}
}

// arrival is a call that was authorized.
type arrival struct {
	at        time.Time
	decision  throttler.Decision
	cancelled bool
}

// arrivals makes calls at random times and takes back random ones of them, at
// any time after. It has counted called after each call that is authorized, with
// those so far, in the order of their times.
func arrivals(t *rapid.T, c throttler.Condition, counted func(sofar []arrival)) {
	th := throttler.New(memstore.New())
	rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
	var sofar []arrival
	for range rapid.IntRange(1, 80).Draw(t, "steps") {
		pause(t, c.TTL, int64(c.Max))
		if len(sofar) > 0 && rapid.IntRange(0, 2).Draw(t, "cancel?") == 0 {
			a := &sofar[rapid.IntRange(0, len(sofar)-1).Draw(t, "which")]
			require.NoError(t, th.Cancel(context.Background(), a.decision))
			a.cancelled = true
			continue
		}
		d, err := th.Authorize(context.Background(), rule)
		require.NoError(t, err)
		if d.Status == throttler.Authorized {
			sofar = append(sofar, arrival{at: time.Now(), decision: d})
			counted(sofar)
		}
	}
}

func TestWindowNeverHoldsMoreThanMaxThatAreNotTakenBack(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.SlidingWindow)
		arrivals(t, c, func(sofar []arrival) {
			inside := 0
			for _, a := range sofar {
				if !a.cancelled && time.Since(a.at) < c.TTL {
					inside++
				}
			}
			require.LessOrEqual(t, inside, c.Max)
		})
	})
}

func TestBucketKeepsItsRateOverAnyTimeForHitsThatAreNotTakenBack(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.LeakyBucket)
		arrivals(t, c, func(sofar []arrival) {
			n := 0
			for i := len(sofar) - 1; i >= 0; i-- {
				if sofar[i].cancelled {
					continue
				}
				n++
				// n <= Max + T*Max/TTL, without a division.
				over := time.Duration(n-c.Max) * c.TTL
				require.LessOrEqual(t, over, time.Since(sofar[i].at)*time.Duration(c.Max), "%d hits in %v", n, time.Since(sofar[i].at))
			}
		})
	})
}

// The other half: what is blocked would have broken the promise.
func TestBucketBlocksOnlyWhatWouldExceedItsRate(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.LeakyBucket)
		// A hit leaks in TTL units of 1/Max ns, and a call waits for whole nanoseconds.
		unit := time.Duration(c.Max)
		up := func(units time.Duration) time.Duration { return (max(0, units) + unit - 1) / unit }
		th := throttler.New(memstore.New())
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
		var full time.Duration // in units, as of last
		last := time.Now()
		for range rapid.IntRange(1, 80).Draw(t, "calls") {
			pause(t, c.TTL, int64(c.Max))
			full = max(0, full-time.Since(last)*unit)
			last = time.Now()
			d, err := th.Authorize(context.Background(), rule)
			require.NoError(t, err)
			fits := full+c.TTL <= c.TTL*unit
			require.Equal(t, fits, d.Status == throttler.Authorized)
			if fits {
				full += c.TTL
			}
			require.Equal(t, up(full), d.Outcomes[0].ResetAfter)
			require.Equal(t, int((c.TTL*unit-full)/c.TTL), d.Outcomes[0].Remaining)
			require.Equal(t, up(full+c.TTL-c.TTL*unit), d.Outcomes[0].RetryAfter)
		}
	})
}

func TestHitThatIsTakenBackAtOnceLeavesNoTrace(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, rapid.SampledFrom([]throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket}).Draw(t, "algorithm"))
		th := throttler.New(memstore.New())
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
		ctx := context.Background()
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			pause(t, c.TTL, int64(c.Max))
			before, err := th.Peek(ctx, rule)
			require.NoError(t, err)
			d, err := th.Authorize(ctx, rule)
			require.NoError(t, err)
			if rapid.Bool().Draw(t, "take back") {
				require.NoError(t, th.Cancel(ctx, d))
				after, err := th.Peek(ctx, rule)
				require.NoError(t, err)
				require.Equal(t, before, after)
			}
		}
	})
}

func TestEachBanIsSoManyTimesLongerThanTheLast(t *testing.T) {
	check(t, func(t *rapid.T) {
		rule := throttler.Rule{
			Identifier:    "test",
			Either:        []throttler.Condition{{Name: "limiter", Max: 1, TTL: time.Hour}},
			Lockout:       time.Duration(rapid.IntRange(1, 100_000).Draw(t, "Lockout")) * time.Millisecond,
			LockoutGrowth: rapid.Float64Range(1, 8).Draw(t, "growth"),
		}
		if rapid.Bool().Draw(t, "growth ends") {
			rule.MaxLockout = rule.Lockout + time.Duration(rapid.IntRange(0, 10_000_000).Draw(t, "MaxLockout"))*time.Millisecond
		}
		if rapid.Bool().Draw(t, "a bucket") {
			rule.Either[0].Algorithm = throttler.LeakyBucket
		}
		longest := rule.MaxLockout
		if longest == 0 {
			longest = 24 * time.Hour
		}
		longest = max(longest, rule.Lockout)
		th := throttler.New(memstore.New())
		call := func() throttler.Outcome {
			d, err := th.Authorize(context.Background(), rule)
			require.NoError(t, err)
			return d.Outcomes[0]
		}
		for n := range 12 {
			require.False(t, call().Blocked)
			o := call() // which is banned
			require.True(t, o.Banned)
			want := min(float64(longest), float64(rule.Lockout)*math.Pow(rule.LockoutGrowth, float64(n)))
			require.InDelta(t, want, float64(o.RetryAfter), float64(tick))
			time.Sleep(o.RetryAfter - time.Nanosecond)
			require.True(t, call().Banned)
			// Within a day all is remembered.
			time.Sleep(time.Duration(rapid.Int64Range(1, int64(throttler.LockoutMemory)-1).Draw(t, "pause")))
		}
	})
}

// drawMixed draws conditions of a rule in which values meet again.
func drawMixed(t *rapid.T, n int) []throttler.Condition {
	conditions := make([]throttler.Condition, n)
	for i := range conditions {
		conditions[i] = throttler.Condition{
			Name:      fmt.Sprint(i),
			Value:     fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "value")),
			Max:       i + 1,
			TTL:       time.Duration(4-i) * time.Second,
			Algorithm: throttler.Algorithm(i % 2),
		}
	}
	return conditions
}

func TestBlockedCallChangesNoOtherConditionWithCountAuthorizedOnly(t *testing.T) {
	check(t, func(t *rapid.T) {
		th := throttler.New(memstore.New())
		// What each condition would make of a call of its own.
		alone := func(c throttler.Condition) throttler.Outcome {
			d, err := th.Peek(context.Background(), throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}})
			require.NoError(t, err)
			return d.Outcomes[0]
		}
		n := rapid.IntRange(1, 4).Draw(t, "conditions")
		lockout := time.Duration(rapid.IntRange(0, 1).Draw(t, "lockout")) * time.Second
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			pause(t, time.Second, 1)
			rule := throttler.Rule{Identifier: "test", CountAuthorizedOnly: true, Lockout: lockout}
			conditions := drawMixed(t, n)
			if rapid.Bool().Draw(t, "either") {
				rule.Either = conditions
			} else {
				rule.All = conditions
			}
			var before []throttler.Outcome
			for _, c := range conditions {
				before = append(before, alone(c))
			}
			d, err := th.Authorize(context.Background(), rule)
			require.NoError(t, err)
			if d.Status == throttler.Authorized {
				continue
			}
			for i, c := range conditions {
				o := d.Outcomes[i]
				require.Equal(t, before[i].Blocked, o.Blocked)
				if !o.Blocked {
					require.Equal(t, before[i], alone(c))
					require.Equal(t, before[i].Remaining+1, o.Remaining)
					require.Zero(t, o.RetryAfter)
				}
			}
		}
	})
}
