package pool_test

import (
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Limits behind a real twemproxy with two servers: each value is authorized exactly
// as often as it may be. While one of the servers is away its values are open, the
// others' are limited, and the breaker stays closed, since the proxy answers.
func TestLimitsBehindTwemproxy(t *testing.T) {
	path, err := exec.LookPath("nutcracker")
	if err != nil {
		skiptest.Skip(t, "twemproxy is not installed: apt-get install nutcracker")
	}
	first, second := servertest.NewMemcached(t), servertest.NewMemcached(t)
	p := patient(t, twemproxy(t, path, first.Addr+":1\n   - "+second.Addr))
	p.Proxy = true
	th := throttler.New(p)
	const values, limit = 40, 5
	authorize := func(round, value int) throttler.Decision {
		// Its hash, fnv1a_64, keeps keys together that differ near their ends.
		identifier := fmt.Sprintf("%d-%d", value, round)
		d, err := th.Authorize(t.Context(), throttler.Rule{Identifier: identifier, Either: []throttler.Condition{
			{Name: "value", Value: "value", Max: limit, TTL: time.Hour},
		}})
		assert.NoError(t, err)
		return d
	}
	var admitted [values]atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := range 2 * values {
				if d := authorize(0, i%values); assert.NoError(t, d.Err) && d.Status == throttler.Authorized {
					admitted[i%values].Add(1)
				}
			}
		})
	}
	callers.Wait()
	for i := range admitted {
		require.Equal(t, int64(limit), admitted[i].Load())
	}

	second.Kill()
	open := 0
	for i := range values {
		if authorize(1, i).Err != nil {
			open++
			continue
		}
		for range limit - 1 {
			require.Equal(t, throttler.Authorized, authorize(1, i).Status)
		}
		d := authorize(1, i)
		require.NoError(t, d.Err)
		require.Equal(t, throttler.Blocked, d.Status)
	}
	require.NotZero(t, open)
	require.Less(t, open, values)
	require.False(t, p.Stats()[0].Down)
	second.Start()
	require.Eventually(t, func() bool {
		for i := range values {
			if authorize(2, i).Err != nil {
				return false
			}
		}
		return true
	}, 30*time.Second, 50*time.Millisecond)
}
