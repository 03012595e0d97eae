package main

import (
	"context"
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
	s, err := start(t.Context(), kind, network)
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
				_, err = conn.Write([]byte(kinds[kind].hello))
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

// Another server may have taken the port that was free a moment ago.
func TestServerIsNotTakenForAnotherAtItsAddress(t *testing.T) {
	other, s := started(t, onMemcached, "unix"), started(t, onMemcached, "unix")
	require.NoError(t, s.greet())
	s.addr = other.addr
	require.ErrorContains(t, s.greet(), "another program")
}

func TestMissingServerSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := start(t.Context(), onRedis, "unix")
	require.ErrorIs(t, err, errNotInstalled)
	require.ErrorContains(t, err, "install the package redis-server")
}

func TestServerThatEndsAtOnceSaysWhy(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/memcached", []byte("#!/bin/sh\necho no memory; exit 3\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	_, err := start(t.Context(), onMemcached, "unix")
	require.ErrorContains(t, err, "no memory")
	require.ErrorContains(t, err, "exit status 3")
}

func TestStartEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/memcached", []byte("#!/bin/sh\nexec sleep 60\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := start(ctx, onMemcached, "unix")
	require.ErrorContains(t, err, "does not answer")
	require.Less(t, time.Since(begin), patience)
}
