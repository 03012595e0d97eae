package servertest

import (
	"net"
	"testing"
)

// Serve serves connections, each by serve on a goroutine of its own, until the test ends. A
// connection is closed when serve returns. Serve returns the address.
func Serve(tb testing.TB, serve func(net.Conn)) (addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("servertest: %v", err)
	}
	ServeOn(tb, l, serve)
	return l.Addr().String()
}

// ServeOn is [Serve] on l.
func ServeOn(tb testing.TB, l net.Listener, serve func(net.Conn)) {
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
}
