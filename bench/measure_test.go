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

func (s *slow) caller() func(string) (bool, error) {
	return func(string) (bool, error) {
		time.Sleep(s.took)
		return s.allow(s.calls.Add(1))
	}
}

func (s *slow) flush() {
	s.flushes.Add(1)
	time.Sleep(s.flushing)
}

func (s *slow) close() {}

func always(allowed bool) func(int64) (bool, error) {
	return func(int64) (bool, error) { return allowed, nil }
}

var anything = work{name: "any", allowed: true, values: one("a")}

func TestRoundCountsDecisionsAndTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &slow{took: 3 * time.Millisecond, flushing: 20 * time.Millisecond, allow: always(true)}
		r, err := newCrowd(l, anything, 4).run(t.Context(), 10*time.Millisecond)
		require.NoError(t, err)
		// Each caller ends a call at 3, 6, 9 and 12 ms.
		require.Equal(t, 4*4, r.decisions)
		require.Equal(t, 3*time.Millisecond, r.p99)
		require.Equal(t, 32*time.Millisecond, r.wall, "what is left to do is part of it")
		require.Equal(t, 2*time.Millisecond, r.each())
		require.Equal(t, int64(1), l.flushes.Load())
	})
}

func TestWrongAnswerEndsTheMeasurement(t *testing.T) {
	for _, w := range []work{anything, {name: "none", allowed: false, values: one("a")}} {
		synctest.Test(t, func(t *testing.T) {
			l := &slow{took: time.Millisecond, allow: func(call int64) (bool, error) { return (call == 7) != w.allowed, nil }}
			begin := time.Now()
			_, err := newCrowd(l, w, 2).run(t.Context(), time.Hour)
			require.ErrorContains(t, err, "allowed is")
			require.Less(t, time.Since(begin), time.Second, "the other callers stop, too")
		})
	}
}

func TestErrorEndsTheMeasurement(t *testing.T) {
	broken := errors.New("broken")
	l := &slow{allow: func(int64) (bool, error) { return false, broken }}
	_, err := newCrowd(l, anything, 1).run(t.Context(), time.Hour)
	require.ErrorIs(t, err, broken)
}

func TestInterruptedRoundIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err := newCrowd(&slow{took: time.Millisecond, allow: always(true)}, anything, 1).run(ctx, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestUseNoticesALimiterThatAllowsAnotherNumber(t *testing.T) {
	limiting := func(n int64) *slow {
		return &slow{allow: func(call int64) (bool, error) { return call <= n, nil }}
	}
	require.NoError(t, use(limiting(5), "a", 5))
	require.ErrorContains(t, use(limiting(4), "a", 5), "call 5")
	require.ErrorContains(t, use(limiting(6), "a", 5), "call 6")
	l := limiting(5)
	require.NoError(t, use(l, "a", 5))
	require.Equal(t, int64(6), l.flushes.Load(), "each call is counted before the next")
}

func TestPercentileIsTheLeastValueThatSoManyAreNotAbove(t *testing.T) {
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
		require.Equal(t, c.want, percentile(c.sorted, c.p), "%d %% of %v", c.p, c.sorted)
	}
}

func TestQuartilesLeaveTheirValuesInOrder(t *testing.T) {
	values := []int{9, 1, 5, 3, 7}
	low, median, high := quartiles(values)
	require.Equal(t, [3]int{3, 5, 7}, [3]int{low, median, high})
	require.Equal(t, []int{9, 1, 5, 3, 7}, values)
}
