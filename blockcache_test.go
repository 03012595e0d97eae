package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// What a throttler does for a backend that fails: Fallback, and BlockCache.

func TestFallbackKeepsCountingWhileTheBackendFails(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	th.Fallback = memstore.New()
	rule := either(condition("a", 2, time.Minute), condition("b", 3, time.Minute))
	client.before = failing(errDown, "", "get", "multi", "add", "cas")
	for _, want := range [][]int{{1, 2}, {0, 1}} {
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, want, remaining(d))
		require.Equal(t, errDown, d.Err, "it still says what happened")
		require.Equal(t, errDown, d.Outcomes[1].Err)
	}
	require.Equal(t, throttler.Blocked, peek(t, th, rule).Status)
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, d.Status)
	require.Equal(t, []string{"a is full"}, d.Messages)
	require.Equal(t, errDown, d.Err)
	// The backend is back, and has counted none of this.
	client.before = failing(nil, "")
	d = authorize(t, th, rule)
	require.Equal(t, []int{1, 2}, remaining(d))
	require.NoError(t, d.Err)
}

func TestFallbackDecidesOnlyWhatFailed(t *testing.T) {
	client := &partial{faulty: newFaulty(), dead: "test#dead#v", err: keyed{"test#dead#v"}}
	client.before = failing(errDown, client.dead, "get", "add", "cas")
	fallback := newFaulty()
	th := throttler.New(client)
	th.Fallback = fallback
	rule := either(condition("dead", 2, time.Minute), condition("alive", 3, time.Minute))
	require.Equal(t, []int{1, 2}, remaining(authorize(t, th, rule)))
	require.Equal(t, []string{"get", "add"}, fallback.took())
	require.Equal(t, []int{0, 1}, remaining(authorize(t, th, rule)))
	require.Equal(t, []string{"dead is full"}, authorize(t, th, rule).Messages)
}

func TestFallbackIsAskedWhenTheContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(string, ...string) error { time.Sleep(time.Second); return errDown }
		th := throttler.New(client)
		th.Fallback = memstore.New()
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			start := time.Now()
			d, err := th.Authorize(ctx, either(condition("a", 2, time.Minute)))
			cancel()
			require.NoError(t, err)
			require.Equal(t, 50*time.Millisecond, time.Since(start))
			require.Equal(t, context.DeadlineExceeded, d.Err)
			require.Equal(t, i == 2, d.Status == throttler.Blocked)
		}
		time.Sleep(time.Second)
	})
}

func TestFallbackThatFailsTooLeavesTheConditionOpenWithBothErrors(t *testing.T) {
	client, fallback := newFaulty(), newFaulty()
	alsoDown := fmt.Errorf("fallback: %w", context.DeadlineExceeded)
	client.before = failing(errDown, "", "get")
	fallback.before = failing(alsoDown, "", "get")
	th := throttler.New(client)
	th.Fallback = fallback
	d := authorize(t, th, either(condition("a", 2, time.Minute)))
	require.Equal(t, throttler.Authorized, d.Status)
	require.ErrorIs(t, d.Err, errDown)
	require.ErrorIs(t, d.Err, alsoDown)
}

func TestCancelAndResetReachTheFallback(t *testing.T) {
	client, ctx := newFaulty(), context.Background()
	client.before = failing(errDown, "", "get", "delete")
	th := throttler.New(client)
	th.Fallback = memstore.New()
	rule := either(condition("a", 2, time.Minute))
	d := authorize(t, th, rule)
	authorize(t, th, rule)
	require.NoError(t, th.Cancel(ctx, d))
	require.Equal(t, []int{0}, remaining(authorize(t, th, rule)))
	require.ErrorIs(t, th.Reset(ctx, rule), errDown)
	require.Equal(t, []int{1}, remaining(authorize(t, th, rule)))
}

func TestResetReachesTheFallbackWhileTheBackendHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(string, ...string) error { time.Sleep(time.Second); return errDown }
		th := throttler.New(client)
		th.Fallback = memstore.New()
		rule := either(condition("a", 1, time.Minute))
		rule.Lockout = time.Hour
		authorize(t, th, rule)
		require.True(t, authorize(t, th, rule).Outcomes[0].Banned)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, th.Reset(ctx, rule), context.DeadlineExceeded)
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
		time.Sleep(time.Second)
	})
}

// A call that the backend would have let pass is refused by the fallback of
// another condition: what the backend counted is given back.
func TestHitIsGivenBackWhenTheFallbackRefuses(t *testing.T) {
	client := &partial{faulty: newFaulty(), dead: "test#dead#v", err: keyed{"test#dead#v"}}
	client.before = failing(errDown, client.dead, "get", "add", "cas")
	th := throttler.New(client)
	th.Fallback = memstore.New()
	rule := either(condition("dead", 1, time.Minute), condition("alive", 3, time.Minute))
	rule.CountAuthorizedOnly = true
	require.Equal(t, []int{0, 2}, remaining(authorize(t, th, rule)))
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, d.Status)
	require.Equal(t, []int{0, 2}, remaining(d))
	require.Equal(t, 1, peek(t, th, either(rule.Either[1])).Outcomes[0].Remaining)
}

