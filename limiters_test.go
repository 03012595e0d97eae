package throttler_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
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
		interval := (c.TTL-1)/time.Duration(c.Max) + 1
		th := throttler.New(memstore.New())
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
		var full time.Duration // ahead of time, as of last
		last := time.Now()
		for range rapid.IntRange(1, 80).Draw(t, "calls") {
			pause(t, c.TTL, int64(c.Max))
			full = max(0, full-time.Since(last))
			last = time.Now()
			d, err := th.Authorize(context.Background(), rule)
			require.NoError(t, err)
			fits := full+interval <= interval*time.Duration(c.Max)
			require.Equal(t, fits, d.Status == throttler.Authorized)
			if fits {
				full += interval
			}
			require.Equal(t, full, d.Outcomes[0].ResetAfter)
			require.Equal(t, int((interval*time.Duration(c.Max)-full)/interval), d.Outcomes[0].Remaining)
			require.Equal(t, max(0, full+interval-interval*time.Duration(c.Max)), d.Outcomes[0].RetryAfter)
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
			longest = throttler.DefaultMaxLockout
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
			require.InDelta(t, want, float64(o.RetryAfter), float64(throttler.Coarse))
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

// passed is a call of Wait that was authorized.
type passed struct {
	who int
	at  time.Duration
}

// gather returns who of n callers of Wait gets through when. It returns when all
// have. Those who get through at the same time are in the order of their numbers,
// as nobody could tell which of them was the first. next is called before the
// next one comes.
func gather(t require.TestingT, th *throttler.Throttler, rule throttler.Rule, n int, next func()) []passed {
	var mu sync.Mutex
	var through []passed
	var all sync.WaitGroup
	start := time.Now()
	for i := range n {
		all.Go(func() {
			d, err := th.Wait(context.Background(), rule)
			assert.NoError(t, err)
			assert.Equal(t, throttler.Authorized, d.Status)
			mu.Lock()
			defer mu.Unlock()
			through = append(through, passed{i, time.Since(start)})
		})
		next()
	}
	all.Wait()
	slices.SortFunc(through, func(a, b passed) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.who, b.who))
	})
	return through
}

// Each comes when the one before sleeps, stands in line or has got through.
func oneByOne() { synctest.Wait() }

func allAtOnce() {}

func TestWaitingCrowdGetsThroughAWindowInOrderAtTheFullRate(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.SlidingWindow)
		c.TTL = c.TTL.Truncate(throttler.Coarse) // so that nothing is rounded
		n := rapid.IntRange(1, 60).Draw(t, "crowd")
		through := gather(t, throttler.New(memstore.New()), throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}, n, oneByOne)
		for i, p := range through {
			require.Equal(t, passed{i, time.Duration(i/c.Max) * c.TTL}, p)
		}
		require.Len(t, through, n)
	})
}

func TestWaitingCrowdGetsThroughABucketInOrderAtTheFullRate(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.LeakyBucket)
		interval := (c.TTL-1)/time.Duration(c.Max) + 1
		n := rapid.IntRange(1, 60).Draw(t, "crowd")
		through := gather(t, throttler.New(memstore.New()), throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}, n, oneByOne)
		for i, p := range through {
			require.Equal(t, passed{i, time.Duration(max(0, i-c.Max+1)) * interval}, p)
		}
		require.Len(t, through, n)
	})
}

// Two processes have a line each, and no more in common than the records.
func TestWaitingCrowdsOfTwoProcessesGetThroughAtTheFullRate(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.SlidingWindow)
		c.TTL = c.TTL.Truncate(throttler.Coarse)
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
		store := memstore.New()
		sizes := [2]int{rapid.IntRange(1, 30).Draw(t, "crowd"), rapid.IntRange(1, 30).Draw(t, "other crowd")}
		start := time.Now()
		var crowds [2][]passed
		var both sync.WaitGroup
		for i := range crowds {
			both.Go(func() { crowds[i] = gather(t, throttler.New(store), rule, sizes[i], allAtOnce) })
		}
		both.Wait()
		require.Len(t, append(crowds[0], crowds[1]...), sizes[0]+sizes[1])
		require.Equal(t, time.Duration((sizes[0]+sizes[1]-1)/c.Max)*c.TTL, time.Since(start))
		at := make(map[time.Duration]int)
		for _, p := range append(crowds[0], crowds[1]...) {
			at[p.at]++
			require.LessOrEqual(t, at[p.at], c.Max)
			require.Zero(t, p.at%c.TTL)
		}
	})
}

func TestWaitGivesUpAtOnceIfTheDeadlineComesFirst(t *testing.T) {
	check(t, func(t *rapid.T) {
		c := drawLimiter(t, throttler.Algorithm(rapid.IntRange(0, 1).Draw(t, "algorithm")))
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}, Lockout: time.Hour}
		th := throttler.New(memstore.New())
		for range c.Max {
			_, err := th.Wait(context.Background(), rule)
			require.NoError(t, err)
		}
		before, err := th.Peek(context.Background(), throttler.Rule{Identifier: "test", Either: rule.Either})
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, before.Status)

		start := time.Now()
		patience := time.Duration(rapid.Int64Range(1, int64(before.RetryAfter)-1).Draw(t, "patience"))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		d, err := th.Wait(ctx, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, before.RetryAfter, d.RetryAfter)
		require.Zero(t, time.Since(start))
		// Nothing was counted, and nobody banned.
		after, err := th.Peek(context.Background(), throttler.Rule{Identifier: "test", Either: rule.Either})
		require.NoError(t, err)
		require.Equal(t, before, after)

		// A deadline that comes just not before is waited for.
		ctx, cancel = context.WithTimeout(context.Background(), before.RetryAfter+1)
		defer cancel()
		d, err = th.Wait(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, before.RetryAfter, time.Since(start))
	})
}

func TestWaitEndsWithItsContextAndLeavesTheLineToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{window(1, time.Minute)}}
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		start := time.Now()
		var all sync.WaitGroup
		wait := func(ctx context.Context, want error, until time.Duration) {
			all.Go(func() {
				_, err := th.Wait(ctx, rule)
				assert.ErrorIs(t, err, want)
				assert.Equal(t, until, time.Since(start))
			})
			synctest.Wait()
		}
		// The first in line and the third leave it.
		first, leave := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, leave)
		wait(first, context.Canceled, 10*time.Second)
		wait(t.Context(), nil, time.Minute)
		third, leave := context.WithCancel(t.Context())
		time.AfterFunc(70*time.Second, leave)
		wait(third, context.Canceled, 70*time.Second)
		wait(t.Context(), nil, 2*time.Minute)
		all.Wait()
	})
}

func TestWaitNoticesWithinAMinuteThatALimitHasOpenedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{window(1, time.Hour)}}
		d, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		start := time.Now()
		time.AfterFunc(10*time.Minute+time.Second, func() { assert.NoError(t, th.Cancel(context.Background(), d)) })
		_, err = th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.Equal(t, 11*time.Minute, time.Since(start))
	})
}

func TestWaitWaitsForABanOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := throttler.Rule{Identifier: "test", Either: []throttler.Condition{window(1, time.Second)}, Lockout: time.Hour}
		for range 2 {
			_, err := th.Authorize(t.Context(), rule)
			require.NoError(t, err)
		}
		start := time.Now()
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.Equal(t, time.Hour, time.Since(start))
	})
}
