package httpthrottle

import (
	"net/http"
	"net/netip"
	"net/textproto"
)

// DefaultIPv6Bits is how much of an IPv6 address is counted, if
// [Source.IPv6Bits] is not set: what a single customer usually has at least.
// Whoever has a /64 can use another of its addresses for each request.
const DefaultIPv6Bits = 64

// A Source finds out who sent a request, behind trusted proxies too.
//
// The peer of the connection is the client unless it is a trusted proxy. From a
// trusted one, the header field with the forwarded addresses is read, from the
// right: what stands there the proxy has added itself, and what stands further
// left came with the request that it got. Each trusted address leads to the
// next one on its left, and the first one that is not trusted is the client.
// What a client writes into the field is therefore never read, and a field of
// an untrusted peer neither.
//
// A bad field is not an error. Where no address can be read (nonsense, nothing,
// "unknown" or an obfuscated identifier) the client is the last trusted
// address before, that of the proxy which wrote this. So are those clients
// counted together, and none of them gets a record of its choice.
//
// The zero Source trusts nobody: the peer is the client. A Source is safe for
// concurrent use; its fields must not change after the first use.
type Source struct {
	// Trusted holds the addresses of the proxies whose header field is
	// believed. They must all set it, or add to it, on every request. A
	// prefix of IPv4-mapped addresses, or of a NAT64 translator's, means the
	// IPv4 one.
	Trusted []netip.Prefix

	// TrustUnix trusts a peer that has no address: one that is connected
	// through a Unix socket.
	TrustUnix bool

	// Header names the field that the trusted proxies set: "Forwarded"
	// (RFC 7239), "X-Forwarded-For", or any other that holds one address or
	// a list of them, such as "X-Real-Ip". No other field is read.
	//
	// It should be set. A proxy passes on what it does not know, so that a
	// client may well send the field which the proxy does not set. Empty:
	// X-Forwarded-For or Forwarded, whichever is there. If both are and they
	// do not tell the same client, one of them is forged, nobody knows which,
	// and the client is the peer.
	Header string

	// IPv6Bits is how many bits of an IPv6 address Key keeps. Less than 1:
	// DefaultIPv6Bits, 64; more than 128 is 128.
	IPv6Bits int
}

// Key returns what to count the client of r by: its address, of which an IPv6
// one is cut to its prefix ("203.0.113.9", "2001:db8:1:2::/64"; with 128 bits
// "2001:db8:1:2::3"). It is empty if Addr is the zero Addr, so that all such
// clients count as one: behind a Unix socket, set TrustUnix.
func (s Source) Key(r *http.Request) string { return s.key(s.Addr(r)) }

func (s *Source) key(addr netip.Addr) string {
	bits := min(s.IPv6Bits, 128)
	if bits < 1 {
		bits = DefaultIPv6Bits
	}
	switch {
	case !addr.IsValid():
		return ""
	case addr.Is4() || bits == 128:
		return addr.String()
	}
	prefix, _ := addr.Prefix(bits) // fails on more bits than there are
	return prefix.String()
}

// Addr returns the address of the client of r, as the comment on Source says.
// It is the zero Addr if the peer has no address, as with a Unix socket, and
// there is no forwarded one. A zone is dropped.
//
// An IPv6 address that stands for an IPv4 one is that IPv4 address: an
// IPv4-mapped one (::ffff:0:0/96) and one that a NAT64 translator makes of its
// clients' (64:ff9b::/96, RFC 6052). Otherwise all IPv4 clients of a translator
// would be cut to one /64 and count as one.
func (s Source) Addr(r *http.Request) netip.Addr {
	addr, _ := s.addr(r)
	return addr
}

// addr is Addr. ok is false if there is no telling clients apart, since the peer
// has no address and is not trusted.
func (s *Source) addr(r *http.Request) (addr netip.Addr, ok bool) {
	peer := peerAddr(r.RemoteAddr)
	if !s.trusts(peer) {
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

// maxHops is how many forwarded addresses are read. No honest request comes
// through so many trusted proxies.
const maxHops = 100

// client follows the trusted proxies from peer through the field of header.
func (s *Source) client(header http.Header, field string, peer netip.Addr) netip.Addr {
	hop, hops := peer, 0
	for element := range elements(header[field], field) {
		addr, ok := forwardedAddr(element, field)
		// Not on to the next element if this one cannot be read or is empty:
		// a proxy that cannot name its client wrote it, and what stands left
		// of it that client wrote.
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

func (s *Source) trusts(addr netip.Addr) bool {
	if !addr.IsValid() {
		return s.TrustUnix
	}
	for _, p := range s.Trusted {
		if plainPrefix(p).Contains(addr) {
			return true
		}
	}
	return false
}

// peerAddr returns the address in an http.Request's RemoteAddr, that has a port
// unless a middleware has written it.
func peerAddr(remote string) netip.Addr {
	if peer, err := netip.ParseAddrPort(remote); err == nil {
		return plainAddr(peer.Addr())
	}
	addr, err := netip.ParseAddr(remote)
	if err != nil {
		return netip.Addr{}
	}
	return plainAddr(addr)
}

// translated is the prefix of the IPv6 addresses that NAT64 translators make of
// IPv4 ones, RFC 6052, section 2.1.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// plainAddr returns addr without a zone, and the IPv4 address that it stands for
// if there is one.
func plainAddr(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if !translated.Contains(addr) {
		return addr
	}
	bytes := addr.As16()
	return netip.AddrFrom4([4]byte(bytes[12:]))
}

// plainPrefix returns the prefix of the plain addresses of those in p.
func plainPrefix(p netip.Prefix) netip.Prefix {
	if p.Bits() < 96 || p.Addr().Is4() {
		return p
	}
	if addr := plainAddr(p.Addr()); addr.Is4() {
		return netip.PrefixFrom(addr, p.Bits()-96)
	}
	return p
}
