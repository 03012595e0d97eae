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

// How crowds wait is in limiters_test.go; here is what one Wait leaves as it is.

func TestWaitDoesNotForgetOffences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := growing(time.Minute, 0, 2)
		authorize(t, th, rule)
		require.Equal(t, time.Minute, authorize(t, th, rule).RetryAfter)
		time.Sleep(time.Minute)
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute, authorize(t, th, rule).RetryAfter)
	})
}

func TestWaitThatGivesUpIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		var seen []throttler.Status
		th.Observe = func(_ context.Context, r throttler.Rule, d throttler.Decision) {
			require.False(t, r.CountAuthorizedOnly, "the rule is the caller's")
			seen = append(seen, d.Status)
		}
		rule := either(condition("a", 1, time.Minute))
		done, cancel := context.WithCancel(t.Context())
		cancel()
		d, err := th.Wait(done, rule)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, throttler.Blocked, d.Status)

		_, err = th.Wait(t.Context(), rule)
		require.NoError(t, err)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		d, err = th.Wait(soon, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Zero(t, time.Since(start), "at once")
		require.Equal(t, []throttler.Status{throttler.Blocked, throttler.Authorized, throttler.Blocked}, seen)
	})
}
