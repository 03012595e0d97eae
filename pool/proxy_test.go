package pool_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Limits behind a real twemproxy with two servers: each value is authorized exactly
// as often as it may be. While one of the servers is away its values are open, the
// others' are limited, and the breaker stays closed, since the proxy answers. When it is back,
// its values begin anew: the connection to the proxy has stayed, but no token of before counts.
func TestLimitsBehindTwemproxy(t *testing.T) {
	path, err := exec.LookPath("nutcracker")
	if err != nil {
		skiptest.Skip(t, "twemproxy is not installed: apt-get install nutcracker")
	}
	first, second := servertest.NewMemcached(t), servertest.NewMemcached(t)
	p := patient(t, twemproxy(t, path, first.Addr+":1\n   - "+second.Addr))
	p.Proxy = true
	th := throttler.New(p)
	const values, limit = 40, 5
	authorize := func(round, value int) throttler.Decision {
		// Its hash, fnv1a_64, keeps keys together that differ near their ends.
		identifier := fmt.Sprintf("%d-%d", value, round)
		d, err := th.Authorize(t.Context(), throttler.Rule{Identifier: identifier, Either: []throttler.Condition{
			{Name: "value", Value: "value", Max: limit, TTL: time.Hour},
		}})
		assert.NoError(t, err)
		return d
	}
	var admitted [values]atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := range 2 * values {
				if d := authorize(0, i%values); assert.NoError(t, d.Err) && d.Status == throttler.Authorized {
					admitted[i%values].Add(1)
				}
			}
		})
	}
	callers.Wait()
	for i := range admitted {
		require.Equal(t, int64(limit), admitted[i].Load())
	}

	second.Kill()
	open, gone := 0, make(map[int]bool)
	for i := range values {
		gone[i] = authorize(0, i).Err != nil
		if authorize(1, i).Err != nil {
			open++
			continue
		}
		for range limit - 1 {
			require.Equal(t, throttler.Authorized, authorize(1, i).Status)
		}
		d := authorize(1, i)
		require.NoError(t, d.Err)
		require.Equal(t, throttler.Blocked, d.Status)
	}
	require.NotZero(t, open)
	require.Less(t, open, values)
	require.False(t, p.Stats()[0].Down)
	second.Start()
	require.Eventually(t, func() bool {
		for i := range values {
			if authorize(2, i).Err != nil {
				return false
			}
		}
		return true
	}, 30*time.Second, 50*time.Millisecond)
	var keys []string
	for i := range values {
		again := 0
		for range limit + 1 {
			d := authorize(0, i)
			require.NoError(t, d.Err)
			again += int(d.Status)
		}
		require.Equal(t, map[bool]int{true: limit}[gone[i]], again)
		keys = append(keys, throttler.RecordKey(fmt.Sprintf("%d-0", i), "value", "value"))
	}
	items, err := p.GetMulti(keys)
	require.NoError(t, err)
	require.Len(t, items, values)
}

// twemproxy starts a proxy of the server at addr and returns its address.
func twemproxy(t *testing.T, path, addr string) string {
	t.Helper()
	listen, err1 := servertest.FreeAddr(servertest.OtherPorts)
	stats, err2 := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, errors.Join(err1, err2))
	_, statsPort, _ := net.SplitHostPort(stats)

	config := filepath.Join(t.TempDir(), "nutcracker.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"pool:\n  listen: %s\n  hash: fnv1a_64\n  distribution: ketama\n  auto_eject_hosts: false\n  timeout: 10000\n"+
			"  server_retry_timeout: 50\n  servers:\n   - %s:1\n", listen, addr), 0o600))
	cmd := exec.Command(path, "-c", config, "-a", "127.0.0.1", "-s", statsPort)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", listen)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	return listen
}
