package servertest_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

func TestAny(t *testing.T) {
	t.Run("one's own", func(t *testing.T) {
		t.Setenv("THROTTLER_MEMCACHED_ADDR", "")
		servertest.AnyMemcached(t).Stop()
	})
	t.Run("the user's", func(t *testing.T) {
		theirs := servertest.NewMemcached(t)
		t.Setenv("THROTTLER_MEMCACHED_ADDR", theirs.Addr)
		require.Equal(t, theirs.Addr, servertest.AnyMemcached(t).Addr)
		require.NotEqual(t, theirs.Addr, servertest.AnyMemcached(t, "-C").Addr, "with args it must be one's own")
	})
	t.Run("nobody's", func(t *testing.T) {
		t.Setenv("THROTTLER_MEMCACHED_ADDR", "127.0.0.1:1")
		got := outcome(t, func(tb testing.TB) { servertest.AnyMemcached(tb) })
		require.True(t, got.failed)
		require.Contains(t, got.message, "THROTTLER_MEMCACHED_ADDR")
	})
}

func TestUsersServerIsNotStopped(t *testing.T) {
	theirs := servertest.NewMemcached(t)
	t.Setenv("THROTTLER_MEMCACHED_ADDR", theirs.Addr)
	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "")
	got := outcome(t, func(tb testing.TB) { servertest.AnyMemcached(tb).Stop() })
	require.True(t, got.skipped)
	require.NoError(t, theirs.Ping(time.Minute))
}

func TestMissingMemcachedSkipsOrFails(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := exec.LookPath("memcached")
	require.Error(t, err)

	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "")
	got := outcome(t, func(tb testing.TB) { servertest.NewMemcached(tb) })
	require.True(t, got.skipped)
	require.Contains(t, got.message, "apt-get install memcached")
	require.NotContains(t, got.message, "\n")

	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "1")
	got = outcome(t, func(tb testing.TB) { servertest.NewMemcached(tb) })
	require.True(t, got.failed)
}

func TestAnyFallsBackToAContainer(t *testing.T) {
	theirs := servertest.NewMemcached(t)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("THROTTLER_MEMCACHED_ADDR", "")
	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "")
	t.Cleanup(func() { servertest.Container = nil })
	servertest.Container = func(testing.TB, ...string) (*servertest.Memcached, error) { return theirs, nil }
	require.Same(t, theirs, servertest.AnyMemcached(t))

	servertest.Container = func(testing.TB, ...string) (*servertest.Memcached, error) { return nil, errors.New("no Docker") }
	got := outcome(t, func(tb testing.TB) { servertest.AnyMemcached(tb) })
	require.True(t, got.skipped)
	require.Contains(t, got.message, "apt-get install memcached")
}

func TestAPausedServerAnswersNothingMore(t *testing.T) {
	server := servertest.NewMemcached(t)
	for range 20 {
		server.Pause()
		server.Pause() // does nothing
		require.Error(t, server.Ping(5*time.Millisecond))
		server.Resume()
		require.NoError(t, server.Ping(time.Minute))
	}
}

// Another server may have taken the port that was free a moment ago.
func TestAServerIsNotTakenForAnotherAtItsAddress(t *testing.T) {
	m, r := servertest.NewMemcachedSocket(t), servertest.NewRedisSocket(t)
	for _, other := range []*servertest.Process{servertest.MemcachedProcess("", m.Addr), servertest.RedisProcess("", r.Addr)} {
		own, err := other.Answers(os.Getpid(), time.Minute)
		require.NoError(t, err)
		require.False(t, own)
	}
}
