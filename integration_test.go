package throttler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/containertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/require"
)

// However many throttlers and callers there are, exactly Max calls are authorized: over a real
// memcached in a container.
func TestExactlyMaxIsAuthorizedOverMemcached(t *testing.T) {
	server := containertest.Memcached(t)
	rule := throttler.Rule{
		Identifier: "exact",
		Either:     []throttler.Condition{{Name: "calls", Value: t.Name(), Max: 50, TTL: time.Hour}},
	}
	var authorized, failed atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		servers, err := pool.New(server.Addr)
		require.NoError(t, err)
		defer servers.Close()
		servers.Timeout = 20 * time.Second // a busy machine is no failure of the server
		limits := throttler.New(servers)
		for range 8 {
			callers.Go(func() {
				for range 10 {
					switch d, err := limits.Authorize(context.Background(), rule); {
					case err != nil || d.Err != nil:
						failed.Add(1)
					case d.Status == throttler.Authorized:
						authorized.Add(1)
					}
				}
			})
		}
	}
	callers.Wait()
	require.Zero(t, failed.Load())
	require.EqualValues(t, 50, authorized.Load())
}
