package servertest_test

import (
	"net"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/servertest"
)

func TestAFreeAddrCanBeListenedAtAndATakenOneIsNotFree(t *testing.T) {
	addr, err := servertest.FreeAddr(servertest.MemcachedPorts)
	require.NoError(t, err)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	require.GreaterOrEqual(t, port, servertest.MemcachedPorts.From)
	require.Less(t, port, servertest.MemcachedPorts.To)

	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	port = other.Addr().(*net.TCPAddr).Port
	_, err = servertest.FreeAddr(servertest.Ports{From: port, To: port + 1})
	require.ErrorContains(t, err, strconv.Itoa(port))
}

// So a server that was stopped finds it free.
func TestAnAddrIsGivenOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux")
	}
	for port := 32_000; ; port++ {
		ports := servertest.Ports{From: port, To: port + 1}
		addr, err := servertest.FreeAddr(ports)
		if err != nil { // another program has it, or an earlier run of this test
			require.Less(t, port, 32_700)
			continue
		}
		require.Equal(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), addr)
		_, err = servertest.FreeAddr(ports)
		require.Error(t, err)
		return
	}
}