func banning(name string, lockout time.Duration) throttler.Rule {
	rule := either(condition(name, 1, time.Second))
	rule.Lockout = lockout
	return rule
}

func TestCachedBanTakesNoRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		th.BlockCache = 10
		rule := banning("a", 8*time.Second)
		authorize(t, th, rule)
		authorize(t, th, rule) // sets the ban
		client.took()
		time.Sleep(time.Second)
		want := throttler.Outcome{Name: "a", Blocked: true, Banned: true, Limit: 1, RetryAfter: 7 * time.Second, ResetAfter: 7 * time.Second}
		for range 3 {
			d := authorize(t, th, rule)
			require.Equal(t, want, d.Outcomes[0])
			require.Equal(t, []string{"a is full"}, d.Messages)
			require.Equal(t, d.Outcomes, peek(t, th, rule).Outcomes)
		}
		require.Empty(t, client.took())
		// After BlockCacheTTL the backend is asked again,
		time.Sleep(throttler.DefaultBlockCacheTTL - time.Second - 1)
		authorize(t, th, rule)
		require.Empty(t, client.took())
		time.Sleep(time.Nanosecond)
		authorize(t, th, rule)
		require.Equal(t, []string{"get"}, client.took())
		// and the ban ends at its own time, whatever the cache says.
		time.Sleep(3*time.Second - 1)
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		time.Sleep(time.Nanosecond)
		require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
	})
}

func TestBanFoundInTheBackendIsCached(t *testing.T) {
	client := newFaulty()
	first, second := throttler.New(client), throttler.New(client)
	second.BlockCache = 10
	rule := banning("a", time.Hour)
	authorize(t, first, rule)
	authorize(t, first, rule)
	client.took()
	authorize(t, second, rule)
	authorize(t, second, rule)
	require.Equal(t, []string{"get"}, client.took())
}

func TestBanThatPeekForetellsIsNotCached(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	th.BlockCache = 10
	rule := banning("a", time.Hour)
	authorize(t, th, rule)
	require.True(t, peek(t, th, rule).Outcomes[0].Banned)
	rule.Lockout = 0
	require.False(t, peek(t, th, rule).Outcomes[0].Banned)
}

func TestResetIsNoticedHereAtOnceAndElsewhereWithinBlockCacheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		here, elsewhere := throttler.New(client), throttler.New(client)
		here.BlockCache, elsewhere.BlockCache, elsewhere.BlockCacheTTL = 10, 10, time.Second
		rule := banning("a", time.Hour)
		authorize(t, here, rule)
		require.Equal(t, throttler.Blocked, authorize(t, here, rule).Status)
		require.Equal(t, throttler.Blocked, authorize(t, elsewhere, rule).Status)
		require.NoError(t, here.Reset(t.Context(), rule))
		require.Equal(t, throttler.Authorized, authorize(t, here, rule).Status)
		time.Sleep(time.Second - 1)
		require.Equal(t, throttler.Blocked, peek(t, elsewhere, rule).Status)
		time.Sleep(time.Nanosecond)
		require.Equal(t, throttler.Authorized, peek(t, elsewhere, rule).Status)
	})
}

// A call has read the ban, and is about to remember it, when Reset lifts it.
func TestResetHoldsForABanThatIsBeingReadMeanwhile(t *testing.T) {
	client := newFaulty()
	elsewhere := throttler.New(client)
	rule := banning("a", time.Hour)
	authorize(t, elsewhere, rule)
	authorize(t, elsewhere, rule)
	slow := &interrupted{faulty: client}
	here := throttler.New(slow)
	here.BlockCache = 10
	slow.by = func() { require.NoError(t, here.Reset(context.Background(), rule)) }
	require.Equal(t, throttler.Blocked, authorize(t, here, rule).Status)
	require.Equal(t, throttler.Authorized, authorize(t, here, rule).Status)
}

// interrupted does something else between the answer to a Get and its return.
type interrupted struct {
	*faulty
	by func()
}

func (o *interrupted) Get(key string) (*memcache.Item, error) {
	item, err := o.faulty.Get(key)
	if by := o.by; by != nil {
		o.by = nil
		by()
	}
	return item, err
}

func TestOtherConditionsCountBesideACachedBan(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	th.BlockCache = 10
	rule := banning("a", time.Hour)
	rule.Either = append(rule.Either, condition("b", 5, time.Minute))
	authorize(t, th, rule)
	require.Equal(t, []int{0, 3}, remaining(authorize(t, th, rule)))
	client.took()
	require.Equal(t, []int{0, 2}, remaining(authorize(t, th, rule)))
	require.Equal(t, []string{"get", "cas"}, client.took())
	rule.CountAuthorizedOnly = true
	require.Equal(t, []int{0, 2}, remaining(authorize(t, th, rule)))
	require.Equal(t, []string{"get"}, client.took())
}

