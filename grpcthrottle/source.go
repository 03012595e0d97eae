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

// Addr returns the address of the client of the call that ctx belongs to. If
// source trusts the peer, the address is read from the metadata, as
// [httpthrottle.Source] reads the header field of the same name. Otherwise it
// is the peer's. It is the zero Addr if the peer has no address, as with a Unix
// socket, and none was forwarded.
func Addr(ctx context.Context, source httpthrottle.Source) netip.Addr {
	return source.Addr(asRequest(ctx, source))
}

// Key returns the text to count the client of the call by: its address, with
// IPv6 cut to its prefix. See [httpthrottle.Source.Key].
func Key(ctx context.Context, source httpthrottle.Source) string {
	return source.Key(asRequest(ctx, source))
}

// PerAddress returns a rule function that allows max calls in ttl from each
// client address, by [Key]. It sets no bans. Its only condition is "address".
// Rules with the same identifier count together. Panics and peers without an
// address are as for [httpthrottle.Source.PerAddress].
func PerAddress(source httpthrottle.Source, identifier string, max int, ttl time.Duration) func(context.Context, Call) throttler.Rule {
	rule := source.PerAddress(identifier, max, ttl)
	return func(ctx context.Context, _ Call) throttler.Rule { return rule(asRequest(ctx, source)) }
}

// asRequest returns an HTTP request with what a Source reads: the peer and the
// fields with forwarded addresses.
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

// Metadata returns the value that the client has sent for key, such as
// "x-api-key". ok is false unless it has sent exactly one: with two, it might
// be counted by one and served by the other.
//
// A client can send any value, and each has a budget of its own. So check that
// the value is genuine before you count it, or put a wider limit per address
// beside it.
func Metadata(ctx context.Context, key string) (value string, ok bool) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}
