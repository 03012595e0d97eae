package throttler_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/require"
)

// A journey is a throttler far from its backend.
type journey struct {
	*testing.T
	throttler *throttler.Throttler
	client    *distantClient
	ctx       context.Context
}

// travel runs test in a bubble, with a ctx that is never done and with one that
// could be.
func travel(t *testing.T, test func(*journey)) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"background": func(*testing.T) context.Context { return context.Background() },
		"cancelable": (*testing.T).Context,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newDistant()
				test(&journey{t, throttler.New(client), client, ctx(t)})
			})
		})
	}
}

// requires requires that call takes so many round trips, and operations in them.
func (j *journey) requires(trips, ops int, call func()) {
	j.Helper()
	before, begin := j.client.ops.Load(), time.Now()
	call()
	require.Equal(j, time.Duration(trips)*roundTrip, time.Since(begin), "%d round trips", trips)
	require.EqualValues(j, ops, j.client.ops.Load()-before, "operations")
}

// call returns a call of rule that must come to status.
func (j *journey) call(rule throttler.Rule, status throttler.Status) func() {
	return func() {
		d, err := j.throttler.Authorize(j.ctx, rule)
		require.NoError(j, err)
		require.NoError(j, d.Err)
		require.Equal(j, status, d.Status)
	}
}

func conditions(n, max int, ttl time.Duration) []throttler.Condition {
	var cs []throttler.Condition
	for i := range n {
		cs = append(cs, limit(fmt.Sprint(i), max, ttl))
	}
	return cs
}

func TestRoundTripsOfOneCondition(t *testing.T) {
	travel(t, func(j *journey) {
		rule := throttler.Rule{Identifier: "r", Either: conditions(1, 2, time.Minute)}
		j.requires(2, 2, j.call(rule, throttler.Authorized)) // Get, Add
		j.requires(2, 2, j.call(rule, throttler.Authorized)) // Get, CompareAndSwap
		j.requires(1, 1, j.call(rule, throttler.Blocked))
	})
}

func TestRoundTripsOf8Conditions(t *testing.T) {
	travel(t, func(j *journey) {
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 2, time.Minute)}
		j.requires(2, 1+8, j.call(rule, throttler.Authorized))
		j.requires(2, 1+8, j.call(rule, throttler.Authorized))
		j.requires(1, 1, j.call(rule, throttler.Blocked))
		rule.Either, rule.All = nil, rule.Either
		j.requires(1, 1, j.call(rule, throttler.Blocked))
	})
}

// One is full: the others count the call, unless they are not to.
func TestRoundTripsOfOneFullConditionOf8(t *testing.T) {
	travel(t, func(j *journey) {
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 9, time.Minute)}
		rule.Either[5].Max = 1
		j.call(rule, throttler.Authorized)()
		j.requires(2, 1+7, j.call(rule, throttler.Blocked))
		rule.CountAuthorizedOnly = true
		j.requires(1, 1, j.call(rule, throttler.Blocked))
		rule.Either, rule.All = nil, rule.Either
		j.requires(2, 1+7, j.call(rule, throttler.Authorized))
	})
}

func TestRoundTripsOfABan(t *testing.T) {
	travel(t, func(j *journey) {
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 1, time.Minute), Lockout: time.Hour}
		j.call(rule, throttler.Authorized)()
		j.requires(2, 1+8, j.call(rule, throttler.Blocked)) // it is set
		j.requires(1, 1, j.call(rule, throttler.Blocked))
	})
}

func TestRoundTripsOfPeekResetAndCancel(t *testing.T) {
	travel(t, func(j *journey) {
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 2, time.Minute)}
		j.requires(1, 1, func() {
			_, err := j.throttler.Peek(j.ctx, rule)
			require.NoError(j, err)
		})
		d, err := j.throttler.Authorize(j.ctx, rule)
		require.NoError(j, err)
		cancel := func() { require.NoError(j, j.throttler.Cancel(j.ctx, d)) }
		j.requires(2, 1+8, cancel)
		j.requires(0, 0, cancel)
		j.requires(1, 8, func() { require.NoError(j, j.throttler.Reset(j.ctx, rule)) })
	})
}

// Only the condition that has lost a race goes round again.
func TestRoundTripsOfALostRace(t *testing.T) {
	travel(t, func(j *journey) {
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 9, time.Minute)}
		one := rule
		one.Either = rule.Either[3:4]
		other := make(chan error, 1)
		go func() {
			// Behind the reads of the call below, and ahead of its writes.
			time.Sleep(roundTrip + roundTrip/2)
			_, err := throttler.New(j.client.Client).Authorize(context.Background(), one)
			other <- err
		}()
		j.requires(4, 1+8+1+1, func() {
			d, err := j.throttler.Authorize(j.ctx, rule)
			require.NoError(j, err)
			require.Equal(j, 1, d.Outcomes[3].LostRaces)
			require.Equal(j, 7, d.Outcomes[3].Remaining)
		})
		require.NoError(j, <-other)
	})
}

// The reads of a cancelable call run on, but no longer than the client does.
func TestDoneContextIsNotWaitedForALongTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newDistant()
		th := throttler.New(client)
		for _, patience := range []time.Duration{1, roundTrip / 2, roundTrip + roundTrip/2} {
			rule := throttler.Rule{Identifier: patience.String(), Either: conditions(8, 9, time.Minute)}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			begin := time.Now()
			d, err := th.Authorize(ctx, rule)
			require.NoError(t, err)
			require.Equal(t, patience, time.Since(begin))
			require.ErrorIs(t, d.Err, context.DeadlineExceeded)
			require.Equal(t, throttler.Authorized, d.Status)
			cancel()
		}
		time.Sleep(2 * roundTrip)
		synctest.Wait() // nothing is left running, or the bubble would not end
	})
}

func TestRoundTrips(t *testing.T) {
	one, two := either(condition("a", 2, time.Minute)), either(condition("a", 9, time.Minute), condition("b", 9, time.Minute))
	two.Identifier = "two"
	client := newFaulty()
	th := throttler.New(client)
	authorize(t, th, one)
	require.Equal(t, []string{"get", "add"}, client.took())
	authorize(t, th, one)
	require.Equal(t, []string{"get", "cas"}, client.took())
	authorize(t, th, one)
	require.Equal(t, []string{"get"}, client.took(), "blocked")
	authorize(t, th, two)
	require.Equal(t, []string{"multi", "add", "add"}, client.took())
	authorize(t, th, two)
	require.Equal(t, []string{"multi", "cas", "cas"}, client.took())
	peek(t, th, one)
	peek(t, th, two)
	require.Equal(t, []string{"get", "multi"}, client.took())
}

// The writes of a call go out together: all of them are under way before the
// first is answered.
func TestWritesOfACallGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(string, ...string) error { time.Sleep(20 * time.Millisecond); return nil }
		th := throttler.New(client)
		var rule throttler.Rule
		for i := range 8 {
			rule = either(append(rule.Either, condition(fmt.Sprint(i), 1, time.Minute))...)
		}
		start := time.Now()
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		require.Equal(t, 2*20*time.Millisecond, time.Since(start))
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		require.Equal(t, 3*20*time.Millisecond, time.Since(start))
	})
}
