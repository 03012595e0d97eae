package main

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// started returns a server that ends with the test, which is skipped where it is
// not installed, unless it is a memcached that THROTTLER_REQUIRE_MEMCACHED asks for.
func started(t *testing.T, kind backend, network string) *server {
	t.Helper()
	s, err := start(kind, network)
	if errors.Is(err, errNotInstalled) && (kind != onMemcached || os.Getenv("THROTTLER_REQUIRE_MEMCACHED") != "1") {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(s.stop)
	return s
}

// staged returns a stage with both servers, for rounds of a few milliseconds.
func staged(t *testing.T) *stage {
	t.Helper()
	return &stage{
		servers: map[backend]*server{onMemcached: started(t, onMemcached, "unix"), onRedis: started(t, onRedis, "unix")},
		rounds:  1, slice: 4 * time.Millisecond,
		report: t.Logf,
	}
}

func TestServersAnswerAndLeaveNothingBehind(t *testing.T) {
	for _, kind := range []backend{onMemcached, onRedis} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(kinds[kind].program+" "+network, func(t *testing.T) {
				s := started(t, kind, network)
				var trips counter
				conn, err := s.dialer(&trips)(t.Context())
				require.NoError(t, err)
				_, err = conn.Write([]byte("\r\n"))
				require.NoError(t, err)
				require.NoError(t, conn.Close())
				require.Equal(t, int64(1), trips.Load())
				require.Regexp(t, `\d+\.\d+`, s.version())

				s.stop()
				_, err = net.Dial(s.network, s.addr)
				require.Error(t, err)
				require.NoDirExists(t, s.dir)
			})
		}
	}
}

func TestMissingServerSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := start(onRedis, "unix")
	require.ErrorIs(t, err, errNotInstalled)
	require.ErrorContains(t, err, "install the package redis-server")
}

func TestServerThatEndsAtOnceSaysWhy(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/memcached", []byte("#!/bin/sh\necho no memory; exit 3\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	_, err := start(onMemcached, "unix")
	require.ErrorContains(t, err, "no memory")
	require.ErrorContains(t, err, "exit status 3")
}
