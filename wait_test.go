package throttler_test

import (
	"cmp"
	"context"
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

func TestWaitDoesNotForgetOffences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := growing(time.Minute, 0, 2)
		authorize(t, th, rule)
		require.Equal(t, time.Minute, authorize(t, th, rule).RetryAfter)
		time.Sleep(time.Minute)
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute, authorize(t, th, rule).RetryAfter)
	})
}

func TestWaitThatGivesUpIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		var seen []throttler.Status
		th.Observe = func(_ context.Context, r throttler.Rule, d throttler.Decision) {
			require.False(t, r.CountAuthorizedOnly, "the rule is the caller's")
			seen = append(seen, d.Status)
		}
		rule := either(condition("a", 1, time.Minute))
		done, cancel := context.WithCancel(t.Context())
		cancel()
		d, err := th.Wait(done, rule)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, throttler.Blocked, d.Status)

		_, err = th.Wait(t.Context(), rule)
		require.NoError(t, err)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		d, err = th.Wait(soon, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Zero(t, time.Since(start), "at once")
		require.Equal(t, []throttler.Status{throttler.Blocked, throttler.Authorized, throttler.Blocked}, seen)
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

// A limit of an hour opens after ten minutes and a second, in a way of its own.
func TestWaitNoticesThatALimitHasOpenedEarly(t *testing.T) {
	rule := either(window(1, time.Hour))
	for name, tt := range map[string]struct {
		open func(mine, other *throttler.Throttler, d throttler.Decision) error
		want time.Duration
	}{
		"its own Cancel": {
			func(mine, _ *throttler.Throttler, d throttler.Decision) error {
				return mine.Cancel(context.Background(), d)
			},
			10*time.Minute + time.Second,
		},
		"its own Reset": {
			func(mine, _ *throttler.Throttler, _ throttler.Decision) error {
				return mine.Reset(context.Background(), rule)
			},
			10*time.Minute + time.Second,
		},
		"another's Reset": {
			func(_, other *throttler.Throttler, _ throttler.Decision) error {
				return other.Reset(context.Background(), rule)
			},
			11 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				th := throttler.New(store)
				d, err := th.Wait(t.Context(), rule)
				require.NoError(t, err)
				start := time.Now()
				time.AfterFunc(10*time.Minute+time.Second, func() { assert.NoError(t, tt.open(th, throttler.New(store), d)) })
				_, err = th.Wait(t.Context(), rule)
				require.NoError(t, err)
				require.Equal(t, tt.want, time.Since(start))
			})
		})
	}
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
