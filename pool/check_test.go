package pool_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/require"
)

// told keeps what Forgot is told.
type told struct {
	mu   sync.Mutex
	news []string
}

func (l *told) forgot(server string, loss pool.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = append(l.news, fmt.Sprint(server, loss))
}

func TestWhatAServerForgetsIsNoticed(t *testing.T) {
	server := servertest.NewMemcached(t, "-m", "4")
	p := patient(t, server.Addr)
	var log told
	p.Forgot = log.forgot
	check := func() pool.ServerStats {
		t.Helper()
		require.NoError(t, p.Check(t.Context()))
		return p.Stats()[0]
	}
	server.Command(t, "flush_all")
	stats := check()
	require.Zero(t, stats.Loss, "it was before the first look")
	require.Equal(t, int64(4<<20), stats.MaxBytes)
	require.Zero(t, stats.Bytes)

	require.NoError(t, p.Add(item("key")))
	stats = check()
	require.Zero(t, stats.Loss)
	require.Positive(t, stats.Bytes)

	server.Command(t, "flush_all")
	require.Equal(t, pool.Loss{Flushes: 1}, check().Loss)
	require.Equal(t, pool.Loss{Flushes: 1}, check().Loss, "once")

	for i := range 100 {
		server.Command(t, fmt.Sprintf("set big%d 0 0 100000\r\n%s", i, strings.Repeat("x", 100_000)))
	}
	evicted := check().Loss
	require.Positive(t, evicted.Evictions)
	require.Zero(t, evicted.Restarts)

	server.Stop()
	require.ErrorContains(t, p.Check(t.Context()), server.Addr)
	require.Zero(t, p.Stats()[0].MaxBytes, "it does not answer")
	require.Equal(t, evicted, p.Stats()[0].Loss)
	server.Start()
	want := evicted
	want.Restarts = 1
	require.Equal(t, want, check().Loss, "what it counts begins at 0 again, and these do not")
	require.Equal(t, []string{
		server.Addr + "{0 1 0}", fmt.Sprintf("%s{0 0 %d}", server.Addr, evicted.Evictions), server.Addr + "{1 0 0}",
	}, log.news)
}

// running are the statistics of a server that was started at a time.
func running(pid, started, uptime int) string {
	return fmt.Sprintf("STAT pid %d\r\nSTAT uptime %d\r\nSTAT time %d\r\nSTAT version 1.6.18\r\nEND\r\n", pid, uptime, started+uptime)
}

func TestServersAreWatchedUntilCtxEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &station{answer: says(running(1, 1000, 5))}
		p := s.newPool(t, one)
		asked := 0 // so far
		asks := func(want int) {
			t.Helper()
			asked += len(s.heard())
			require.Equal(t, want, asked)
		}
		var log told
		p.Forgot = log.forgot
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Watch(ctx, time.Minute) }()
		for _, step := range []struct {
			stats string
			want  uint64 // restarts so far
		}{
			{running(1, 1000, 65), 0},
			{running(1, 1200, 3), 1}, // in a container the pid is always 1
			{running(2, 1200, 63), 2},
			{"ERROR\r\n", 2},
			{running(2, 1200, 183), 2},
		} {
			synctest.Wait()
			s.now(says(step.stats))
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, step.want, p.Stats()[0].Loss.Restarts, "%q", step.stats)
		}
		require.Len(t, log.news, 2)
		asks(6)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		go func() { ended <- p.Watch(t.Context(), 0) }()
		synctest.Wait()
		asks(7)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		asks(8)
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-ended, pool.ErrClosed)
		require.ErrorIs(t, p.Check(t.Context()), pool.ErrClosed)
	})
}

func TestASocketIsCheckedWhateverItsName(t *testing.T) {
	dir, name := filepath.Split(servertest.NewMemcachedSocket(t).Addr)
	t.Chdir(dir)
	p := patient(t, "unix:"+name)
	require.NoError(t, p.Check(t.Context()))
	require.Positive(t, p.Stats()[0].MaxBytes)
}
