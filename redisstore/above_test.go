package redisstore_test

import (
	"context"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
	"github.com/stretchr/testify/require"
)

// What is above a store works over this one as over any other.

func TestFallbackDecidesWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	th := throttler.New(open(t, "redis://"+server.Addr))
	th.Fallback = memstore.New()
	server.Kill()
	admitted := 0
	for range 20 {
		d, err := th.Authorize(context.Background(), rule("a", 3))
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
		if d.Status == throttler.Authorized {
			admitted++
		}
	}
	require.Equal(t, 3, admitted)
}

func TestBlockCacheAnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	th := throttler.New(open(t, "redis://"+server.Addr))
	th.BlockCache = 100
	r := rule("a", 1)
	r.Lockout = time.Hour
	for range 3 {
		_, err := th.Authorize(context.Background(), r)
		require.NoError(t, err)
	}
	server.Command("CONFIG", "RESETSTAT")
	d, err := th.Authorize(context.Background(), r)
	require.NoError(t, err)
	require.True(t, d.Outcomes[0].Banned)
	require.Zero(t, calls(server, "get")+calls(server, "evalsha"))
	require.NoError(t, th.Reset(context.Background(), r))
	d, err = th.Authorize(context.Background(), r)
	require.NoError(t, err)
	require.Equal(t, throttler.Authorized, d.Status)
}

func TestWaitCancelBansAndReceipts(t *testing.T) {
	t.Parallel()
	url := "redis://" + servertest.NewRedis(t).Addr
	th, other := throttler.New(open(t, url)), throttler.New(open(t, url))
	r := rule("a", 1)
	r.Either[0].TTL = 300 * time.Millisecond
	ctx := context.Background()
	begun := time.Now()
	for range 3 {
		d, err := th.Wait(ctx, r)
		require.NoError(t, err)
		require.NoError(t, d.Err)
	}
	require.GreaterOrEqual(t, time.Since(begun), 600*time.Millisecond)

	d, err := th.Authorize(ctx, rule("b", 1))
	require.NoError(t, err)
	blocked, err := other.Authorize(ctx, rule("b", 1))
	require.NoError(t, err)
	require.Equal(t, throttler.Blocked, blocked.Status)
	handed, err := other.Redeem(d.Receipt())
	require.NoError(t, err)
	require.NoError(t, other.Cancel(ctx, handed), "another process takes the hit back")
	again, err := th.Authorize(ctx, rule("b", 1))
	require.NoError(t, err)
	require.Equal(t, throttler.Authorized, again.Status)

	require.NoError(t, th.Ban(ctx, rule("c", 5), 40*24*time.Hour))
	banned, err := other.Authorize(ctx, rule("c", 5))
	require.NoError(t, err)
	require.True(t, banned.Outcomes[0].Banned)
	require.Greater(t, banned.RetryAfter, 39*24*time.Hour)
}

func TestTheLoginGuardAndTheTally(t *testing.T) {
	t.Parallel()
	url := "redis://" + servertest.NewRedis(t).Addr
	counts := tally.New()
	th := throttler.New(open(t, url))
	th.Observe = counts.Observe
	guard, other := login.New(th), login.New(throttler.New(open(t, url)))
	addr := netip.MustParseAddr("203.0.113.7")
	guesses := 0
	for i := range 200 {
		g := []*login.Guard{guard, other}[i%2]
		attempt, err := g.Begin(context.Background(), "alice", addr)
		require.NoError(t, err)
		require.NoError(t, attempt.Decision.Err)
		if attempt.Decision.Status == throttler.Authorized {
			guesses++
			require.NoError(t, attempt.Fail(context.Background()))
		}
	}
	require.Positive(t, guesses)
	require.Less(t, guesses, 24, "two processes count together")
	attempt, err := guard.Begin(context.Background(), "bob", netip.MustParseAddr("198.51.100.1"))
	require.NoError(t, err)
	require.NoError(t, attempt.Succeed(context.Background()))
	page := httptest.NewRecorder()
	counts.ServeHTTP(page, httptest.NewRequest("GET", "/", nil))
	require.Contains(t, page.Body.String(), "login")
}
