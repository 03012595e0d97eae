package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A slow limiter takes its time for each call, and some more to flush.
type slow struct {
	took, flushing time.Duration
	calls, flushes atomic.Int64
	allow          func(call int64) (bool, error)
}

func (s *slow) limiter() limiter {
	return limiter{caller: func() allow {
		return func(context.Context, string) (bool, error) {
			time.Sleep(s.took)
			return s.allow(s.calls.Add(1))
		}
	}, flush: func() {
		s.flushes.Add(1)
		time.Sleep(s.flushing)
	}, close: func() {}}
}

func always(allowed bool) func(int64) (bool, error) {
	return func(int64) (bool, error) { return allowed, nil }
}

var anything = work{name: "any", values: one("a")}

// callersOf returns callers of l.
func callersOf(l *slow, w work, callers int) *crowd {
	return newCrowd(l.limiter(), system{}, w, callers)
}

func TestRoundCountsDecisionsAndTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &slow{took: 3 * time.Millisecond, flushing: 20 * time.Millisecond, allow: always(true)}
		r, err := callersOf(l, anything, 4).run(t.Context(), 10*time.Millisecond)
		require.NoError(t, err)
		// Each caller ends a call at 3, 6, 9 and 12 ms.
		require.Equal(t, 4*4, r.decisions)
		require.Equal(t, 3*time.Millisecond, r.p99)
		require.Equal(t, 12*time.Millisecond, r.answered)
		require.Equal(t, 32*time.Millisecond, r.wall, "what is left to do is part of it")
		require.Equal(t, 2*time.Millisecond, r.each())
		require.Equal(t, int64(1), l.flushes.Load())
	})
}

func TestWrongAnswerEndsTheMeasurement(t *testing.T) {
	for _, w := range []work{anything, {name: "none", refused: true, values: one("a")}} {
		synctest.Test(t, func(t *testing.T) {
			l := &slow{took: time.Millisecond, allow: func(call int64) (bool, error) { return (call == 7) == w.refused, nil }}
			begin := time.Now()
			_, err := callersOf(l, w, 2).run(t.Context(), time.Hour)
			require.ErrorContains(t, err, "allowed is")
			require.Less(t, time.Since(begin), time.Second, "the other callers stop, too")
		})
	}
}

func TestErrorEndsTheMeasurement(t *testing.T) {
	broken := errors.New("broken")
	l := &slow{allow: func(int64) (bool, error) { return false, broken }}
	_, err := callersOf(l, anything, 1).run(t.Context(), time.Hour)
	require.ErrorIs(t, err, broken)
}

func TestInterruptedRoundIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err := callersOf(&slow{took: time.Millisecond, allow: always(true)}, anything, 1).run(ctx, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestUseNoticesALimiterThatAllowsAnotherNumber(t *testing.T) {
	limiting := func(n int64) *slow {
		return &slow{allow: func(call int64) (bool, error) { return call <= n, nil }}
	}
	require.NoError(t, use(limiting(5).limiter(), "a", 5))
	require.ErrorContains(t, use(limiting(4).limiter(), "a", 5), "call 5")
	require.ErrorContains(t, use(limiting(6).limiter(), "a", 5), "call 6")
	l := limiting(5)
	require.NoError(t, use(l.limiter(), "a", 5))
	require.Equal(t, int64(6), l.flushes.Load(), "each call is counted before the next")
}

func TestQuantileIsTheLeastValueThatSoManyAreNotAbove(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		sorted  []int
		p, want int
	}{
		{nil, 99, 0},
		{[]int{7}, 0, 7},
		{[]int{7}, 99, 7},
		{[]int{1, 2}, 50, 1},
		{[]int{1, 2, 3}, 50, 2},
		{[]int{1, 2, 3}, 99, 3},
		{hundred, 0, 1},
		{hundred, 1, 1},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		require.Equal(t, c.want, quantile(c.sorted, c.p, 100), "%d %% of %v", c.p, c.sorted)
	}
}

func TestQuartilesLeaveTheirValuesInOrder(t *testing.T) {
	values := []int{9, 1, 5, 3, 7}
	low, median, high := quartiles(values, func(n int) int { return n })
	require.Equal(t, [3]int{3, 5, 7}, [3]int{low, median, high})
	require.Equal(t, []int{9, 1, 5, 3, 7}, values)
}

// contexts returns the ctx of two calls of a caller.
func contexts(t *testing.T, s system) (first, second context.Context) {
	var all []context.Context
	l := simple(func(ctx context.Context, _ string) (bool, error) {
		require.NoError(t, ctx.Err())
		all = append(all, ctx)
		return true, nil
	}, func() {})
	one := newCrowd(l, s, anything, 1).callers[0]
	require.True(t, one.call(false, time.Now()))
	require.True(t, one.call(false, time.Now()))
	return all[0], all[1]
}

func TestEachCallOverANetworkHasACtxOfItsOwnThatEnds(t *testing.T) {
	first, second := contexts(t, system{backend: onRedis})
	require.NotSame(t, first, second)
	require.ErrorIs(t, first.Err(), context.Canceled)
	for _, s := range []system{{backend: inProcess}, system{backend: onRedis}.inBackground()} {
		first, second = contexts(t, s)
		require.Equal(t, context.Background(), first)
		require.Equal(t, context.Background(), second)
	}
}

func TestACallAfterTheDeadlineIsLateAndNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		l := simple(func(ctx context.Context, _ string) (bool, error) {
			if calls++; calls%2 == 0 {
				<-ctx.Done()
				return false, ctx.Err()
			}
			time.Sleep(time.Millisecond)
			return true, nil
		}, func() {})
		r, err := newCrowd(l, system{deadline: 9 * time.Millisecond}, anything, 1).run(t.Context(), 20*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, 4, r.decisions)
		require.Equal(t, 2, r.late)
	})
}
