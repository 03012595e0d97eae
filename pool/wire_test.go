package pool_test

import (
	"context"
	"net"
	"sync/atomic"
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// counted is a net.Dialer's DialContext that counts its calls.
func counted(dials *atomic.Int64) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}
