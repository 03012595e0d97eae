package serve

import (
	"context"
	"net/http"
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
