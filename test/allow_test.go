package throttler_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// blockedBy requires that err is a BlockedError, and returns its Decision.
func blockedBy(t *testing.T, err error) throttler.Decision {
	t.Helper()
	var blocked *throttler.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.ErrorIs(t, err, throttler.ErrBlocked)
	require.Equal(t, throttler.Blocked, blocked.Decision.Status)
	return blocked.Decision
}

func TestAllowSaysWhyAndWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := either(condition("second", 1, time.Second), condition("day", 1, 24*time.Hour), condition("free", 9, time.Hour))
		require.NoError(t, th.Allow(t.Context(), rule))
		time.Sleep(time.Nanosecond)
		err := th.Allow(t.Context(), rule)
		require.EqualError(t, err, "throttler: blocked: second is full, day is full; try again in 24h0m0s", "rounded up to a millisecond")
		d := blockedBy(t, err)
		require.Equal(t, 24*time.Hour-1, d.RetryAfter)
		require.Equal(t, []int{0, 0, 7}, remaining(d))

		rule.Shadow = true
		require.NoError(t, th.Allow(t.Context(), rule))
	})
}

func TestAllowFailsOpen(t *testing.T) {
	client := newOutlet()
	th := throttler.New(client)
	rule := either(condition("c", 1, time.Minute))
	require.NoError(t, th.Allow(t.Context(), rule))
	blockedBy(t, th.Allow(t.Context(), rule))
	client.off.Store(true)
	require.NoError(t, th.Allow(t.Context(), rule))
	client.off.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, th.Allow(ctx, rule))
	rule.Either[0].Max = 0
	require.ErrorIs(t, th.Allow(ctx, rule), throttler.ErrInvalidRule)
}

// calls are all methods that take a ctx.
func everyMethod(ctx context.Context) map[string]func(*throttler.Throttler) {
	rule, d := either(condition("c", 1, time.Minute)), throttler.Decision{}
	work := func(context.Context) error { return nil }
	return map[string]func(*throttler.Throttler){
		"Authorize":  func(th *throttler.Throttler) { th.Authorize(ctx, rule) },
		"Allow":      func(th *throttler.Throttler) { th.Allow(ctx, rule) },
		"Peek":       func(th *throttler.Throttler) { th.Peek(ctx, rule) },
		"Wait":       func(th *throttler.Throttler) { th.Wait(ctx, rule) },
		"Cancel":     func(th *throttler.Throttler) { th.Cancel(ctx, d) },
		"CancelOnly": func(th *throttler.Throttler) { th.CancelOnly(ctx, d, rule) },
		"Refund":     func(th *throttler.Throttler) { th.Refund(ctx, rule) },
		"Reset":      func(th *throttler.Throttler) { th.Reset(ctx, rule) },
		"Ban":        func(th *throttler.Throttler) { th.Ban(ctx, rule, time.Hour) },
		"Settle":     func(th *throttler.Throttler) { th.Settle(ctx, d, total(1)) },
		"Hold":       func(th *throttler.Throttler) { th.Hold(ctx, d) },
		"Renew":      func(th *throttler.Throttler) { th.Renew(ctx, d) },
		"Do":         func(th *throttler.Throttler) { th.Do(ctx, rule, work) },
		"TryDo":      func(th *throttler.Throttler) { th.TryDo(ctx, rule, work) },
		"Spend": func(th *throttler.Throttler) {
			th.Spend(ctx, either(costing(rule.Either[0], 1)), func(context.Context) (int, error) { return 0, nil })
		},
	}
}

func TestAThrottlerThatNewHasNotMadeSaysSo(t *testing.T) {
	for name, call := range everyMethod(t.Context()) {
		for _, th := range []*throttler.Throttler{nil, {}, {BlockCache: 10, Fallback: memstore.New()}} {
			require.PanicsWithValue(t, "throttler: this Throttler has no store: make it by throttler.New, as in throttler.New(memstore.New())",
				func() { call(th) }, name)
		}
	}
}

func TestANilContextSaysWhatToPass(t *testing.T) {
	const hint = "throttler: nil ctx: pass that of the request, or context.Background()"
	th := throttler.New(memstore.New())
	var none context.Context
	for name, call := range everyMethod(none) {
		require.PanicsWithValue(t, hint, func() { call(th) }, name)
	}
	lease := th.Hold(t.Context(), throttler.Decision{})
	require.PanicsWithValue(t, hint, func() { lease.Release(none) })
}
