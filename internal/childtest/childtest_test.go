package childtest_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/childtest"
)

func TestAFreeAddrCanBeListenedAtAndATakenOneIsNotFree(t *testing.T) {
	addr, err := childtest.FreeAddr(childtest.Memcached)
	require.NoError(t, err)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	require.GreaterOrEqual(t, port, childtest.Memcached.From)
	require.Less(t, port, childtest.Memcached.To)
	_, err = childtest.FreeAddr(childtest.Ports{From: port, To: port + 1})
	require.ErrorContains(t, err, strconv.Itoa(port))
}
