package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func inFlight(max int, lease time.Duration) throttler.Condition {
	return throttler.Condition{Name: "c", Value: "v", Max: max, TTL: lease, Algorithm: throttler.InFlight}
}

// hold authorizes a call of rule and holds it.
func hold(t *testing.T, th *throttler.Throttler, rule throttler.Rule) *throttler.Lease {
	t.Helper()
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	return th.Hold(t.Context(), d)
}

func TestAHitInFlightCountsUntilItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		th.BlockCache = 100
		rule := either(inFlight(2, time.Minute))
		rule.Lockout = time.Hour
		require.Equal(t, throttler.Outcome{Name: "c", Limit: 2, Cost: 1, Remaining: 1, ResetAfter: time.Minute}, authorize(t, th, rule).Outcomes[0])
		time.Sleep(10 * time.Second)
		authorize(t, th, rule)
		full := throttler.Outcome{Name: "c", Limit: 2, Blocked: true, RetryAfter: 50 * time.Second, ResetAfter: time.Minute}
		require.Equal(t, full, authorize(t, th, rule).Outcomes[0], "a Lockout never bans it")
		require.Zero(t, th.Stats().CacheHits)
		time.Sleep(50 * time.Second)
		require.Equal(t, []int{0}, remaining(authorize(t, th, rule)))
	})
}

func TestAllLeasesOfARecordAreRenewedInOneExchange(t *testing.T) {
	for _, client := range kindsOfClient {
		synctest.Test(t, func(t *testing.T) {
			th := throttler.New(client())
			var leases []*throttler.Lease
			for range 300 { // more than a batch
				leases = append(leases, hold(t, th, either(inFlight(300, time.Minute))))
			}
			before := th.Stats().Exchanges
			time.Sleep(10*time.Minute + time.Second)
			require.EqualValues(t, 30, th.Stats().Exchanges-before)
			for _, l := range leases {
				require.NoError(t, l.Context().Err())
				require.NoError(t, l.Release(t.Context()))
			}
			require.Equal(t, []int{299}, remaining(peek(t, th, either(inFlight(300, time.Minute)))))
		})
	}
}

func TestALeaseThatCannotBeRenewedIsLostATenthBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		th := throttler.New(client)
		th.Fallback = memstore.New()
		start := time.Now()
		lease := hold(t, th, either(inFlight(1, time.Minute)))
		child, cancel := context.WithCancel(lease.Context())
		defer cancel()
		client.off.Store(true)
		require.Equal(t, throttler.Blocked, authorize(t, th, either(inFlight(1, time.Minute))).Status, "the fallback knows that it is held")
		<-child.Done()
		require.Equal(t, 54*time.Second, time.Since(start))
		require.ErrorIs(t, context.Cause(child), throttler.ErrLeaseLost)
		require.ErrorIs(t, lease.Context().Err(), context.Canceled)
	})
}

func TestALeaseOutlivesAShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		th := throttler.New(client)
		lease := hold(t, th, either(inFlight(1, time.Minute)))
		client.off.Store(true)
		time.Sleep(49 * time.Second) // it is tried again every 6 s: after 50 s for the last time
		client.off.Store(false)
		time.Sleep(time.Hour)
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestADecisionCanBeHeldTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		d := authorize(t, th, either(inFlight(1, time.Minute)))
		first, end := context.WithCancel(t.Context())
		th.Hold(first, d)
		time.Sleep(3 * time.Minute)
		second := th.Hold(t.Context(), d)
		end()
		time.Sleep(time.Hour)
		require.NoError(t, second.Context().Err())
		require.NoError(t, second.Release(t.Context()))
		require.Equal(t, throttler.Authorized, authorize(t, th, either(inFlight(1, time.Minute))).Status)
	})
}

