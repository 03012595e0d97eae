package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/require"
)

// A server without memory refuses, so nothing was carried out, and it may be tried again.
func TestWhatAServerWithoutMemoryRefusesIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket, throttler.Calendar} {
		server := servertest.NewRedis(t, "--maxmemory-policy", "noeviction")
		s := open(t, "redis://"+server.Addr)
		th := throttler.New(s)
		ctx := context.Background()
		costly := func(value string) throttler.Rule {
			r := rule(value, 5)
			r.Either[0].Algorithm, r.Either[0].Cost = algorithm, 3
			if algorithm == throttler.Calendar {
				r.Either[0].TTL, r.Either[0].Period = 0, throttler.Period{Unit: throttler.Month}
			}
			return r
		}
		take := func(value string) throttler.Decision {
			d, err := th.Authorize(ctx, costly(value))
			require.NoError(t, err)
			require.NoError(t, d.Err)
			return d
		}
		canceled, settled := take("canceled"), take("settled")
		server.Command("CONFIG", "SET", "maxmemory", "1")
		for range 2 {
			err := th.Cancel(ctx, canceled)
			require.ErrorContains(t, err, "raise maxmemory")
			require.NotContains(t, err.Error(), "unknown")
			d, err := th.Settle(ctx, settled, map[string]int{"ip": 1})
			require.ErrorContains(t, errors.Join(err, d.Err), "raise maxmemory")
			require.NotContains(t, errors.Join(err, d.Err).Error(), "unknown")
		}
		server.Command("CONFIG", "SET", "maxmemory", "0")
		require.NoError(t, th.Cancel(ctx, canceled))
		_, err := th.Settle(ctx, settled, map[string]int{"ip": 1})
		require.NoError(t, err)
		for value, counted := range map[string]int{"canceled": 0, "settled": 1} {
			d, err := th.Peek(ctx, costly(value))
			require.NoError(t, err)
			require.Equal(t, 5-counted-3, d.Outcomes[0].Remaining, value)
		}
	}
}
