package login_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// keyed returns a guard over client with a key, and those before it.
func keyed(t *testing.T, client throttler.Client, key string, olds ...string) try {
	g := on(t, client)
	g.Keys = [][]byte{[]byte(key)}
	for _, old := range olds {
		g.Keys = append(g.Keys, []byte(old))
	}
	return g
}

// While memcached is down, an owner gets in where they logged in before.
func TestAnOutageMakesNoStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &wire{Client: memstore.New()}
		limits := throttler.New(client)
		limits.Fallback = memstore.New()
		g := login.New(limits)
		begin := func(device string) *login.Attempt {
			a, err := g.Begin(login.WithDevice(t.Context(), device), "alice", home)
			require.NoError(t, err)
			return a
		}
		require.NoError(t, begin("phone").Succeed(t.Context()))
		client.breaks()
		for i := range 30 {
			a, err := g.Begin(t.Context(), "alice", addr(i))
			require.NoError(t, err)
			require.Error(t, a.Decision.Err)
			a.Fail(t.Context())
		}
		a, err := g.Begin(t.Context(), "alice", away)
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, a.Decision.Status)
		require.Equal(t, throttler.Authorized, begin("").Decision.Status)
		require.Equal(t, throttler.Authorized, begin("phone").Decision.Status)
	})
}
