package throttler_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// What a Fallback allows beside what was last seen.

// A severed is a remote that a test can cut off: then no exchange is sent.
type severed struct {
	*remote
	off atomic.Bool
}

func (s *severed) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	if !s.off.Load() {
		s.remote.Exchange(ctx, xs...)
		return
	}
	for _, x := range xs {
		x.Done(exchange.Result{Err: errDown})
	}
}

func (s *severed) Start(xs ...exchange.Exchange) { go s.Exchange(context.Background(), xs...) }

// admitted returns how many of n calls of rule pass.
func admitted(t *testing.T, th *throttler.Throttler, c throttler.Condition, n int) (passed int) {
	t.Helper()
	for range n {
		if authorize(t, th, either(c)).Status == throttler.Authorized {
			passed++
		}
	}
	return passed
}

// newCutOff returns a throttler over a plain client with a Fallback.
func newCutOff(share float64) (*throttler.Throttler, *outlet) {
	o := newOutlet()
	th := throttler.New(o)
	th.Fallback, th.FallbackShare = memstore.New(), share
	return th, o
}

func TestTheFallbackBeginsWithWhatWasLastSeenOverAnExchanger(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		o := &severed{remote: newRemote()}
		th, other := throttler.New(o), throttler.New(o.remote)
		th.Fallback = memstore.New()
		require.Equal(t, 3, admitted(t, th, c, 3))
		admitted(t, other, c, 2)
		require.Equal(t, 4, peek(t, th, either(c)).Outcomes[0].Remaining, "it has seen those of the other process")
		for range 2 { // the second outage knows as much
			o.off.Store(true)
			require.Equal(t, throttler.Authorized, authorize(t, th, either(c)).Status)
			o.off.Store(false)
			peek(t, other, either(c))
		}
		o.off.Store(true)
		require.Equal(t, 3, admitted(t, th, c, 20))
		o.off.Store(false)
		require.Equal(t, 1, admitted(t, th, c, 1), "the server decides again")
	})
}

func TestABannedValueStaysBannedInTheFallback(t *testing.T) {
	everyAlgorithm(t, 1, func(t *testing.T, c throttler.Condition) {
		th, o := newCutOff(0.5)
		require.NoError(t, th.Ban(t.Context(), either(c), time.Hour))
		th.Fallback = memstore.New() // which knows nothing of it
		require.True(t, peek(t, th, either(c)).Outcomes[0].Banned)
		o.off.Store(true)
		time.Sleep(time.Minute)
		d := authorize(t, th, either(c))
		require.True(t, d.Outcomes[0].Banned)
		require.Equal(t, 59*time.Minute, d.RetryAfter)
	})
}

func TestFallbackShareIsAPartOfEachMax(t *testing.T) {
	for _, tt := range []struct {
		share           float64
		max, seen, want int
	}{
		{0.25, 10, 0, 2}, {0.25, 10, 7, 2}, {0.25, 10, 9, 1}, {0.25, 10, 10, 0},
		{1. / 8, 50, 0, 6}, {0.01, 10, 0, 1}, {0.01, 10, 9, 1}, {0.01, 10, 10, 0}, {0.29, 100, 0, 29}, {0.99, 1, 0, 1},
		{1, 10, 0, 10}, {0, 10, 3, 7}, {-1, 10, 0, 10}, {1.5, 10, 0, 10}, {math.NaN(), 10, 0, 10}, {math.Inf(1), 10, 0, 10},
	} {
		everyAlgorithm(t, tt.max, func(t *testing.T, c throttler.Condition) {
			th, o := newCutOff(tt.share)
			require.Equal(t, tt.seen, admitted(t, th, c, tt.seen))
			o.off.Store(true)
			require.Equal(t, tt.want, admitted(t, th, c, 2*tt.max), "%+v", tt)
		})
	}
}

// A bucket goes on at the rate of its share, in one burst and after.
func TestTheShareOfABucketLeaksAtItsRate(t *testing.T) {
	for share, want := range map[float64][]int{
		0:   {0, 1, 1, 1, 1},
		0.5: {0, 1, 0, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			th, o := newCutOff(share)
			c := inBucket(condition("c", 10, 10*time.Second))
			admitted(t, th, c, 10)
			o.off.Store(true)
			var got []int
			for range want {
				got = append(got, admitted(t, th, c, 5))
				time.Sleep(time.Second)
			}
			require.Equal(t, want, got, "share %v", share)
		})
	}
}

func TestTheFallbackTellsWhatIsLeftOfBoth(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th, o := newCutOff(0.3)
		admitted(t, th, c, 8)
		o.off.Store(true)
		require.Equal(t, []int{1}, remaining(peek(t, th, either(c))))
		require.Equal(t, []int{1}, remaining(authorize(t, th, either(c))))
		require.Equal(t, []int{0}, remaining(authorize(t, th, either(c))))
		require.Equal(t, []int{0}, remaining(authorize(t, th, either(c))))
	})
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th, o := newCutOff(0.3)
		admitted(t, th, c, 2)
		o.off.Store(true)
		require.Equal(t, []int{2}, remaining(authorize(t, th, either(c))))
	})
}

