package waitqueue_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/waitqueue"
	"github.com/stretchr/testify/require"
)

// window wants cost of a window of max in a minute.
func window(key string, max, cost int) waitqueue.Want {
	return waitqueue.Want{Key: key, Name: key, Cost: cost, Needed: cost, Max: max, Interval: time.Minute / time.Duration(max), TTL: time.Minute}
}

func full(after time.Duration) waitqueue.Seen {
	return waitqueue.Seen{Blocked: true, RetryAfter: after}
}

// arrive returns a waiter that has tried and found what was seen.
func arrive(t *testing.T, q *waitqueue.Queue, seen waitqueue.Seen, wants ...waitqueue.Want) *waitqueue.Waiter {
	t.Helper()
	w := q.Arrive(wants, false, false)
	all := make([]waitqueue.Seen, len(wants))
	for i := range all {
		all[i] = seen
	}
	require.False(t, q.Report(w, false, all))
	return w
}

func nap(t *testing.T, q *waitqueue.Queue, w *waitqueue.Waiter) time.Duration {
	t.Helper()
	d, err := q.Next(context.Background(), w)
	require.NoError(t, err)
	return d
}

func called(w *waitqueue.Waiter) bool {
	select {
	case <-w.Signals():
		return true
	default:
		return false
	}
}

func TestTheFirstSleepsUntilTheRecordOpensAndTheOthersUntilTheyAreCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := arrive(t, &q, full(10*time.Second), window("a", 1, 1))
		second := arrive(t, &q, full(10*time.Second), window("a", 1, 1))
		require.Equal(t, 10*time.Second, nap(t, &q, first))
		require.Negative(t, nap(t, &q, second))
		time.Sleep(10 * time.Second)
		require.Zero(t, nap(t, &q, first), "its turn")
		require.Negative(t, nap(t, &q, second))
		require.True(t, q.Report(first, true, []waitqueue.Seen{{RetryAfter: time.Minute}}))
		require.True(t, called(second))
		require.Equal(t, time.Minute, nap(t, &q, second))
	})
}

func TestANewcomerStandsBehindThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := arrive(t, &q, full(time.Second), window("a", 5, 3))
		require.Equal(t, time.Second, nap(t, &q, first))
		newcomer := q.Arrive([]waitqueue.Want{window("a", 5, 1)}, false, false)
		require.Negative(t, nap(t, &q, newcomer), "though a smaller call might fit")
		elsewhere := q.Arrive([]waitqueue.Want{window("b", 5, 1)}, false, false)
		require.Zero(t, nap(t, &q, elsewhere))
	})
}

func TestAWaiterThatGivesUpMakesWayAndLeavesNoLineBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := arrive(t, &q, full(time.Second), window("a", 1, 1), window("b", 1, 1))
		nap(t, &q, first)
		second := arrive(t, &q, full(time.Second), window("a", 1, 1))
		require.Negative(t, nap(t, &q, second))
		require.Equal(t, 2, q.Len())
		q.Leave(first)
		require.True(t, called(second))
		require.Equal(t, time.Second, nap(t, &q, second))
		require.Equal(t, 1, q.Len())
		q.Leave(second)
		q.Leave(second)
		require.Zero(t, q.Len())
	})
}

func TestAWakeLetsTheFirstTryAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := arrive(t, &q, full(time.Hour), window("a", 1, 1))
		second := arrive(t, &q, full(time.Hour), window("a", 1, 1))
		require.Equal(t, time.Minute, nap(t, &q, first), "another process may open it earlier")
		require.Negative(t, nap(t, &q, second))
		q.Wake("b")
		require.False(t, called(first))
		q.Wake("a")
		require.True(t, called(first))
		require.False(t, called(second))
		require.Zero(t, nap(t, &q, first))
	})
}

// What a try has found is older than a wake that came meanwhile.
func TestAWakeDuringATryIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		w := arrive(t, &q, full(time.Second), window("a", 1, 1))
		nap(t, &q, w)
		time.Sleep(time.Second)
		require.Zero(t, nap(t, &q, w))
		q.Wake("a")
		require.False(t, q.Report(w, false, []waitqueue.Seen{full(time.Hour)}))
		require.Zero(t, nap(t, &q, w), "it tries again")
	})
}

