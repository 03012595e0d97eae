package login

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"slices"

	"github.com/adaptivethrottler/throttler"
)

// A party is the name, address and device of an attempt, as they are counted.
type party struct {
	name    string // normalized, and an HMAC if there is a key; "": none
	variant string // a hash of the spelling; "": the spelling is the normalized one
	address origin
	device  origin
	addr    netip.Addr
	exempt  bool // from the limits of addresses and networks

	network, wide string // of an IPv6 address: its /56 and its /48; "": none
}

// An origin is the address or the device of a party. The zero value is none.
type origin struct {
	pair  string // the condition of a name from there
	value string
}

// party returns how name, addr and device are counted. The last two may be
// missing.
func (g *Guard) party(name string, addr netip.Addr, device string) party {
	addr, bits := plain(addr), or(g.IPv6Bits, DefaultIPv6Bits)
	counted, variant := g.counted(name)
	p := party{
		name:    counted,
		variant: variant,
		addr:    addr,
		address: origin{byNameAddress, prefix(addr, bits)},
		device:  g.device(device),
		exempt:  g.exempt(addr),
	}
	if addr.Is6() && bits > networkBits {
		p.network = prefix(addr, networkBits)
	}
	if addr.Is6() && bits > wideBits {
		p.wide = prefix(addr, wideBits)
	}
	return p
}

// device returns the origin of a device, the zero one if it is empty.
func (g *Guard) device(device string) origin {
	if device == "" {
		return origin{}
	}
	return origin{byNameDevice, "device-" + g.digest(device)}
}

// exempt reports whether [Guard.Exempt] contains addr, which is plain.
func (g *Guard) exempt(addr netip.Addr) bool {
	return slices.ContainsFunc(g.Exempt, func(exempt netip.Prefix) bool {
		if exempt.Addr().Is4In6() && exempt.Bits() >= 96 {
			exempt = netip.PrefixFrom(exempt.Addr().Unmap(), exempt.Bits()-96)
		}
		return exempt.Contains(addr)
	})
}

// at returns the value of p's name from there. An origin's value has no '#', so
// two pairs never have the same value.
func (p party) at(from origin) string {
	return from.value + "#" + p.name
}

// counted returns the name as it is counted, and the variant, which tells apart
// the spellings of a name: they may be different accounts.
func (g *Guard) counted(name string) (counted, variant string) {
	normalize := g.Normalize
	if normalize == nil {
		normalize = Normalize
	}
	counted = normalize(name)
	if counted != name {
		variant = g.digest(name)
	}
	if counted != "" && len(g.Key) > 0 {
		counted = g.digest(counted)
	}
	return counted, variant
}

// digest returns the HMAC-SHA-256 of text with the Key, or without one its
// SHA-256.
func (g *Guard) digest(text string) string {
	hash := sha256.New()
	if len(g.Key) > 0 {
		hash = hmac.New(sha256.New, g.Key)
	}
	hash.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(hash.Sum(nil))
}

// The IPv6 networks that are counted beside an address: a /56 is what a
// customer usually has, a /48 the most that a site gets on request.
const (
	networkBits = 56
	wideBits    = 48
)

// nat64 is the prefix of RFC 6052: the last 32 bits of an address are an IPv4
// address.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// plain returns addr, or the IPv4 address that is mapped or translated into it.
func plain(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		bytes := addr.As16()
		return netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return addr
}

// prefix returns the network of addr, which is plain: ipv6Bits of an IPv6
// address. It returns "" for the zero address.
func prefix(addr netip.Addr, ipv6Bits int) string {
	switch {
	case !addr.IsValid():
		return ""
	case addr.Is4() || ipv6Bits >= 128:
		return addr.String()
	}
	network, err := addr.Prefix(max(ipv6Bits, 1))
	if err != nil {
		panic(err) // it is an IPv6 address, and the bits are in range
	}
	return network.String()
}

// mayBeKnown reports whether being known could change d, which blocks p. It
// could not if p has no name, or if without a device its own limit is the only
// one that blocks.
func (p party) mayBeKnown(d *throttler.Decision) bool {
	if p.name == "" {
		return false
	}
	if p.device.value != "" {
		return true
	}
	return blocks(d, byAddress, byAddressDay, byNetwork, byWide, byName)
}

// blocks reports whether one of conditions blocks d.
func blocks(d *throttler.Decision, conditions ...string) bool {
	for i := range d.Outcomes {
		if d.Outcomes[i].Blocked && slices.Contains(conditions, d.Outcomes[i].Name) {
			return true
		}
	}
	return false
}
