package pool_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/storetest"
	"github.com/stretchr/testify/require"
)

func TestWhatIsSentTwiceIsCarriedOutOnce(t *testing.T) {
	storetest.RunFaults(t, servertest.NewMemcached(t).Addr, func(t *testing.T, addr string, timeout time.Duration) throttler.Client {
		p, err := pool.New(addr)
		require.NoError(t, err)
		p.Timeout, p.DialTimeout, p.QueueTimeout = timeout, 10*time.Second, 10*time.Second
		t.Cleanup(func() { p.Close() })
		return p
	})
}

func TestOutages(t *testing.T) {
	storetest.RunOutages(t, servertest.NewMemcached(t).Addr, func(t *testing.T, addr string, timeout time.Duration, failures int, pause time.Duration) throttler.Client {
		p, err := pool.New(addr)
		require.NoError(t, err)
		p.Timeout, p.DialTimeout, p.BreakerFailures, p.BreakerPause = timeout, timeout, failures, pause
		t.Cleanup(func() { p.Close() })
		return p
	})
}
