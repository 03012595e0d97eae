package grpcthrottle_test

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/grpcthrottle"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// withPeer returns the context of a call from addr, "host:port", or without an
// address "".
func withPeer(ctx context.Context, addr string) context.Context {
	p := &peer.Peer{}
	if addr != "" {
		p.Addr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))
	}
	return peer.NewContext(ctx, p)
}

// withMetadata returns ctx with the metadata that the client has sent, key and
// value in turn.
func withMetadata(ctx context.Context, kv ...string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs(kv...))
}

func TestForwardedAddressesAreBelievedFromTrustedProxiesOnly(t *testing.T) {
	trusting := httpthrottle.Source{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "X-Forwarded-For"}
	for _, test := range []struct {
		name   string
		source httpthrottle.Source
		peer   string
		sent   []string
		want   string
	}{
		{"the peer", trusting, "203.0.113.9:1", nil, "203.0.113.9"},
		{"forged", trusting, "203.0.113.9:1", []string{"x-forwarded-for", "1.2.3.4"}, "203.0.113.9"},
		{"a proxy's", trusting, "10.0.0.1:1", []string{"x-forwarded-for", "203.0.113.9"}, "203.0.113.9"},
		{"forged before the proxy's", trusting, "10.0.0.1:1", []string{"x-forwarded-for", "1.2.3.4, 203.0.113.9"}, "203.0.113.9"},
		{"forged as a value of its own", trusting, "10.0.0.1:1", []string{"x-forwarded-for", "1.2.3.4", "x-forwarded-for", "203.0.113.9"}, "203.0.113.9"},
		{"the field that is not read", trusting, "10.0.0.1:1", []string{"forwarded", "for=1.2.3.4"}, "10.0.0.1"},
		{"a field of its own name", httpthrottle.Source{Trusted: trusting.Trusted, Header: "X-Real-IP"}, "10.0.0.1:1", []string{"x-real-ip", "203.0.113.9"}, "203.0.113.9"},
		{"either field", httpthrottle.Source{Trusted: trusting.Trusted}, "10.0.0.1:1", []string{"forwarded", "for=203.0.113.9"}, "203.0.113.9"},
		{"both, not alike", httpthrottle.Source{Trusted: trusting.Trusted}, "10.0.0.1:1", []string{"forwarded", "for=203.0.113.9", "x-forwarded-for", "1.2.3.4"}, "10.0.0.1"},
		{"nobody is trusted", httpthrottle.Source{}, "10.0.0.1:1", []string{"x-forwarded-for", "203.0.113.9"}, "10.0.0.1"},
		{"IPv6", trusting, "[2001:db8:1:2::3]:1", nil, "2001:db8:1:2::3"},
		{"mapped", trusting, "[::ffff:203.0.113.9]:1", nil, "203.0.113.9"},
		{"no address", trusting, "", nil, "invalid IP"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := withMetadata(withPeer(t.Context(), test.peer), test.sent...)
			require.Equal(t, test.want, grpcthrottle.Addr(ctx, test.source).String())
		})
	}
	require.False(t, grpcthrottle.Addr(t.Context(), trusting).IsValid(), "a context of no call")
}

func TestKeyCutsIPv6ToItsPrefix(t *testing.T) {
	ctx := withPeer(t.Context(), "[2001:db8:1:2::3]:1")
	require.Equal(t, "2001:db8:1:2::/64", grpcthrottle.Key(ctx, httpthrottle.Source{}))
	require.Equal(t, "2001:db8:1::/48", grpcthrottle.Key(ctx, httpthrottle.Source{IPv6Bits: 48}))
}

func TestMetadataIsTakenOnlyIfThereIsOneValue(t *testing.T) {
	for _, test := range []struct {
		sent  []string
		value string
		ok    bool
	}{
		{nil, "", false},
		{[]string{"x-api-key", "a"}, "a", true},
		{[]string{"x-api-key", ""}, "", true},
		{[]string{"x-api-key", "a", "x-api-key", "b"}, "", false},
		{[]string{"x-api-key", "a", "x-api-key", "a"}, "", false},
		{[]string{"x-other", "a"}, "", false},
	} {
		value, ok := grpcthrottle.Metadata(withMetadata(t.Context(), test.sent...), "X-API-Key")
		require.Equal(t, test.ok, ok, "%v", test.sent)
		require.Equal(t, test.value, value)
	}
	_, ok := grpcthrottle.Metadata(t.Context(), "x-api-key")
	require.False(t, ok, "a context of no call")
}

func TestClientsAreCountedByTheMetadataThatTheyReallySend(t *testing.T) {
	limit := grpcthrottle.New(throttler.New(memstore.New()), func(ctx context.Context, _ grpcthrottle.Call) throttler.Rule {
		key, ok := grpcthrottle.Metadata(ctx, "x-api-key")
		if !ok {
			key = "none"
		}
		return throttler.Rule{Identifier: "test", Either: []throttler.Condition{{Name: "key", Value: key, Max: 1, TTL: time.Minute}}}
	})
	_, client := serveTCP(t, limit)
	require.NoError(t, check(t, client, "", "x-api-key", "a"))
	require.NoError(t, check(t, client, "", "x-api-key", "b"))
	require.Equal(t, codes.ResourceExhausted, status.Code(check(t, client, "", "x-api-key", "a")))
	require.NoError(t, check(t, client, "", "x-api-key", "c", "x-api-key", "d"))
	require.Equal(t, codes.ResourceExhausted, status.Code(check(t, client, "")))
}

func TestClientsOfAUnixSocketAreNotCountedAsOne(t *testing.T) {
	limit := perMinute(100)
	var failure error
	limit.Failed = func(_ context.Context, _ grpcthrottle.Call, err error) error {
		failure = err
		return nil
	}
	socket := filepath.Join(t.TempDir(), "s")
	_, client := serve(t, "unix", socket, limit)
	require.Equal(t, codes.Internal, status.Code(check(t, client, "")))
	require.ErrorContains(t, failure, "the peer has no address; set TrustUnix")

	source := httpthrottle.Source{TrustUnix: true, Header: "X-Forwarded-For"}
	limit = grpcthrottle.New(throttler.New(memstore.New()), grpcthrottle.PerAddress(source, "test", 1, time.Minute))
	_, client = serve(t, "unix", socket+"2", limit)
	require.NoError(t, check(t, client, "", "x-forwarded-for", "203.0.113.8"))
	require.NoError(t, check(t, client, "", "x-forwarded-for", "203.0.113.9"))
	require.Equal(t, codes.ResourceExhausted, status.Code(check(t, client, "", "x-forwarded-for", "203.0.113.9")))
}
