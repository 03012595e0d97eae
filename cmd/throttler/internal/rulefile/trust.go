package rulefile

import (
	"net/netip"

	"github.com/adaptivethrottler/throttler/httpthrottle"
)

// loopback is trusted if the file names no proxies.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// Source returns what finds the address of a request's client behind the trusted
// proxies.
func (f *File) Source() httpthrottle.Source {
	trusted := f.Trusted
	if len(trusted) == 0 {
		trusted = loopback
	}
	return httpthrottle.Source{Trusted: trusted, Header: f.Forwarded}
}