func TestRetryAfterOfABanIsWhenTheLeasesThatItKeepsHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(inFlight(2, time.Minute))
		held := authorize(t, th, rule)
		require.NoError(t, th.Ban(t.Context(), rule, time.Second))
		both := either(costing(inFlight(2, time.Minute), 2))
		require.Equal(t, time.Second, peek(t, th, rule).RetryAfter, "there is room for another one")
		settled, err := th.Settle(t.Context(), held, map[string]int{held.Outcomes[0].Name: 1})
		require.NoError(t, err)
		for _, o := range []throttler.Outcome{peek(t, th, rule).Outcomes[0], settled.Outcomes[0]} {
			require.Equal(t, time.Minute, o.ResetAfter)
		}
		d := authorize(t, th, both)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, time.Minute, d.RetryAfter)
		time.Sleep(d.RetryAfter - 1)
		require.Equal(t, throttler.Blocked, peek(t, th, both).Status)
		time.Sleep(time.Nanosecond)
		require.Equal(t, throttler.Authorized, authorize(t, th, both).Status)
		require.NoError(t, th.Ban(t.Context(), rule, time.Hour))
		require.Equal(t, time.Hour, peek(t, th, rule).Outcomes[0].ResetAfter, "later than all leases")
	})
}

func TestWhatHoldsNoHitIsNeverLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		th := throttler.New(store)
		rule := either(inFlight(1, time.Minute))
		first := authorize(t, th, rule)
		shadow := rule
		shadow.Shadow = true
		failing := newFaulty()
		failing.before = func(string, ...string) error { return errors.New("down") }
		ctx, cancel := context.WithCancel(t.Context())
		var leases []*throttler.Lease
		require.NoError(t, th.Cancel(t.Context(), first))
		for _, d := range []throttler.Decision{
			{}, authorize(t, th, shadow), authorize(t, th, rule), authorize(t, th, shadow),
			authorize(t, throttler.New(failing), rule), authorize(t, th, either(condition("a", 1, time.Hour))),
		} {
			if d.Status == throttler.Blocked || d.WouldBlock || d.Err != nil || len(leases) == 1 || d.Outcomes[0].Name == "a" {
				leases = append(leases, th.Hold(ctx, d))
			}
		}
		require.NoError(t, th.Reset(t.Context(), rule))
		time.Sleep(time.Hour)
		require.Len(t, leases, 6)
		for _, l := range leases {
			require.NoError(t, l.Context().Err())
		}
		cancel()
		for _, l := range leases {
			require.ErrorIs(t, l.Context().Err(), context.Canceled)
			require.NoError(t, l.Release(t.Context()))
		}
	})
}

func TestALeaseOfSeveralHitsIsLostWithTheFirstOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		long, short := inFlight(1, time.Minute), inFlight(1, 9*time.Second)
		short.Name = "short"
		rule := either(long, short)
		lease := hold(t, th, rule)
		time.Sleep(time.Hour)
		require.NoError(t, lease.Context().Err())
		start := time.Now()
		require.NoError(t, th.Reset(t.Context(), either(short)))
		<-lease.Context().Done()
		require.LessOrEqual(t, time.Since(start), 3*time.Second, "at its own pace")
		require.ErrorIs(t, context.Cause(lease.Context()), throttler.ErrLeaseLost)
		exchanges := th.Stats().Exchanges
		require.True(t, peek(t, th, either(long)).Outcomes[0].Blocked, "the other one ends by itself")
		time.Sleep(time.Minute)
		require.False(t, peek(t, th, either(long)).Outcomes[0].Blocked)
		require.Equal(t, exchanges+2, th.Stats().Exchanges, "nothing is renewed any more")
	})
}

func TestALeaseOfSeveralHitsIsLostWhenTheShortestIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ttls := range [][]time.Duration{{time.Minute, 10 * time.Second}, {10 * time.Second, time.Minute}} {
			client := newOutlet()
			a, b := inFlight(1, ttls[0]), inFlight(1, ttls[1])
			b.Name = "b"
			lease := hold(t, throttler.New(client), either(a, b))
			client.off.Store(true)
			start := time.Now()
			<-lease.Context().Done()
			require.Equal(t, 9*time.Second, time.Since(start))
		}
	})
}

