package memstore_test

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// realClient returns a client of a memcached process that stops with the test.
func realClient(tb testing.TB) *memcache.Client {
	c := memcache.New(memcachedProcess(tb, "-m", "256"))
	c.Timeout = 10 * time.Second
	tb.Cleanup(func() { c.Close() })
	return c
}

// memcachedProcess starts the memcached found in PATH with args on a free port
// of 127.0.0.1 and returns its address once it answers. Without memcached the
// test is skipped, or fails if THROTTLER_REQUIRE_MEMCACHED is 1.
func memcachedProcess(tb testing.TB, args ...string) string {
	tb.Helper()
	path, err := exec.LookPath("memcached")
	if err != nil {
		if os.Getenv("THROTTLER_REQUIRE_MEMCACHED") == "1" {
			tb.Fatal("no memcached in PATH: install the package memcached")
		}
		tb.Skip("no memcached in PATH: install the package memcached")
	}
	addr := freeAddr(tb)
	host, port, err := net.SplitHostPort(addr)
	require.NoError(tb, err)
	args = append([]string{"-l", host, "-p", port, "-U", "0"}, args...)
	if os.Getuid() == 0 {
		args = append(args, "-u", "root")
	}
	cmd := exec.Command(path, args...)
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
	})
	require.Eventually(tb, func() bool { return memcache.New(addr).Ping() == nil },
		5*time.Second, 5*time.Millisecond, "memcached does not answer on %s", addr)
	return addr
}

// freeAddr returns an address that nobody listened on a moment ago.
func freeAddr(tb testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	defer l.Close()
	return l.Addr().String()
}
