package throttler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

const roundTrip = 20 * time.Millisecond

// A distantClient counts operations, each of which takes a round trip. In a
// bubble of synctest time passes for nothing else, so the time that a call takes
// is the number of its round trips, whatever it does at the same time.
type distantClient struct {
	throttler.Client
	ops atomic.Int64
}

func (c *distantClient) travel() {
	c.ops.Add(1)
	time.Sleep(roundTrip)
}

func (c *distantClient) Get(key string) (*memcache.Item, error) {
	c.travel()
	return c.Client.Get(key)
}

func (c *distantClient) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	c.travel()
	return c.Client.GetMulti(keys)
}

func (c *distantClient) Add(item *memcache.Item) error {
	c.travel()
	return c.Client.Add(item)
}

func (c *distantClient) CompareAndSwap(item *memcache.Item) error {
	c.travel()
	return c.Client.CompareAndSwap(item)
}

func (c *distantClient) Delete(key string) error {
	c.travel()
	return c.Client.Delete(key)
}

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
				client := &distantClient{Client: memstore.New()}
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

func TestBlockCacheAnswersWithoutARoundTrip(t *testing.T) {
	travel(t, func(j *journey) {
		j.throttler.BlockCache = 100
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 1, time.Minute), Lockout: time.Hour}
		j.call(rule, throttler.Authorized)()
		j.call(rule, throttler.Blocked)()
		j.requires(0, 0, j.call(rule, throttler.Blocked))
		time.Sleep(throttler.DefaultBlockCacheTTL)
		j.requires(1, 1, j.call(rule, throttler.Blocked))
		j.requires(0, 0, j.call(rule, throttler.Blocked))

		// Another process finds the ban, and remembers it as well.
		j.throttler = throttler.New(j.client)
		j.throttler.BlockCache = 100
		j.requires(1, 1, j.call(rule, throttler.Blocked))
		j.requires(0, 0, j.call(rule, throttler.Blocked))
	})
}

func TestBlockCacheKeepsNoBanLongerThanItHolds(t *testing.T) {
	travel(t, func(j *journey) {
		j.throttler.BlockCache, j.throttler.BlockCacheTTL = 100, time.Hour
		rule := throttler.Rule{Identifier: "r", Either: conditions(1, 1, time.Minute), Lockout: time.Minute}
		j.call(rule, throttler.Authorized)()
		j.requires(2, 2, j.call(rule, throttler.Blocked))
		// It was set a round trip ago, when the record had been read.
		time.Sleep(time.Minute - roundTrip - 1)
		j.requires(0, 0, j.call(rule, throttler.Blocked))
		time.Sleep(time.Nanosecond)
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
		client := &distantClient{Client: memstore.New()}
		th := throttler.New(client)
		rule := throttler.Rule{Identifier: "r", Either: conditions(8, 9, time.Minute)}
		for _, patience := range []time.Duration{1, roundTrip / 2, roundTrip + roundTrip/2} {
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
