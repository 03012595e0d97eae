package rulefile

import (
	"net/netip"
	"regexp"
	"strconv"

	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// hops matches how many proxies there are, where their addresses change.
var hops = regexp.MustCompile(`^([1-9][0-9]?) hops?$`)

// trust sets which proxies are believed.
func (p *parsing) trust(f *File, raw words) {
	for i, text := range raw {
		path := at("$.trust", i)
		if m := hops.FindStringSubmatch(text); m != nil {
			f.Hops, _ = strconv.Atoi(m[1])
			if len(raw) > 1 {
				p.problem(path, "%q stands beside other proxies: want only one of the two", text)
			}
			continue
		}
		if text == "private" {
			f.Trusted = append(f.Trusted, httpthrottle.PrivateNetworks()...)
			continue
		}
		prefix, err := parsePrefix(text)
		switch {
		case err != nil:
			p.problem(path, "%v", err)
		case prefix.Bits() == 0:
			p.problem(path, "%q trusts every client to say which address it has: want the addresses of your proxies", text)
		}
		f.Trusted = append(f.Trusted, prefix)
	}
	if len(raw) == 0 { // what runs beside the service
		f.Trusted = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	}
}

// Source returns what finds the address of a request's client behind the trusted
// proxies.
func (f *File) Source() httpthrottle.Source {
	return httpthrottle.Source{Trusted: f.Trusted, Hops: f.Hops, Header: f.Forwarded}
}

// Trusts reports whether the peer of a request, host:port, is a trusted proxy. Behind proxies
// that are counted, every peer is one.
func (f *File) Trusts(peer string) bool {
	addr, err := netip.ParseAddrPort(peer)
	return f.Hops > 0 || err == nil && address.In(addr.Addr(), f.Trusted)
}
