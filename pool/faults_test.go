package pool_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/storetest"
	"github.com/stretchr/testify/require"
)

func TestWhatIsSentTwiceIsCarriedOutOnce(t *testing.T) {
	storetest.RunFaults(t, memcachedtest.Process(t).Addr, func(t *testing.T, addr string, timeout time.Duration) throttler.Client {
		p, err := pool.New(addr)
		require.NoError(t, err)
		p.Timeout, p.QueueTimeout = timeout, 10*time.Second
		t.Cleanup(func() { p.Close() })
		return p
	})
}
