package throttler_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestABanThatCannotBeStoredIsAnError(t *testing.T) {
	sick := errors.New("sick")
	client := newFaulty()
	client.before = func(op string, _ ...string) error {
		if op == "add" {
			return sick
		}
		return nil
	}
	rule := one("login", throttler.Condition{Name: "ip", Value: "a", Max: 5, TTL: time.Minute})
	assert.ErrorIs(t, throttler.New(client).Ban(t.Context(), rule, time.Hour), sick)
}

// one returns a rule with a single condition.
func one(identifier string, c throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: identifier, Either: []throttler.Condition{c}}
}

func TestBanByHandHoldsAndALongerOneStays(t *testing.T) {
	for name, client := range kindsOfClient {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(client())
				rule := both()
				require.ErrorIs(t, th.Ban(t.Context(), rule, 0), throttler.ErrInvalidRule)
				require.ErrorIs(t, th.Ban(t.Context(), rule, -time.Second), throttler.ErrInvalidRule)
				require.ErrorIs(t, th.Ban(t.Context(), throttler.Rule{}, time.Second), throttler.ErrInvalidRule)
				begin := time.Now()
				require.NoError(t, th.Ban(t.Context(), rule, time.Hour))
				require.NoError(t, th.Ban(t.Context(), rule, time.Minute), "the longer one stays")
				for _, o := range authorize(t, th, rule).Outcomes {
					require.True(t, o.Banned)
					require.InDelta(t, time.Hour, o.RetryAfter+time.Since(begin), float64(2*roundTrip))
				}
				require.NoError(t, th.Ban(t.Context(), rule, 2*time.Hour))
				time.Sleep(time.Hour + time.Minute)
				require.True(t, authorize(t, th, rule).Outcomes[0].Banned)
				require.NoError(t, th.Reset(t.Context(), rule))
				require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
			})
		})
	}
}
