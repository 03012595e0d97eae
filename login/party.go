package login

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// A party is the name, address and device of an attempt, as they are counted.
type party struct {
	name    string // normalized, and an HMAC if there is a key; "": none
	variant string // a hash of the spelling; "": the spelling is the normalized one
	address origin
	device  origin
	addr    netip.Addr
	exempt  bool // from the limits of addresses and networks

	former []identity // of the name and the device, under former keys

	networks [3]string // of an IPv6 address, as in var networks; "": none
}

// An identity is a name and a device as they are counted under a key.
type identity struct {
	Name    []byte `json:"name,omitempty"` // any bytes
	Variant string `json:"variant,omitempty"`
	Device  string `json:"device,omitempty"`
}

// An origin is the address or the device of a party. The zero value is none.
type origin struct {
	pair  string // the condition of a name from there
	value string
}

// party returns how name, addr and device are counted. The last two may be
// missing.
func (g *Guard) party(name string, addr netip.Addr, device string) party {
	addr, bits := address.Plain(addr), cmp.Or(g.IPv6Bits, defaultIPv6Bits)
	key, formerKeys := g.keys()
	p := party{
		addr:    addr,
		address: origin{byNameAddress, address.Text(addr, bits)},
		exempt:  address.In(addr, g.Exempt),
	}.as(g.identity(key, name, device))
	for _, key := range formerKeys {
		p.former = append(p.former, g.identity(key, name, device))
	}
	for i, n := range networks {
		if address.HasNetwork(addr) && bits > n.bits {
			p.networks[i] = address.Text(addr, n.bits)
		}
	}
	return p
}

// keyed returns p as it is counted under each key, the current one first.
func (p party) keyed() []party {
	all := []party{p}
	for _, f := range p.former {
		q := p.as(f)
		if p.device.value == "" {
			q.device = origin{}
		}
		all = append(all, q)
	}
	return all
}

// identity returns how name and device are counted under key.
func (g *Guard) identity(key []byte, name, device string) identity {
	counted, variant := g.counted(key, name)
	return identity{[]byte(counted), variant, deviceUnder(key, device).value}
}

// as returns p with the name and the device of i.
func (p party) as(i identity) party {
	p.name, p.variant, p.device = string(i.Name), i.Variant, origin{}
	if i.Device != "" {
		p.device = origin{byNameDevice, i.Device}
	}
	return p
}

// deviceUnder returns the origin of a device, the zero one if it is empty.
func deviceUnder(key []byte, device string) origin {
	if device == "" {
		return origin{}
	}
	return origin{byNameDevice, "device-" + digest(key, device)}
}

// at returns the value of p's name from there. An origin's value has no '#', so
// two pairs never have the same value.
func (p party) at(from origin) string {
	return from.value + "#" + p.name
}

// knownAt returns the value of p's budget where it is known. That of addresses
// begins with '#', so no device has it.
func (p party) knownAt(from origin) string {
	if from.pair == byNameAddress {
		from.value = ""
	}
	return p.at(from)
}

// counted returns the name as it is counted, and the variant, which tells apart
// the spellings of a name: they may be different accounts, unless only blanks at their ends
// differ, as a phone's keyboard adds one.
func (g *Guard) counted(key []byte, name string) (counted, variant string) {
	normalize := g.Normalize
	if normalize == nil {
		normalize = Normalize
	}
	counted = normalize(name)
	if spelled := strings.TrimSpace(name); counted != name && counted != spelled {
		variant = digest(key, spelled)
	}
	if counted != "" && len(key) > 0 {
		counted = digest(key, counted)
	}
	return counted, variant
}

// keys returns the current key and the former ones. An empty one is none.
func (g *Guard) keys() (current []byte, former [][]byte) {
	if len(g.Keys) == 0 {
		return nil, nil
	}
	return g.Keys[0], g.Keys[1:]
}

// digest returns the HMAC-SHA-256 of text with key, or without one its
// SHA-256.
func digest(key []byte, text string) string {
	hash := sha256.New()
	if len(key) > 0 {
		hash = hmac.New(sha256.New, key)
	}
	hash.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(hash.Sum(nil))
}

// networks are those of an IPv6 address that are counted beside it: a /56 is what
// a customer usually has, a /48 the most that a site gets on request, a /32 the
// least that a provider has.
var networks = [...]struct {
	condition string
	bits      int
	limit     func(*limitSet) Limit
}{
	{byNetwork56, 56, func(l *limitSet) Limit { return l.network56 }},
	{byNetwork48, 48, func(l *limitSet) Limit { return l.network48 }},
	{byNetwork32, 32, func(l *limitSet) Limit { return l.network32 }},
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
	return blocks(d, byAddress, byAddressDay, byNetwork56, byNetwork48, byNetwork32, byName, byNameLong)
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
