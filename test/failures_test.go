package throttler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// What a plain client's calls answer when a real server is gone, hangs or is killed.

// The defaults of a pool.
const (
	poolTimeout  = 250 * time.Millisecond // also DialTimeout
	poolFailures = 5
	poolPause    = time.Second
)

// Calls go on while the server is killed and comes back: none panics or is an
// error, those that fail are open, and afterwards it counts again.
func TestServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	server := servertest.NewMemcached(t)
	th := throttler.New(clientOf(t, server.Addr))
	rule := throttler.Rule{Identifier: "r", Either: conditions(3, 1000, time.Minute), Lockout: time.Hour, CountAuthorizedOnly: true}
	var sound, open, wrong, canceled atomic.Int64
	end := keepCalling(8, func() {
		d, err := th.Authorize(context.Background(), rule)
		switch {
		case err != nil || d.Status == throttler.Blocked:
			wrong.Add(1)
		case d.Err != nil:
			open.Add(1)
		default:
			sound.Add(1)
		}
		if th.Cancel(context.Background(), d) == nil {
			canceled.Add(1)
		}
	})
	defer end()
	await := func(n *atomic.Int64, what string) {
		before := n.Load()
		require.Eventually(t, func() bool { return n.Load() > before+50 }, time.Minute, time.Millisecond, what)
	}
	await(&sound, "calls that count")
	server.Kill()
	await(&open, "calls that fail open")
	server.Start()
	await(&sound, "calls that count again")
	end()
	require.Zero(t, wrong.Load())
	t.Logf("%d calls counted, %d failed open, %d canceled", sound.Load(), open.Load(), canceled.Load())

	rule.Either = conditions(1, 1, time.Minute)
	rule.Identifier = "after"
	d, err := th.Authorize(context.Background(), rule)
	for err == nil && d.Err != nil { // on a connection of the server that was killed
		d, err = th.Authorize(context.Background(), rule)
	}
	require.NoError(t, err)
	d, err = th.Authorize(context.Background(), rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	require.Equal(t, throttler.Blocked, d.Status)
}

// onServer returns a condition like c with a Value that the client keeps on
// server.
func onServer(t *testing.T, servers *memcache.ServerList, server *servertest.Memcached, id string, c throttler.Condition) throttler.Condition {
	for i := range 1000 {
		c.Value = fmt.Sprint(i)
		addr, err := servers.PickServer(id + "#" + c.Name + "#" + c.Value)
		require.NoError(t, err)
		if addr.String() == server.Addr {
			return c
		}
	}
	require.Fail(t, "1000 values and none on this server")
	return c
}

func TestOfTwoServersTheOneThatLivesCountsAndBlocks(t *testing.T) {
	t.Parallel()
	alive, dead := servertest.NewMemcached(t), servertest.NewMemcached(t)
	servers := new(memcache.ServerList)
	require.NoError(t, servers.SetServers(alive.Addr, dead.Addr))
	client := memcache.NewFromSelector(servers)
	client.Timeout = 20 * time.Second
	t.Cleanup(func() { client.Close() })
	th, id, ctx := throttler.New(client), uniqueID(), context.Background()
	here := onServer(t, servers, alive, id, limit("here", 3, time.Minute))
	here2 := onServer(t, servers, alive, id, limit("here-too", 9, time.Minute))
	there := onServer(t, servers, dead, id, limit("there", 2, time.Minute))
	rule := throttler.Rule{Identifier: id, Either: []throttler.Condition{there, here, here2}, Lockout: time.Hour}

	d, err := th.Authorize(ctx, rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	dead.Kill()
	for n := range 4 {
		for _, method := range []func(context.Context, throttler.Rule) (throttler.Decision, error){th.Peek, th.Authorize} {
			d, err := method(ctx, rule)
			require.NoError(t, err)
			require.Error(t, d.Outcomes[0].Err)
			require.False(t, d.Outcomes[0].Blocked)
			require.ErrorIs(t, d.Err, d.Outcomes[0].Err)
			require.NoError(t, d.Outcomes[1].Err)
			require.NoError(t, d.Outcomes[2].Err)
			require.Equal(t, n >= 2, d.Outcomes[1].Blocked, "after %d calls", n)
			require.Equal(t, n >= 2, d.Status == throttler.Blocked)
			require.Equal(t, 9-2-n, d.Outcomes[2].Remaining)
		}
	}
	// Even one that is not stored yet, so that the failed read told nothing of it.
	fresh := onServer(t, servers, alive, id, limit("fresh", 1, time.Minute))
	for _, want := range []throttler.Status{throttler.Authorized, throttler.Blocked} {
		d, err := th.Authorize(ctx, throttler.Rule{Identifier: id, Either: []throttler.Condition{there, fresh}})
		require.NoError(t, err)
		require.Error(t, d.Outcomes[0].Err)
		require.NoError(t, d.Outcomes[1].Err)
		require.Equal(t, want, d.Status)
	}
	rule.Either, rule.All = nil, rule.Either
	d, err = th.Authorize(ctx, rule)
	require.NoError(t, err)
	require.Equal(t, throttler.Authorized, d.Status, "all, of which one is open")

	// With a fallback the dead server's condition is counted as well.
	rule.Either, rule.All = []throttler.Condition{there, here2}, nil
	th = throttler.New(client)
	th.Fallback = memstore.New()
	for n := range 3 {
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.Error(t, d.Outcomes[0].Err)
		require.Equal(t, n == 2, d.Status == throttler.Blocked)
	}
}
