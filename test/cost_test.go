package throttler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

func costing(c throttler.Condition, cost int) throttler.Condition {
	c.Cost = cost
	return c
}

// Another call fills a condition after this one was found to have room everywhere.
func TestRetryAfterIsWithoutTheCostsThatWereGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		narrow := costing(condition("narrow", 6, time.Second), 6)
		rule := either(costing(condition("wide", 10, time.Hour), 6), narrow)
		rule.CountAuthorizedOnly = true
		th := throttler.New(overtaken(store, func() { authorize(t, throttler.New(store), either(narrow)) }))
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, []string{"narrow is full"}, d.Messages)
		require.Equal(t, []int{10, 0}, remaining(d))
		require.Equal(t, time.Second, d.RetryAfter)
		require.Zero(t, d.Outcomes[0].RetryAfter)
		require.NoError(t, th.Cancel(t.Context(), d), "there is nothing to cancel")
		require.Equal(t, 10, left(t, th, rule.Either[0]))
	})
}
