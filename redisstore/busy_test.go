package redisstore_test

import (
	"testing"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

func TestABusyProcessKeepsItsLimitsOverRedis(t *testing.T) {
	servertest.RunBusy(t, servertest.Compute, map[string]func(t *testing.T) throttler.Client{
		"opened": func(t *testing.T) throttler.Client {
			s, err := redisstore.Open("redis://" + servertest.NewRedis(t).Addr)
			require.NoError(t, err)
			t.Cleanup(func() { s.Close() })
			return s
		},
		"of a client": func(t *testing.T) throttler.Client {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{servertest.NewRedis(t).Addr}, DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			s := redisstore.New(client)
			t.Cleanup(func() { s.Close() })
			return s
		},
	})
}