// Each new lease is due later than those before it, which must not wait for it.
func TestALeaseIsRenewedInTimeHoweverManyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		var leases []*throttler.Lease
		for range 30 {
			leases = append(leases, hold(t, th, either(inFlight(30, time.Minute))))
			time.Sleep(15 * time.Second)
		}
		for _, l := range leases {
			require.NoError(t, l.Context().Err())
			require.NoError(t, l.Release(t.Context()))
		}
	})
}

func TestNothingIsRenewedAfterTheLastRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(inFlight(2, time.Minute))
		first, second := hold(t, th, rule), hold(t, th, rule)
		require.NoError(t, first.Release(t.Context()))
		time.Sleep(time.Hour)
		require.NoError(t, second.Context().Err())
		require.NoError(t, second.Release(t.Context()))
		exchanges := th.Stats().Exchanges
		time.Sleep(time.Hour)
		require.Equal(t, exchanges, th.Stats().Exchanges)
	})
}

// While a renewal is under way, one lease of the record is released and another one taken.
func TestLeasesComeAndGoWhileARenewalIsUnderWay(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		rule := either(inFlight(2, time.Minute))
		stays, goes := hold(t, th, rule), hold(t, th, rule)
		time.Sleep(20*time.Second - 3*roundTrip)
		r.beBusy(10 * roundTrip)
		time.Sleep(5 * roundTrip)
		var comes *throttler.Lease
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, goes.Release(t.Context())) })
		wg.Go(func() {
			d, err := th.Wait(t.Context(), rule)
			assert.NoError(t, err)
			comes = th.Hold(t.Context(), d)
		})
		wg.Wait()
		r.beBusy(0)
		time.Sleep(time.Hour)
		require.NoError(t, stays.Context().Err())
		require.NoError(t, comes.Context().Err())
		require.ErrorIs(t, context.Cause(goes.Context()), context.Canceled)
		require.True(t, peek(t, th, rule).Outcomes[0].Blocked)
		require.NoError(t, stays.Release(t.Context()))
		require.NoError(t, comes.Release(t.Context()))
		require.Equal(t, []int{1}, remaining(peek(t, th, rule)))
	})
}

func TestTheEndOfHoldsContextEndsRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(inFlight(1, time.Minute))
		ctx, cancel := context.WithCancelCause(t.Context())
		lease := th.Hold(ctx, authorize(t, th, rule))
		cause := errors.New("enough")
		cancel(cause)
		require.ErrorIs(t, context.Cause(lease.Context()), cause)
		time.Sleep(time.Minute - 1)
		require.True(t, peek(t, th, rule).Outcomes[0].Blocked)
		time.Sleep(time.Nanosecond)
		require.False(t, peek(t, th, rule).Outcomes[0].Blocked)
	})
}

func TestReleaseWakesTheFirstOfThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(inFlight(2, time.Hour))
		held := []*throttler.Lease{hold(t, th, rule), hold(t, th, rule)}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // before any lease ends
				defer cancel()
				d, err := th.Wait(ctx, rule)
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				lease := th.Hold(t.Context(), d)
				time.Sleep(300 * time.Millisecond)
				assert.NoError(t, lease.Release(t.Context()))
			})
		}
		time.Sleep(15*time.Second + time.Second/3)
		synctest.Wait()
		start := time.Now()
		require.NoError(t, held[0].Release(t.Context()))
		synctest.Wait()
		require.Equal(t, []int{0}, order)
		require.Equal(t, start, time.Now(), "without a timer")
		const apart = 100 * time.Millisecond // so that no two places become free at once
		time.Sleep(apart)
		require.NoError(t, held[1].Release(t.Context()))
		wg.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, order)
		require.Equal(t, apart+5*300*time.Millisecond, time.Since(start), "no place is idle")
	})
}