// There may be no line to wake before the first one has been tried.
func TestAWakeDuringTheFirstTryIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		w := q.Arrive([]waitqueue.Want{window("a", 1, 1)}, false, false)
		require.Zero(t, nap(t, &q, w))
		q.Wake("a")
		require.False(t, q.Report(w, false, []waitqueue.Seen{full(time.Hour)}))
		require.Zero(t, nap(t, &q, w), "it tries again")
		require.False(t, q.Report(w, false, []waitqueue.Seen{full(time.Second)}))
		require.Equal(t, time.Second, nap(t, &q, w))
	})
}

func TestOneOpenRecordIsEnoughForOneOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		w := q.Arrive([]waitqueue.Want{window("a", 1, 1), window("b", 1, 1)}, true, false)
		require.Zero(t, nap(t, &q, w))
		require.False(t, q.Report(w, false, []waitqueue.Seen{full(time.Minute), full(3 * time.Second)}))
		require.Equal(t, 3*time.Second, nap(t, &q, w))
	})
}

func TestADeadlineBeforeTheTurnIsAnErrorAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := arrive(t, &q, full(10*time.Second), window("a", 1, 1))
		nap(t, &q, first)
		second := arrive(t, &q, full(10*time.Second), window("a", 1, 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // its turn is a TTL after the first's
		defer cancel()
		_, err := q.Next(ctx, second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		closed, retry := q.Outlook(second)
		require.Equal(t, []time.Duration{70 * time.Second}, closed)
		require.Equal(t, 70*time.Second, retry)
	})
}

func TestTheHitsThatManyCallsNeedMayBeMoreThanAnInt(t *testing.T) {
	for leaks, opens := range map[bool]time.Duration{false: 70 * time.Hour, true: math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			var q waitqueue.Queue
			want := waitqueue.Want{Key: "a", Name: "a", Needed: math.MaxInt, Cost: math.MaxInt, Max: math.MaxInt, TTL: 23 * time.Hour,
				Leaks: leaks, Interval: 1}
			var last *waitqueue.Waiter
			for range 3 {
				last = arrive(t, &q, full(24*time.Hour), want)
				nap(t, &q, last)
			}
			_, retry := q.Outlook(last)
			require.Equal(t, opens, retry)
		})
	}
}

// A call that was blocked, and told to come back at once, would otherwise never sleep.
func TestARefusalWithoutATimeIsSleptOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		w := arrive(t, &q, full(0), window("a", 1, 1))
		require.Equal(t, time.Millisecond, nap(t, &q, w))
	})
}

func TestWhoLeavesTakesItsHitsOutOfTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := arrive(t, &q, full(10*time.Second), window("a", 2, 2))
		nap(t, &q, first)
		second := arrive(t, &q, full(10*time.Second), window("a", 2, 2))
		nap(t, &q, second)
		q.Leave(second)
		newcomer := q.Arrive([]waitqueue.Want{window("a", 2, 2)}, false, false)
		closed, _ := q.Outlook(newcomer)
		require.Equal(t, []time.Duration{70 * time.Second}, closed, "a TTL after the first")
	})
}

func TestTheFirstRecordThatOpensDecidesWhetherADeadlineIsTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		w := q.Arrive([]waitqueue.Want{window("a", 1, 1), window("b", 1, 1)}, true, false)
		require.Zero(t, nap(t, &q, w))
		require.False(t, q.Report(w, false, []waitqueue.Seen{full(time.Minute), full(3 * time.Second)}))
		for deadline, early := range map[time.Duration]bool{2 * time.Second: true, 10 * time.Second: false} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			_, err := q.Next(ctx, w)
			require.Equal(t, early, err != nil, "%v: %v", deadline, err)
			cancel()
		}
	})
}

// The opening of a line is when a larger call behind it fits. A smaller one asks at its turn.
func TestTheOpeningOfALargerCallHoldsUpNoSmallerOneBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		small := q.Arrive([]waitqueue.Want{window("a", 5, 1), window("b", 5, 1)}, false, false)
		require.Zero(t, nap(t, &q, small))
		require.False(t, q.Report(small, false, []waitqueue.Seen{{Remaining: 2}, full(10 * time.Second)}))
		require.Equal(t, 10*time.Second, nap(t, &q, small))
		large := arrive(t, &q, full(50*time.Second), window("a", 5, 3))
		require.Equal(t, 50*time.Second, nap(t, &q, large))
		time.Sleep(10 * time.Second)
		require.Zero(t, nap(t, &q, small))
	})
}

