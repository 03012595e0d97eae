package redisstore_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/storetest"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/redisstore"
)

func TestTheSuiteOverOneServer(t *testing.T) {
	t.Parallel()
	url := "redis://" + servertest.NewRedis(t).Addr
	storetest.Run(t, func(t *testing.T) throttler.Client { return open(t, url) })
}

func TestTheSuiteOverACluster(t *testing.T) {
	t.Parallel()
	nodes, opened := servertest.NewRedisCluster(t), 0
	storetest.Run(t, func(t *testing.T) throttler.Client { // by a primary, by a replica
		opened++
		return open(t, "redis://"+nodes[1+3*(opened%2)].Addr+"?prefix=app:")
	})
}

func TestTheSuiteOverSentinel(t *testing.T) {
	t.Parallel()
	url := "redis://" + servertest.NewSentinel(t).Sentinel.Addr + "?master_set=mymaster"
	storetest.Run(t, func(t *testing.T) throttler.Client { return open(t, url) })
}

// RESP2, as old servers and some managed ones speak, over a client that always pipelines.
func TestTheSuiteOverAnotherClient(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	storetest.Run(t, func(t *testing.T) throttler.Client {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{server.Addr}, AlwaysRESP2: true, AlwaysPipelining: true, DisableCache: true,
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		s := redisstore.New(client)
		s.Timeout, s.QueueTimeout = 10*time.Second, 10*time.Second
		t.Cleanup(func() { s.Close() })
		return s
	})
}

func TestWhatIsSentTwiceIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	storetest.RunFaults(t, servertest.NewRedis(t).Addr, func(t *testing.T, addr string, timeout time.Duration) throttler.Client {
		s := open(t, "redis://"+addr)
		s.Timeout = timeout
		return s
	})
}

func TestOutages(t *testing.T) {
	t.Parallel()
	storetest.RunOutages(t, servertest.NewRedis(t).Addr, func(t *testing.T, addr string, timeout time.Duration, failures int, pause time.Duration) throttler.Client {
		s := open(t, "redis://"+addr)
		s.Timeout, s.BreakerFailures, s.BreakerPause = timeout, failures, pause
		return s
	})
}
