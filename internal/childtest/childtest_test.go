package childtest_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/childtest"
)

func TestAFreeAddrCanBeListenedAtAndATakenOneIsNotFree(t *testing.T) {
	addr, err := childtest.FreeAddr(20_000, 32_000)
	require.NoError(t, err)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	require.GreaterOrEqual(t, port, 20_000)
	require.Less(t, port, 32_000)
	_, err = childtest.FreeAddr(port, port+1)
	require.ErrorContains(t, err, strconv.Itoa(port))
}