func TestATryThatFindsRoomTellsTheFirstInTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		elsewhere := q.Arrive([]waitqueue.Want{window("a", 5, 1), window("b", 5, 1)}, false, false)
		require.False(t, q.Report(elsewhere, false, []waitqueue.Seen{{Remaining: 3}, full(5 * time.Second)}))
		require.Equal(t, 5*time.Second, nap(t, &q, elsewhere))
		first := arrive(t, &q, full(50*time.Second), window("a", 5, 1))
		nap(t, &q, first)
		called(first)
		require.False(t, q.Report(elsewhere, false, []waitqueue.Seen{{Remaining: 3}, full(5 * time.Second)}))
		require.True(t, called(first))
		require.Zero(t, nap(t, &q, first))
	})
}

// What does not fit behind the hits of others says nothing of when theirs do.
func TestATryBehindOthersDoesNotSayWhenTheFirstMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		first := q.Arrive([]waitqueue.Want{window("a", 5, 1)}, false, false)
		require.Zero(t, nap(t, &q, first))
		behind := q.Arrive([]waitqueue.Want{window("a", 5, 3), window("b", 5, 1)}, false, false)
		require.Zero(t, nap(t, &q, behind))
		require.False(t, q.Report(behind, false, []waitqueue.Seen{{Remaining: 5}, full(5 * time.Second)}))
		require.Equal(t, 5*time.Second, nap(t, &q, behind))
		time.Sleep(5 * time.Second)
		require.Zero(t, nap(t, &q, behind))
		require.False(t, q.Report(first, false, []waitqueue.Seen{full(10 * time.Second)}))
		require.Equal(t, 10*time.Second, nap(t, &q, first))
		require.False(t, q.Report(behind, false, []waitqueue.Seen{full(50 * time.Second), full(time.Second)}))
		require.Equal(t, 10*time.Second, nap(t, &q, first))
	})
}

func TestInAnOutageOneRecordThatIsNotKnownToBeFullIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		arrive(t, &q, full(5*time.Second), window("b", 6, 1))
		failed := []waitqueue.Seen{{Failed: true}, {Failed: true}}
		oneOf := q.Arrive([]waitqueue.Want{window("a", 6, 1), window("b", 6, 1)}, true, false)
		require.True(t, q.Report(oneOf, true, failed))
		all := q.Arrive([]waitqueue.Want{window("a", 6, 1), window("b", 6, 1)}, false, false)
		require.False(t, q.Report(all, true, failed))
	})
}

func TestARecordThatMayOpenSoonerIsLookedAtSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		sooner := window("a", 1, 1)
		sooner.Sooner = true
		w := arrive(t, &q, full(time.Hour), sooner)
		require.Equal(t, time.Second, nap(t, &q, w))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := q.Next(ctx, w)
		require.NoError(t, err, "the deadline may be late enough")
	})
}

func TestAWaitOfCenturiesIsAfterAnyDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		want := window("a", 1, 1)
		want.TTL = 200 * 365 * 24 * time.Hour
		for range 2 {
			nap(t, &q, arrive(t, &q, full(time.Second), want))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := q.Next(ctx, arrive(t, &q, full(time.Second), want))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestALineIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		for range waitqueue.MaxWaiting {
			nap(t, &q, arrive(t, &q, full(time.Second), window("a", 1, 1)))
		}
		late := q.Arrive([]waitqueue.Want{window("a", 1, 1)}, false, false)
		_, err := q.Next(t.Context(), late)
		require.ErrorIs(t, err, waitqueue.ErrFull)
		require.ErrorContains(t, err, `10000 calls already wait for "a"`)
	})
}

// While nothing is known of a record, it takes a hit every TTL/Max, and the first one no
// earlier than it was said to open last.
func TestAnOutageKeepsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q waitqueue.Queue
		w := arrive(t, &q, full(5*time.Second), window("a", 6, 1))
		nap(t, &q, w)
		failed := []waitqueue.Seen{{Failed: true, Remaining: 6}}
		require.False(t, q.Report(w, true, failed), "it may not be open yet")
		time.Sleep(5 * time.Second)
		require.True(t, q.Report(w, true, failed))
		next := q.Arrive([]waitqueue.Want{window("a", 6, 1)}, false, false)
		require.False(t, q.Report(next, true, failed))
		require.Equal(t, 10*time.Second, nap(t, &q, next), "a sixth of a minute")
		time.Sleep(10 * time.Second)
		require.True(t, q.Report(next, true, failed))
	})
}