func TestWaitNoticesAReleaseOfAnotherProcessWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		th, other := throttler.New(store), throttler.New(store)
		rule := either(inFlight(1, time.Hour))
		lease := hold(t, other, rule)
		time.AfterFunc(90*time.Second+1, func() { _ = lease.Release(context.Background()) })
		start := time.Now()
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 91*time.Second)
	})
}

func TestATokenRenewsAndReleasesFromAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := throttler.New(store), throttler.New(store)
		rule := either(inFlight(1, time.Minute))
		token := authorize(t, one, rule).Receipt()
		d, err := other.Redeem(token)
		require.NoError(t, err)
		for range 10 {
			time.Sleep(50 * time.Second)
			require.NoError(t, other.Renew(t.Context(), d))
			require.True(t, peek(t, one, rule).Outcomes[0].Blocked)
		}
		lease := other.Hold(t.Context(), d)
		time.Sleep(time.Hour)
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Release(t.Context()))
		require.False(t, peek(t, one, rule).Outcomes[0].Blocked)
		again, err := other.Redeem(token)
		require.NoError(t, err)
		require.ErrorIs(t, other.Renew(t.Context(), again), throttler.ErrLeaseLost)
		next := authorize(t, one, rule)
		require.NoError(t, other.Cancel(t.Context(), again), "frees nobody else's")
		require.True(t, peek(t, one, rule).Outcomes[0].Blocked)
		require.NoError(t, one.Renew(t.Context(), next))
		time.Sleep(time.Minute)
		require.ErrorIs(t, one.Renew(t.Context(), next), throttler.ErrLeaseLost)
		require.NoError(t, one.Renew(t.Context(), throttler.Decision{}))
	})
}

func TestHitsInFlightAreValidated(t *testing.T) {
	require.NoError(t, either(inFlight(record.MaxLeases, 100*time.Millisecond)).Validate())
	require.EqualError(t, either(inFlight(1, 100*time.Millisecond-1)).Validate(),
		`throttler: invalid rule "test": condition "c": Either[0].TTL is 99.999999ms, want 100ms or more for hits in flight`)
	require.EqualError(t, either(inFlight(10_001, time.Second)).Validate(),
		`throttler: invalid rule "test": condition "c": Either[0].Max is 10001, want 1 to 10000`)
}

// Two jobs of a customer at the same time at most, on all machines together.
func ExampleThrottler_Hold() {
	th := throttler.New(memstore.New())
	rule := throttler.Rule{
		Identifier: "jobs",
		Either: []throttler.Condition{
			{Name: "customer", Value: "c-42", Max: 2, TTL: 30 * time.Second, Algorithm: throttler.InFlight},
		},
	}
	work := func(ctx context.Context) error { return ctx.Err() }

	ctx := context.Background()
	d, err := th.Wait(ctx, rule)
	if err != nil {
		fmt.Println(err)
		return
	}
	lease := th.Hold(ctx, d)
	fmt.Println("in flight:", d.Outcomes[0].Limit-d.Outcomes[0].Remaining)
	err = work(lease.Context()) // must stop when this context ends
	fmt.Println("work:", err)
	fmt.Println("release:", lease.Release(ctx))
	// Output:
	// in flight: 1
	// work: <nil>
	// release: <nil>
}

func TestLeasesOneInTheContextOfTheOtherMayBeLostAtOnce(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			store := newFaulty()
			th := throttler.New(store)
			rule := either(inFlight(5, time.Minute))
			outer, inner := authorize(t, th, rule), authorize(t, th, rule)
			store.before = func(string, ...string) error { return errors.New("down") }
			a := th.Hold(t.Context(), outer)
			b := th.Hold(a.Context(), inner)
			<-a.Context().Done() // of two that are lost at the same moment, either may be the first
			<-b.Context().Done()
			require.ErrorIs(t, context.Cause(b.Context()), throttler.ErrLeaseLost)
			require.ErrorIs(t, context.Cause(a.Context()), throttler.ErrLeaseLost)
		})
	}
}
