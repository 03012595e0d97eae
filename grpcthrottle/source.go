package grpcthrottle

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
)

// Addr returns the address of the client of the call that ctx belongs to. It is
// the peer's, or, where the peer is one of the proxies that source trusts, the
// one that they have written into the metadata, read as [httpthrottle.Source]
// reads the header field of the same name. It is the zero Addr if the peer has no
// address, as with a Unix socket, and there is no forwarded one.
func Addr(ctx context.Context, source httpthrottle.Source) netip.Addr {
	return source.Addr(asRequest(ctx, source))
}

// Key returns what to count the client of the call by: its address, of which an
// IPv6 one is cut to its prefix, as [httpthrottle.Source.Key] does.
func Key(ctx context.Context, source httpthrottle.Source) string {
	return source.Key(asRequest(ctx, source))
}

// PerAddress returns a rule function that allows max calls in ttl from each
// client address, by [Key], and bans nobody. Its only condition is "address".
// Rules with the same identifier count together. For what it panics on, and for
// peers that have no address, see [httpthrottle.Source.PerAddress].
func PerAddress(source httpthrottle.Source, identifier string, max int, ttl time.Duration) func(context.Context, Call) throttler.Rule {
	rule := source.PerAddress(identifier, max, ttl)
	return func(ctx context.Context, _ Call) throttler.Rule { return rule(asRequest(ctx, source)) }
}

// asRequest returns an HTTP request with what a Source reads: the peer, and the
// header fields with forwarded addresses.
func asRequest(ctx context.Context, source httpthrottle.Source) *http.Request {
	r := &http.Request{Header: make(http.Header)}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	fields := []string{"X-Forwarded-For", "Forwarded"}
	if source.Header != "" {
		fields = []string{source.Header}
	}
	for _, field := range fields {
		for _, line := range metadata.ValueFromIncomingContext(ctx, field) {
			r.Header.Add(field, line)
		}
	}
	return r
}

// Metadata returns the value that the client of the call has sent for key, such
// as "x-api-key", and whether it has sent exactly one. A client that sends two
// might be counted by one and served by the other.
//
// A value is what a client says. Count it only after it was found to be genuine,
// or beside a wider limit per address: a client that may choose its value has as
// many budgets as it likes.
func Metadata(ctx context.Context, key string) (value string, ok bool) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}
