// Package address says what the address of a client is counted as. Every front
// end and the login guard use it, so that a client is the same one to all of
// them.
//
// An IPv6 address that stands for an IPv4 one counts as that: an IPv4-mapped one
// (::ffff:0:0/96) and one from a NAT64 translator (64:ff9b::/96, RFC 6052).
// Otherwise all clients of a translator would share a /64, and a client that
// also has an IPv4 address would count twice. Zones are left out: they name an
// interface of this machine.
//
// Addresses from a translator with a prefix of its own, in 64:ff9b:1::/48 (RFC
// 8215), stand for IPv4 addresses too. Where in the address these are depends on
// the translator, so they are not taken apart, for fear of an address that
// passes for an exempt one. But each belongs to one host, and counts whole.
//
// For the same reason an address of 6to4 (2002::/16, RFC 3056) is counted by
// the IPv4 address that it contains, whose owner has 65,536 networks of /64
// otherwise, but is not trusted or exempt by it.
package address

import "net/netip"

var (
	translated = netip.MustParsePrefix("64:ff9b::/96")
	local      = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

// Plain returns addr without a zone, or the IPv4 address that it stands for.
func Plain(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is4() || !translated.Contains(addr) {
		return addr
	}
	bytes := addr.As16()
	return netip.AddrFrom4([4]byte(bytes[12:]))
}

// Counted returns the address that addr is counted by: Plain(addr), or the
// public IPv4 address in one of 6to4.
func Counted(addr netip.Addr) netip.Addr {
	addr = Plain(addr)
	if addr.Is4() || !sixToFour.Contains(addr) {
		return addr
	}
	bytes := addr.As16()
	owner := netip.AddrFrom4([4]byte(bytes[2:6]))
	if !owner.IsGlobalUnicast() || owner.IsPrivate() {
		return addr // RFC 3056, section 2: no such site
	}
	return owner
}

// PlainPrefix returns the prefix of the plain addresses of p. A prefix that is
// wider than those of IPv4 addresses stays as it is, and has no IPv4 address.
func PlainPrefix(p netip.Prefix) netip.Prefix {
	if p.Bits() < 96 || p.Addr().Is4() {
		return p
	}
	if addr := Plain(p.Addr()); addr.Is4() {
		return netip.PrefixFrom(addr, p.Bits()-96)
	}
	return p
}

// In reports whether one of prefixes contains addr. Both are taken as plain
// ones.
func In(addr netip.Addr, prefixes []netip.Prefix) bool {
	if len(prefixes) == 0 {
		return false
	}
	addr = Plain(addr)
	for _, p := range prefixes {
		if PlainPrefix(p).Contains(addr) {
			return true
		}
	}
	return false
}

// HasNetwork reports whether the owner of addr may have many addresses beside it:
// it is an IPv6 address, and not of a translator.
func HasNetwork(addr netip.Addr) bool {
	addr = Plain(addr)
	return addr.Is6() && !local.Contains(addr)
}

// Text returns the text that addr is counted by: an IPv4 address as it is, an
// IPv6 one cut to that many bits ("203.0.113.9", "2001:db8:1:2::/64"). Less than
// 1 bit is 1, and 128 or more leave the address as it is. Text returns "" for the
// zero Addr.
func Text(addr netip.Addr, ipv6Bits int) string {
	addr = Counted(addr)
	switch {
	case !addr.IsValid():
		return ""
	case ipv6Bits < 128 && HasNetwork(addr):
		return network(addr, max(ipv6Bits, 1))
	}
	return addr.String()
}

// Network returns the network that addr is in: of that many bits, by its family.
// It is "" for the zero Addr.
func Network(addr netip.Addr, ipv4Bits, ipv6Bits int) string {
	addr = Counted(addr)
	if !addr.IsValid() {
		return ""
	}
	if addr.Is4() {
		return network(addr, ipv4Bits)
	}
	return network(addr, ipv6Bits)
}

// network returns the network of addr with bits, which its family has.
func network(addr netip.Addr, bits int) string {
	prefix, err := addr.Prefix(bits)
	if err != nil {
		panic("address: " + err.Error())
	}
	return prefix.String()
}
