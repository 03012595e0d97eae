package throttler_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// What Fallback decides while the backend fails.

func TestFallbackTakesNoAllocationWhileTheBackendAnswers(t *testing.T) {
	rule := either(condition("a", 10_000, time.Second))
	allocs := func(fallback throttler.Client) float64 {
		th := throttler.New(struct{ throttler.Client }{memstore.New()})
		th.Fallback = fallback
		return leastAllocs(500, func() { _, _ = th.Authorize(t.Context(), rule) })
	}
	require.LessOrEqual(t, allocs(memstore.New()), allocs(nil)+forgotten)
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
	client.before = failing(errDown, "", "get", "multi")
	fallback.before = failing(alsoDown, "", "get", "multi")
	th := throttler.New(client)
	th.Fallback = fallback
	once := either(condition("a", 2, time.Minute))
	twice := either(condition("a", 2, time.Minute), condition("b", 2, time.Minute))
	twice.CountAuthorizedOnly = true
	for _, rule := range []throttler.Rule{once, twice} {
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Authorized, d.Status)
		require.ErrorIs(t, d.Err, errDown)
		require.ErrorIs(t, d.Err, alsoDown)
	}
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