func TestBlockCacheForgetsTheLeastRecentlyUsed(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	th.BlockCache = 2
	for _, name := range []string{"a", "b", "a", "b", "a", "c", "c"} {
		authorize(t, th, banning(name, time.Hour))
	}
	client.took()
	for name, ops := range map[string][]string{"a": nil, "c": nil} {
		authorize(t, th, banning(name, time.Hour))
		require.Equal(t, ops, client.took(), name)
	}
	authorize(t, th, banning("b", time.Hour))
	require.Equal(t, []string{"get"}, client.took())
}

func TestCachedBanIsNotBelievedByAClockThatWasSetBack(t *testing.T) {
	require.True(t, throttler.CachedBanHolds(at(0), at(t4), time.Hour, t5))
	require.False(t, throttler.CachedBanHolds(at(0), at(t5), time.Hour, t5))
	require.False(t, throttler.CachedBanHolds(at(0), at(-time.Minute), time.Hour, t5))
}

func TestBanOfTheFallbackIsNotCached(t *testing.T) {
	client := newFaulty()
	client.before = failing(errDown, "", "get")
	th := throttler.New(client)
	th.Fallback, th.BlockCache = memstore.New(), 10
	rule := banning("a", time.Hour)
	authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
	client.before = failing(nil, "")
	require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
}

// BenchmarkCachedBan measures a call that is answered from process memory.
func BenchmarkCachedBan(b *testing.B) {
	th := throttler.New(memstore.New())
	th.BlockCache = 10
	rule := banning("ip", time.Hour)
	ctx := context.Background()
	for range 2 {
		if _, err := th.Authorize(ctx, rule); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := th.Authorize(ctx, rule); d.Status != throttler.Blocked {
			b.Fatal("authorized")
		}
	}
}

func TestCachedBanTakesFourAllocationsAtMost(t *testing.T) {
	th := throttler.New(memstore.New())
	th.BlockCache = 10
	rule := banning("ip", time.Hour)
	ctx := context.Background()
	authorize(t, th, rule)
	authorize(t, th, rule)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = th.Authorize(ctx, rule) }), 4.0)
}

// A late is a memstore whose answers are overtaken by what then does.
type late struct {
	*memstore.Store
	then func()
}

func (l *late) Exchange(_ context.Context, xs ...throttler.Exchange) { l.Start(xs...) }

func (l *late) Start(xs ...throttler.Exchange) {
	for _, x := range xs {
		l.Store.Start(overtakenExchange{x, l})
	}
}

type overtakenExchange struct {
	throttler.Exchange
	l *late
}

func (x overtakenExchange) Done(r throttler.Result) {
	if then := x.l.then; then != nil {
		x.l.then = nil
		then()
	}
	x.Exchange.Done(r)
}

func TestWhatWasReadInProcessMemoryBeforeAChangeIsNotKept(t *testing.T) {
	rule := either(condition("a", 1, time.Minute))
	for name, change := range map[string]struct {
		do   func(*throttler.Throttler, throttler.Decision) error
		want throttler.Outcome // the parts that matter
	}{
		"Cancel": {
			func(th *throttler.Throttler, d throttler.Decision) error { return th.Cancel(context.Background(), d) },
			throttler.Outcome{},
		},
		"Reset": {
			func(th *throttler.Throttler, _ throttler.Decision) error { return th.Reset(context.Background(), rule) },
			throttler.Outcome{},
		},
		"Ban": {
			func(th *throttler.Throttler, _ throttler.Decision) error {
				return th.Ban(context.Background(), rule, time.Hour)
			},
			throttler.Outcome{Blocked: true, Banned: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &late{Store: memstore.New()}
			th := throttler.New(l)
			th.BlockCache = 10
			d := authorize(t, th, rule)
			l.then = func() { require.NoError(t, change.do(th, d)) }
			require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status, "as it was read")
			o := authorize(t, th, rule).Outcomes[0]
			require.Equal(t, change.want.Blocked, o.Blocked)
			require.Equal(t, change.want.Banned, o.Banned)
		})
	}
}

func TestBlockCacheOverMemstoreGoesOnAfterAReset(t *testing.T) {
	th := throttler.New(memstore.New())
	th.BlockCache = 1000
	for i := range 100 {
		rule := either(condition(fmt.Sprint("c", i), 1, time.Minute))
		require.NoError(t, th.Reset(t.Context(), rule))
		for range 3 {
			authorize(t, th, rule)
		}
		require.EqualValues(t, i+1, th.Stats().CacheHits)
	}
}

// A Cancel whose answer was lost may have opened the record.
func TestARecordThatMayHaveChangedIsAskedForAgain(t *testing.T) {
	exchanging(t, func(t *testing.T, th *throttler.Throttler, r *remote) {
		th.BlockCache = 10
		rule := either(condition("a", 1, time.Minute))
		d := authorize(t, th, rule)
		authorize(t, th, rule)
		require.Zero(t, trips(func() { authorize(t, th, rule) }))
		r.err = errors.New("lost")
		require.Error(t, th.Cancel(t.Context(), d))
		r.err = nil
		require.Equal(t, 1, trips(func() { authorize(t, th, rule) }))
	})
}
