package httpthrottle

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/address"
)

// defaultIPv6Bits is the number of bits of an IPv6 address that are counted by
// default. A customer usually has a /64 at least, and can send each request
// from another of its addresses.
const defaultIPv6Bits = 64

// A Source finds the address of a request's client, also behind trusted
// proxies.
//
// If the peer of the connection is not trusted, it is the client. If it is, the
// header field with the forwarded addresses is read from the right: each
// trusted address leads to the next one on its left, and the first that is not
// trusted is the client. Addresses further left come from the client and are
// never read.
//
// If an element cannot be read (nonsense, nothing, "unknown" or an obfuscated
// identifier), the client is the last trusted address before it: the proxy that
// wrote it. So all such clients count together.
//
// Where the addresses of the proxies change, Hops counts them instead.
//
// The zero Source trusts no proxy: the peer is the client. A Source is safe for
// concurrent use. Its fields must not change after the first use.
type Source struct {
	// Trusted lists the addresses of your proxies, such as [PrivateNetworks].
	// Each must write the client's address into the field that Header names, or
	// append it, on every request. A prefix of IPv4-mapped addresses, or of a
	// NAT64 translator's, means the IPv4 prefix. Default: none.
	Trusted []netip.Prefix

	// Hops is the number of proxies that append an address to the field, for
	// proxies whose own addresses change: the client is the Hops-th address
	// from the right. If the field has fewer, or that one cannot be read, or
	// Trusted is set too, the client is the peer. Every request must come
	// through all Hops proxies: a client that can reach the program past one of
	// them chooses its address. Default: 0, Trusted decides.
	Hops int

	// TrustUnix trusts a peer without an address: a proxy that connects through
	// a Unix socket.
	TrustUnix bool

	// Header names the field that the trusted proxies set: "Forwarded" (RFC
	// 7239), "X-Forwarded-For", or any other that holds an address or a list of
	// them, such as "X-Real-Ip". No other field is read.
	//
	// Set it if there are proxies: a proxy passes on fields that it does not
	// know, so a client can forge the others. Default: X-Forwarded-For or
	// Forwarded, whichever is there. If both are and they disagree on the
	// client, one is forged, and the client is the peer.
	Header string

	// IPv4Bits is the number of bits of an IPv4 address that Key keeps; more
	// than 32 is 32. Default: 32.
	IPv4Bits int

	// IPv6Bits is the number of bits of an IPv6 address that Key keeps; more
	// than 128 is 128. Default: 64.
	IPv6Bits int
}

// PrivateNetworks returns the networks that nobody reaches from the Internet:
// private (RFC 1918, RFC 4193), link-local and loopback ones. As
// [Source.Trusted] they stand for proxies in the same network, if every client
// comes from elsewhere.
func PrivateNetworks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("fc00::/7"),
		netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("::1/128"),
	}
}

// Key returns the text to count the client of r by: its address, cut to the
// prefix of its family ("203.0.113.9", "2001:db8:1:2::/64", or with 24 and 128
// bits "203.0.113.0/24", "2001:db8:1:2::3"). An IPv6 address of 6to4
// (2002::/16) counts as the IPv4 address that it contains. Key returns "" if
// Addr returns the zero Addr; then all such clients count as one. Behind a Unix
// socket set TrustUnix or Hops.
func (s Source) Key(r *http.Request) string { return s.key(r, s.Addr(r)) }

// key returns the text of addr, which is that of r's client.
func (s *Source) key(r *http.Request, addr netip.Addr) string {
	switch bits := s.IPv4Bits; {
	case bits > 0 && bits < 32 && address.Counted(addr).Is4():
		return address.Network(addr, bits, defaultIPv6Bits)
	case addr.Is4():
		return s.textIn(r.RemoteAddr, addr)
	}
	bits := s.IPv6Bits
	if bits < 1 {
		bits = defaultIPv6Bits
	}
	return address.Text(addr, bits)
}