func TestCancelSettleAndResetReachWhatTheFallbackCounted(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th, o := newCutOff(0.5)
		admitted(t, th, c, 7)
		o.off.Store(true)
		for range 10 {
			require.NoError(t, th.Cancel(t.Context(), authorize(t, th, either(costing(c, 2)))))
		}
		d := authorize(t, th, either(c))
		settle(t, th, d, total(3))
		require.Equal(t, throttler.Blocked, authorize(t, th, either(c)).Status)
		settle(t, th, d, total(1))
		require.Equal(t, 2, admitted(t, th, c, 5))
		require.Error(t, th.Reset(t.Context(), either(c)))
		require.Equal(t, 5, admitted(t, th, c, 10), "nothing is known any more")
	})
}

func TestSettleAndRefundTellWhatTheFallbackHasLeft(t *testing.T) {
	for _, tt := range []struct {
		share     float64
		seen, own int // hits that the server holds, and that the fallback comes to hold
	}{
		{1, 7, 2}, {1, 7, 3}, {1, 7, 4}, {0.3, 0, 2}, {0.3, 0, 3}, {0.3, 0, 4}, {0.3, 8, 1}, {0.3, 8, 3}, {0.3, 9, 0},
	} {
		everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
			th, o := newCutOff(tt.share)
			admitted(t, th, c, tt.seen)
			o.off.Store(true)
			d := settle(t, th, authorize(t, th, either(c)), total(tt.own))
			left := peek(t, th, either(c)).Outcomes[0]
			require.Equal(t, left.Remaining+left.Cost, d.Outcomes[0].Remaining, "%+v", tt)
			require.Equal(t, tt.own > int(10*tt.share) || tt.own+tt.seen > 10, d.Outcomes[0].Blocked, "%+v", tt)
			if c.Algorithm == throttler.InFlight {
				return // is not refunded
			}
			d, err := th.Refund(t.Context(), either(c))
			require.NoError(t, err)
			left = peek(t, th, either(c)).Outcomes[0]
			require.Equal(t, left.Remaining+left.Cost, d.Outcomes[0].Remaining, "%+v", tt)
			require.Equal(t, left.Blocked, d.Outcomes[0].Blocked, "%+v", tt)
		})
	}
}

func TestProcessesOfOneShareEachAllowTwiceMaxTogether(t *testing.T) {
	const n, max = 4, 40
	everyAlgorithm(t, max, func(t *testing.T, c throttler.Condition) {
		client := newOutlet()
		var all []*throttler.Throttler
		for range n {
			th := throttler.New(client)
			th.Fallback, th.FallbackShare = memstore.New(), 1./n
			all = append(all, th)
		}
		passed := 0
		for i := range 100 * max {
			client.off.Store(i%7 > 3)
			passed += admitted(t, all[i%n], c, 1)
		}
		require.LessOrEqual(t, passed, 2*max)
		require.GreaterOrEqual(t, passed, max)
	})
}

func TestWithoutRecordCacheTheFallbackBeginsEmpty(t *testing.T) {
	th, o := newCutOff(0)
	th.RecordCache = -1
	c := condition("c", 2, time.Minute)
	admitted(t, th, c, 2)
	o.off.Store(true)
	require.Equal(t, 2, admitted(t, th, c, 3))
}

// The fallback never allows it, but the backend may when it is back.
func TestACallThatIsLargerThanTheShareComesAgainWhenItFitsIntoMax(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th, o := newCutOff(0.5)
		o.off.Store(true)
		require.Equal(t, time.Second, authorize(t, th, either(costing(c, 6))).RetryAfter)
		o.off.Store(false)
		admitted(t, th, c, 5)
		d := authorize(t, th, either(costing(c, 6)))
		o.off.Store(true)
		require.Equal(t, d.RetryAfter, authorize(t, th, either(costing(c, 6))).RetryAfter, "as the backend said")
	})
}

func TestCountingStartsAnewAfterABanOfTheFallback(t *testing.T) {
	for _, seen := range []int{0, 1, 2} {
		everyAlgorithm(t, 2, func(t *testing.T, c throttler.Condition) {
			if c.Algorithm == throttler.InFlight {
				return // is never banned
			}
			th, o := newCutOff(0)
			rule := either(c)
			rule.Lockout, rule.LockoutGrowth = time.Second, 2
			for range seen {
				authorize(t, th, rule)
			}
			o.off.Store(true)
			for ban := time.Second; ban <= 8*time.Second; ban *= 2 {
				for range 2 - seen {
					require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
				}
				d := authorize(t, th, rule)
				require.True(t, d.Outcomes[0].NewBan)
				require.Equal(t, ban, d.RetryAfter)
				time.Sleep(ban)
				seen = 0
			}
		})
	}
}

// A ban that was seen is the first in the row.
func TestABanOfTheFallbackGrowsFromTheOneThatWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th, o := newCutOff(0)
		rule := either(condition("c", 1, time.Minute))
		rule.Lockout, rule.LockoutGrowth = time.Second, 2
		authorize(t, th, rule)
		require.Equal(t, time.Second, authorize(t, th, rule).RetryAfter)
		time.Sleep(time.Second)
		o.off.Store(true)
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		require.Equal(t, 2*time.Second, authorize(t, th, rule).RetryAfter)
	})
}
