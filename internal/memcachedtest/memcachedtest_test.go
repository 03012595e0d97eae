package memcachedtest_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

func TestAny(t *testing.T) {
	t.Run("one's own", func(t *testing.T) {
		t.Setenv("THROTTLER_MEMCACHED_ADDR", "")
		memcachedtest.Any(t).Stop()
	})
	t.Run("the user's", func(t *testing.T) {
		theirs := memcachedtest.Process(t)
		t.Setenv("THROTTLER_MEMCACHED_ADDR", theirs.Addr)
		require.Equal(t, theirs.Addr, memcachedtest.Any(t).Addr)
		require.NotEqual(t, theirs.Addr, memcachedtest.Any(t, "-C").Addr, "with args it must be one's own")
	})
	t.Run("nobody's", func(t *testing.T) {
		t.Setenv("THROTTLER_MEMCACHED_ADDR", "127.0.0.1:1")
		got := outcome(t, func(tb testing.TB) { memcachedtest.Any(tb) })
		require.True(t, got.failed)
		require.Contains(t, got.message, "THROTTLER_MEMCACHED_ADDR")
	})
}

func TestUsersServerIsNotStopped(t *testing.T) {
	theirs := memcachedtest.Process(t)
	t.Setenv("THROTTLER_MEMCACHED_ADDR", theirs.Addr)
	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "")
	got := outcome(t, func(tb testing.TB) { memcachedtest.Any(tb).Stop() })
	require.True(t, got.skipped)
	require.NoError(t, theirs.Ping(time.Minute))
}

func TestMissingMemcachedSkipsOrFails(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := exec.LookPath("memcached")
	require.Error(t, err)

	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "")
	got := outcome(t, func(tb testing.TB) { memcachedtest.Process(tb) })
	require.True(t, got.skipped)
	require.Contains(t, got.message, "apt-get install memcached")
	require.NotContains(t, got.message, "\n")

	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "1")
	got = outcome(t, func(tb testing.TB) { memcachedtest.Process(tb) })
	require.True(t, got.failed)
}

func TestAnyFallsBackToAContainer(t *testing.T) {
	theirs := memcachedtest.Process(t)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("THROTTLER_MEMCACHED_ADDR", "")
	t.Setenv("THROTTLER_REQUIRE_MEMCACHED", "")
	t.Cleanup(func() { memcachedtest.Container = nil })
	memcachedtest.Container = func(testing.TB, ...string) (*memcachedtest.Server, error) { return theirs, nil }
	require.Same(t, theirs, memcachedtest.Any(t))

	memcachedtest.Container = func(testing.TB, ...string) (*memcachedtest.Server, error) { return nil, errors.New("no Docker") }
	got := outcome(t, func(tb testing.TB) { memcachedtest.Any(tb) })
	require.True(t, got.skipped)
	require.Contains(t, got.message, "apt-get install memcached")
}

func TestAPausedServerAnswersNothingMore(t *testing.T) {
	server := memcachedtest.Process(t)
	for range 20 {
		server.Pause()
		server.Pause() // does nothing
		require.Error(t, server.Ping(5*time.Millisecond))
		server.Resume()
		require.NoError(t, server.Ping(time.Minute))
	}
}
