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

// What calls in a row cost over a plain client, in round trips and operations in them, and over
// one that writes and reads back in one round trip.
func TestRoundTrips(t *testing.T) {
	type calls []struct {
		trips, ops int
		exchanges  int // one after the other
		status     throttler.Status
		change     func(*throttler.Rule) // before the call; nil: none
	}
	const authorized, blocked = throttler.Authorized, throttler.Blocked
	all := func(rule *throttler.Rule) { rule.Either, rule.All = nil, rule.Either }
	ban := func(rule *throttler.Rule) { rule.Lockout = time.Hour }
	atomic := func(rule *throttler.Rule) { rule.CountAuthorizedOnly = true }
	for name, row := range map[string]struct {
		conditions, max int
		set             func(*throttler.Rule)
		calls           calls
		blockCache      int
	}{
		"one condition": {conditions: 1, max: 2, calls: calls{ // get, add; get, cas; get
			{2, 2, 1, authorized, nil}, {2, 2, 1, authorized, nil}, {1, 1, 1, blocked, nil},
		}},
		"8 conditions": {conditions: 8, max: 2, calls: calls{
			{2, 1 + 8, 1, authorized, nil}, {2, 1 + 8, 1, authorized, nil}, {1, 1, 1, blocked, nil}, {1, 1, 1, blocked, all},
		}},
		// The others count the call, unless they are not to.
		"one full condition of 8": {conditions: 8, max: 9, set: func(rule *throttler.Rule) { rule.Either[5].Max = 1 }, calls: calls{
			{2, 1 + 8, 1, authorized, nil}, {2, 1 + 7, 1, blocked, nil}, {1, 1, 1, blocked, atomic}, {2, 1 + 7, 2, authorized, all},
		}},
		"a ban": {conditions: 8, max: 1, set: ban, calls: calls{
			{2, 1 + 8, 1, authorized, nil}, {2, 1 + 8, 1, blocked, nil}, {1, 1, 1, blocked, nil},
		}},
		// Each full condition of First is one more: get; get; get, add.
		"first": {conditions: 3, max: 1, set: func(rule *throttler.Rule) { rule.Either, rule.First = nil, rule.Either }, calls: calls{
			{2, 2, 1, authorized, nil}, {3, 3, 2, authorized, nil}, {4, 4, 3, authorized, nil}, {3, 3, 3, blocked, nil},
		}},
		"a ban in the BlockCache": {conditions: 8, max: 1, blockCache: 10, set: ban, calls: calls{
			{2, 1 + 8, 1, authorized, nil}, {2, 1 + 8, 1, blocked, nil}, {0, 0, 0, blocked, nil}, {0, 0, 0, blocked, all},
		}},
		"full conditions in the BlockCache": {conditions: 2, max: 1, blockCache: 10, set: atomic, calls: calls{
			{2, 1 + 2, 2, authorized, nil}, {1, 1, 1, blocked, nil}, {0, 0, 0, blocked, nil},
		}},
		"one of two in the BlockCache": {conditions: 2, max: 9, blockCache: 10, set: func(rule *throttler.Rule) { rule.Either[0].Max = 1 }, calls: calls{
			{2, 1 + 2, 1, authorized, nil}, {2, 1 + 1, 1, blocked, nil}, {2, 1 + 1, 1, blocked, nil}, {1, 1, 1, blocked, atomic},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			each := func(call func(i int, rule throttler.Rule)) {
				rule := throttler.Rule{Identifier: "r", Either: conditions(row.conditions, row.max, time.Minute)}
				if row.set != nil {
					row.set(&rule)
				}
				for i, c := range row.calls {
					if c.change != nil {
						c.change(&rule)
					}
					call(i, rule)
				}
			}
			travel(t, func(j *journey) {
				j.throttler.BlockCache = row.blockCache
				each(func(i int, rule throttler.Rule) {
					c := row.calls[i]
					j.requires(c.trips, c.ops, j.call(rule, c.status))
				})
			})
			exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
				th.BlockCache = row.blockCache
				each(func(i int, rule throttler.Rule) {
					require.Equal(t, row.calls[i].exchanges, trips(func() {
						require.Equal(t, row.calls[i].status, authorize(t, th, rule).Status)
					}), "call %d", i)
				})
			})
		})
	}
}

// The BlockCache answers for conditions of First one by one.
func TestRoundTripsOfFirstBesideABlockCache(t *testing.T) {
	travel(t, func(j *journey) {
		rule := shares(1, 1, 1)
		for range 3 {
			j.call(rule, throttler.Authorized)()
		}
		j.throttler = throttler.New(j.client)
		j.throttler.BlockCache = 10
		j.requires(3, 3, j.call(rule, throttler.Blocked))
		j.requires(0, 0, j.call(rule, throttler.Blocked))
		require.NoError(j, j.throttler.Reset(j.ctx, first(rule.First[2])))
		j.requires(2, 2, j.call(rule, throttler.Authorized))
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
		looked, err := j.throttler.Peek(j.ctx, rule)
		require.NoError(j, err)
		j.call(rule, throttler.Authorized)()
		refused, err := j.throttler.Authorize(j.ctx, rule)
		require.NoError(j, err)
		cancel := func(d throttler.Decision) func() {
			return func() { require.NoError(j, j.throttler.Cancel(j.ctx, d)) }
		}
		j.requires(2, 1+8, cancel(d))
		for _, nothing := range []throttler.Decision{d, looked, refused, {}} {
			j.requires(0, 0, cancel(nothing))
		}
		j.requires(2, 1+8, func() { // of the call that is left
			d, err := j.throttler.Refund(j.ctx, rule)
			require.NoError(j, err)
			require.NoError(j, d.Err)
		})
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
			require.Zero(j, d.Outcomes[2].LostRaces)
			require.EqualValues(j, 1, j.throttler.Stats().LostRaces)
			require.Equal(j, 7, d.Outcomes[3].Remaining)
		})
		require.NoError(j, <-other)
	})
}
