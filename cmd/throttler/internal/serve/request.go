package serve

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

type requestKey struct{}

func withRequest(ctx context.Context, r *rulefile.Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

func requestFrom(ctx context.Context) *rulefile.Request {
	r, _ := ctx.Value(requestKey{}).(*rulefile.Request)
	return r
}

// trusts reports whether the peer of r is a trusted proxy.
func (c *chain) trusts(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	addr = addr.Unmap().WithZone("")
	for _, prefix := range c.source.Trusted {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// describe returns the request that a proxy describes in header fields with
// prefix.
func (c *chain) describe(r *http.Request, prefix string) *rulefile.Request {
	get := func(name, otherwise string) string {
		if value := r.Header.Get(prefix + name); value != "" {
			return value
		}
		return otherwise
	}
	header := r.Header.Clone()
	for name := range header {
		if strings.HasPrefix(name, prefix) {
			delete(header, name)
		}
	}
	return &rulefile.Request{
		Addr:   c.source.Addr(r),
		Method: get("Method", r.Method),
		Host:   get("Host", r.Host),
		Target: get("Uri", "/"),
		Header: header,
	}
}
