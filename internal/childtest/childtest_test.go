package childtest_test

import (
	"net"
	"runtime"
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

	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	port = other.Addr().(*net.TCPAddr).Port
	_, err = childtest.FreeAddr(childtest.Ports{From: port, To: port + 1})
	require.ErrorContains(t, err, strconv.Itoa(port))
}

// So a server that was stopped finds it free.
func TestAnAddrIsGivenOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux")
	}
	const n = 5
	ports := childtest.Ports{From: 20_000, To: 20_000 + n}
	given := map[string]bool{}
	for range n {
		addr, err := childtest.FreeAddr(ports)
		if err == nil { // another program may have one
			require.NotContains(t, given, addr)
			given[addr] = true
		}
	}
	require.NotEmpty(t, given)
	_, err := childtest.FreeAddr(ports)
	require.Error(t, err)
}