// textIn returns the text of addr, the client's IPv4 address: as part of remote if
// that begins with it, since the peer is the client most of the time.
func (s *Source) textIn(remote string, addr netip.Addr) string {
	if len(s.Trusted) == 0 && !s.TrustUnix && s.Hops < 1 {
		// The peer is the client. netip reads an address with dots only as it
		// writes it, except within an IPv6 one, which begins with a colon or a
		// bracket, or has a colon before the first dot.
		if host, _, _ := strings.Cut(remote, ":"); strings.Contains(host, ".") {
			return host
		}
	}
	var room [len("255.255.255.255")]byte
	text := addr.AppendTo(room[:0])
	if len(remote) >= len(text) && remote[:len(text)] == string(text) {
		return remote[:len(text)]
	}
	return string(text)
}

// Addr returns the address of the client of r, without a zone: see [Source]. It
// is the zero Addr if the peer has no address, as with a Unix socket, and none
// was forwarded.
//
// An IPv6 address that stands for an IPv4 one counts as that: an IPv4-mapped
// one (::ffff:0:0/96) and one from a NAT64 translator (64:ff9b::/96, RFC 6052).
// Otherwise all clients of a translator would share a /64. Key counts an address
// from a translator with a prefix of its own (64:ff9b:1::/48, RFC 8215) whole.
func (s Source) Addr(r *http.Request) netip.Addr {
	addr, _ := s.addr(r)
	return addr
}

// addr is Addr. ok is false if clients cannot be told apart: the peer has no
// address and is not trusted.
func (s *Source) addr(r *http.Request) (addr netip.Addr, ok bool) {
	peer, _ := nodeAddr(r.RemoteAddr) // without a port if a middleware has rewritten it
	switch {
	case s.Hops > 0 && len(s.Trusted) == 0:
		addr = s.forwardedBy(peer, r)
		return addr, addr.IsValid() || s.TrustUnix
	case s.Hops > 0 || !s.trusts(peer):
		return peer, peer.IsValid()
	}
	return s.forwardedBy(peer, r), true
}

// forwardedBy returns the address of the client of r, whose peer is trusted.
func (s *Source) forwardedBy(peer netip.Addr, r *http.Request) netip.Addr {
	if s.Header != "" {
		return s.client(r.Header, textproto.CanonicalMIMEHeaderKey(s.Header), peer)
	}
	switch {
	case len(r.Header[forwarded]) == 0:
		return s.client(r.Header, xForwardedFor, peer)
	case len(r.Header[xForwardedFor]) == 0:
		return s.client(r.Header, forwarded, peer)
	}
	client := s.client(r.Header, xForwardedFor, peer)
	if client != s.client(r.Header, forwarded, peer) {
		return peer
	}
	return client
}

// maxHops is the number of forwarded addresses that are read. Honest requests
// pass fewer proxies.
const maxHops = 100

// client returns the client that the field of header names for peer: that of
// Hops, or the first that is not trusted.
func (s *Source) client(header http.Header, field string, peer netip.Addr) netip.Addr {
	if s.Hops > 0 {
		return hopAddr(header, field, s.Hops, peer)
	}
	hop, hops := peer, 0
	for element := range elements(header[field], field) {
		addr, ok := forwardedAddr(element, field)
		// Stop at an element that cannot be read: the proxy that wrote it
		// cannot name its client, and everything left of it comes from that
		// client.
		if !ok || hops == maxHops {
			return hop
		}
		if !s.trusts(addr) {
			return addr
		}
		hop = addr
		hops++
	}
	return hop
}

// hopAddr returns the address of the n-th element of the field from the right,
// or peer if there is none.
func hopAddr(header http.Header, field string, n int, peer netip.Addr) netip.Addr {
	for element := range elements(header[field], field) {
		if n--; n > 0 {
			continue
		}
		if addr, ok := forwardedAddr(element, field); ok {
			return addr
		}
		break
	}
	return peer
}

func (s *Source) trusts(addr netip.Addr) bool {
	if !addr.IsValid() {
		return s.TrustUnix
	}
	return address.In(addr, s.Trusted)
}
