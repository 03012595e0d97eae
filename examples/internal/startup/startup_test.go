package startup_test

import (
	"errors"
	"flag"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/examples/internal/startup"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
)

func newFlags() *flag.FlagSet { return flag.NewFlagSet("program", flag.ContinueOnError) }

func TestCountsAreKeptInTheServersThatAreGiven(t *testing.T) {
	flags := newFlags()
	servers := startup.Memcached(flags)
	require.NoError(t, startup.Parse(flags, []string{"-memcached", "127.0.0.1:1", "-memcached", "127.0.0.1:2"}, io.Discard))
	client, closeClient, err := servers.Client()
	require.NoError(t, err)
	require.Len(t, client.(*pool.Pool).Stats(), 2)
	require.NoError(t, closeClient())
}

func TestCountsAreKeptInTheProcessWithoutServers(t *testing.T) {
	client, closeClient, err := startup.Servers{}.Client()
	require.NoError(t, err)
	require.IsType(t, new(memstore.Store), client)
	require.NoError(t, closeClient())
}

func TestAServerThatCannotBeOneIsNamedWithItsFlag(t *testing.T) {
	_, _, err := startup.Servers{"127.0.0.1:1", "127.0.0.1:1"}.Client()
	require.ErrorContains(t, err, "-memcached: ")
}

func TestProxiesAreTrusted(t *testing.T) {
	var source httpthrottle.Source
	flags := newFlags()
	startup.Proxy(flags, &source)
	require.NoError(t, startup.Parse(flags, []string{"-proxy", "10.0.0.0/8", "-proxy", "::1/128"}, io.Discard))
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}, source.Trusted)
	require.ErrorContains(t, startup.Parse(flags, []string{"-proxy", "10"}, io.Discard), "10")
}

func TestHelpIsNoMistake(t *testing.T) {
	var stderr strings.Builder
	flags := newFlags()
	startup.Memcached(flags)
	err := startup.Parse(flags, []string{"-h"}, &stderr)
	require.Zero(t, startup.Misused("program", err, &stderr))
	require.Contains(t, stderr.String(), "host:port")
}

func TestMistakesInTheFlagsAreReportedOnce(t *testing.T) {
	for _, args := range [][]string{{"-unknown"}, {"argument"}} {
		var stderr strings.Builder
		err := startup.Parse(newFlags(), args, &stderr)
		require.Equal(t, 2, startup.Misused("program", err, &stderr))
		require.Equal(t, "program: "+err.Error()+"\n(program -h lists the flags)\n", stderr.String())
		require.Contains(t, err.Error(), args[0])
	}
}

func TestFailuresAreReported(t *testing.T) {
	var stderr strings.Builder
	require.Zero(t, startup.Ended("program", nil, &stderr))
	require.Empty(t, stderr.String())
	require.Equal(t, 1, startup.Ended("program", errors.New("no disk"), &stderr))
	require.Equal(t, "program: no disk\n", stderr.String())
}
