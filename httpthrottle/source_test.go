package httpthrottle_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// The peer of requests in these tests, a trusted proxy unless a test says
// otherwise, and prefixes of such proxies.
const proxy = "10.0.0.1:4711"

var trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}

// request returns a request from peer with the fields, given as "Name: value".
func request(peer string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = peer
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ":")
		r.Header.Add(name, strings.TrimPrefix(value, " "))
	}
	return r
}

func TestPeerIsTheClientUnlessTrusted(t *testing.T) {
	for _, test := range []struct{ peer, want string }{
		{"203.0.113.9:1234", "203.0.113.9"},
		{"[2001:db8::1]:1234", "2001:db8::1"},
		{"[::ffff:203.0.113.9]:1234", "203.0.113.9"},
		{"[fe80::1%eth0]:1234", "fe80::1"},
		{"203.0.113.9", "203.0.113.9"},
		{"2001:db8::1", "2001:db8::1"},
		{"::ffff:203.0.113.9", "203.0.113.9"},
		{"[64:ff9b::203.0.113.9]:1234", "203.0.113.9"},
		{"[64:ff9b::cb00:7109%eth0]:1234", "203.0.113.9"},
		{"64:ff9b::203.0.113.9", "203.0.113.9"},
		{"[64:ff9b::1:203.0.113.9]:1234", "64:ff9b::1:cb00:7109"},
		{"[64:ff9b:1::203.0.113.9]:1234", "64:ff9b:1::cb00:7109"},
		{"64:ff9b:1::203.0.113.9", "64:ff9b:1::cb00:7109"},
		{"[::1]", "::1"},
		{"[2001:db8::1]", "2001:db8::1"},
		{"[203.0.113.9]:1", "invalid IP"},
		{"@", "invalid IP"},
		{"", "invalid IP"},
		{"nonsense", "invalid IP"},
	} {
		for _, source := range []httpthrottle.Source{{}, {Trusted: trusted}, {Trusted: []netip.Prefix{{}}}} {
			r := request(test.peer, "X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4")
			require.Equal(t, test.want, source.Addr(r).String(), "%v of %q", source, test.peer)
			source.IPv6Bits = 128
			key := source.Key(r)
			require.Equal(t, strings.TrimPrefix(test.want, "invalid IP"), key, "%v of %q", source, test.peer)
		}
	}
}

// Attacks and accidents, with the header field named or not. The field that a
// client or proxy sends last stands last.
var forwardings = []struct {
	name   string
	header string // Source.Header
	fields []string
	want   string
}{
	{"no field", "", nil, "10.0.0.1"},
	{"one hop", "", []string{"X-Forwarded-For: 203.0.113.9"}, "203.0.113.9"},
	{"spoofed: the client sends a field, the proxy appends", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9"}, "203.0.113.9"},
	{"spoofed: a line of its own", "", []string{"X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: 203.0.113.9"}, "203.0.113.9"},
	{"spoofed: a trusted address", "", []string{"X-Forwarded-For: 1.2.3.4, 10.9.9.9, 203.0.113.9"}, "203.0.113.9"},
	{"spoofed: nonsense before", "", []string{"X-Forwarded-For: \x00\xff\",,;=, 203.0.113.9"}, "203.0.113.9"},
	{"two proxies", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9, 10.2.2.2"}, "203.0.113.9"},
	{"two proxies, two lines", "", []string{"X-Forwarded-For: 203.0.113.9", "X-Forwarded-For: 10.2.2.2"}, "203.0.113.9"},
	{"only proxies: the farthest", "", []string{"X-Forwarded-For: 10.3.3.3, 10.2.2.2"}, "10.3.3.3"},
	{"mapped proxies", "", []string{"X-Forwarded-For: 203.0.113.9, ::ffff:10.2.2.2"}, "203.0.113.9"},
	{"IPv6 proxies", "", []string{"X-Forwarded-For: 2001:db8::9,2001:db8:ffff::1"}, "2001:db8::9"},

	{"port", "", []string{"X-Forwarded-For: 203.0.113.9:4711"}, "203.0.113.9"},
	{"IPv6", "", []string{"X-Forwarded-For: 2001:DB8:0::9"}, "2001:db8::9"},
	{"IPv6 in brackets", "", []string{"X-Forwarded-For: [2001:db8::9]"}, "2001:db8::9"},
	{"IPv6 with port", "", []string{"X-Forwarded-For: [2001:db8::9]:4711"}, "2001:db8::9"},
	{"IPv6 with zone", "", []string{"X-Forwarded-For: fe80::9%eth0"}, "fe80::9"},
	{"mapped", "", []string{"X-Forwarded-For: ::ffff:203.0.113.9"}, "203.0.113.9"},
	{"mapped, in hexadecimal, with zone", "", []string{"X-Forwarded-For: ::ffff:cb00:7109%1"}, "203.0.113.9"},
	{"translated", "", []string{"X-Forwarded-For: 64:ff9b::203.0.113.9"}, "203.0.113.9"},
	{"translated, a proxy", "", []string{"X-Forwarded-For: 203.0.113.9, 64:ff9b::10.2.2.2"}, "203.0.113.9"},
	{"translated, with port", "", []string{"X-Forwarded-For: [64:ff9b::cb00:7109]:4711"}, "203.0.113.9"},
	{"Forwarded: translated", "", []string{`Forwarded: for="[64:ff9b::203.0.113.9]"`}, "203.0.113.9"},
	{"blanks", "", []string{"X-Forwarded-For: \t203.0.113.9 \t"}, "203.0.113.9"},

	// What the proxy wrote cannot be read: the proxy, never what stands before.
	{"unknown", "", []string{"X-Forwarded-For: 1.2.3.4, unknown"}, "10.0.0.1"},
	{"empty", "", []string{"X-Forwarded-For:"}, "10.0.0.1"},
	{"empty element", "", []string{"X-Forwarded-For: 1.2.3.4,"}, "10.0.0.1"},
	{"empty line", "", []string{"X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: "}, "10.0.0.1"},
	{"nonsense after a proxy", "", []string{"X-Forwarded-For: 1.2.3.4, localhost, 10.2.2.2"}, "10.2.2.2"},
	{"octet too large", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.256"}, "10.0.0.1"},
	{"leading zero", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.09"}, "10.0.0.1"},
	{"number", "", []string{"X-Forwarded-For: 1.2.3.4, 3405803785"}, "10.0.0.1"},
	{"prefix", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9/24"}, "10.0.0.1"},
	{"port too long", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9:123456"}, "10.0.0.1"},
	{"port missing", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9:"}, "10.0.0.1"},
	{"port no number", "", []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9:http"}, "10.0.0.1"},
	{"bracket left open", "", []string{"X-Forwarded-For: 1.2.3.4, [2001:db8::9"}, "10.0.0.1"},
	{"bracket and more", "", []string{"X-Forwarded-For: 1.2.3.4, [2001:db8::9]x"}, "10.0.0.1"},
	{"IPv4 in brackets", "", []string{"X-Forwarded-For: 1.2.3.4, [203.0.113.9]"}, "10.0.0.1"},
	{"two addresses in an element", "", []string{"X-Forwarded-For: 1.2.3.4 203.0.113.9"}, "10.0.0.1"},
	{"quoted", "", []string{`X-Forwarded-For: 1.2.3.4, "203.0.113.9"`}, "10.0.0.1"},

	{"huge field", "", []string{"X-Forwarded-For: " + strings.Repeat("1.2.3.4,", 1<<17) + "203.0.113.9"}, "203.0.113.9"},
	{"huge element", "", []string{"X-Forwarded-For: " + strings.Repeat("1", 1<<20)}, "10.0.0.1"},
	{"huge zone", "", []string{"X-Forwarded-For: fe80::1%" + strings.Repeat("1", 1<<20)}, "10.0.0.1"},
	{"trusted addresses without end", "", []string{"X-Forwarded-For: 1.2.3.4" + strings.Repeat(",10.2.2.2", 1<<17)}, "10.2.2.2"},
	{"many lines", "", append(make([]string, 0, 1001), manyLines("X-Forwarded-For: 1.2.3.4", 1000, "X-Forwarded-For: 203.0.113.9")...), "203.0.113.9"},

	{"Forwarded", "", []string{"Forwarded: for=203.0.113.9"}, "203.0.113.9"},
	{"Forwarded: all parameters", "", []string{`Forwarded: by=10.0.0.1;FOR=203.0.113.9;host="a,b;c";proto=https`}, "203.0.113.9"},
	{"Forwarded: IPv6", "", []string{`Forwarded: For="[2001:db8::9]:4711"`}, "2001:db8::9"},
	{"Forwarded: IPv6 without quotes", "", []string{`Forwarded: for=[2001:db8::9]`}, "2001:db8::9"},
	{"Forwarded: port", "", []string{`Forwarded: for="203.0.113.9:4711"`}, "203.0.113.9"},
	{"Forwarded: obfuscated port", "", []string{`Forwarded: for="203.0.113.9:_gazonk.1-X"`}, "203.0.113.9"},
	{"Forwarded: quoted pairs", "", []string{`Forwarded: for="\203.0.113\.9"`}, "203.0.113.9"},
	{"Forwarded: list", "", []string{"Forwarded: for=1.2.3.4, for=203.0.113.9;proto=http, for=10.2.2.2"}, "203.0.113.9"},
	{"Forwarded: lines", "", []string{"Forwarded: for=1.2.3.4", "Forwarded: for=203.0.113.9"}, "203.0.113.9"},
	{"Forwarded: blanks and empty pairs", "", []string{`Forwarded: ;; proto="http" ; for=203.0.113.9 ;`}, "203.0.113.9"},
	{"Forwarded: quoted pairs beside it", "", []string{`Forwarded: for=1.2.3.4, by="a,\\";for=203.0.113.9;host="\\\",\\"`}, "203.0.113.9"},
	{"Forwarded: unknown", "", []string{"Forwarded: for=1.2.3.4, for=unknown"}, "10.0.0.1"},
	{"Forwarded: obfuscated", "", []string{"Forwarded: for=1.2.3.4, for=_hidden, for=10.2.2.2"}, "10.2.2.2"},
	{"Forwarded: obfuscated, with port", "", []string{`Forwarded: for=1.2.3.4, for="_hidden:_port"`}, "10.0.0.1"},
	{"Forwarded: without for", "", []string{"Forwarded: for=1.2.3.4, by=203.0.113.9;proto=http"}, "10.0.0.1"},
	{"Forwarded: for twice", "", []string{"Forwarded: for=1.2.3.4;for=203.0.113.9"}, "10.0.0.1"},
	{"Forwarded: for in another value", "", []string{`Forwarded: host="x;for=1.2.3.4";for=203.0.113.9`}, "203.0.113.9"},
	{"Forwarded: a quoted string alone", "", []string{`Forwarded: "203.0.113.9"`}, "10.0.0.1"},
	{"Forwarded: no pair", "", []string{"Forwarded: 203.0.113.9"}, "10.0.0.1"},
	{"Forwarded: text after the quotes", "", []string{`Forwarded: for="203.0.113.9"x`}, "10.0.0.1"},
	{"Forwarded: quotes left open by the proxy", "", []string{`Forwarded: for=1.2.3.4, for="203.0.113.9`}, "10.0.0.1"},
	{"Forwarded: quotes left open by the client", "", []string{`Forwarded: for="1.2.3.4, for=203.0.113.9`}, "203.0.113.9"},
	{"Forwarded: quotes left open by the client, closed in the proxy's", "", []string{`Forwarded: for="1.2.3.4, for="[2001:db8::9]:1";host="x"`}, "2001:db8::9"},
	{"Forwarded: backslash at the client's end", "", []string{`Forwarded: for="\, for="203.0.113.9"`}, "203.0.113.9"},
	{"Forwarded: quotes left open in the line before", "", []string{`Forwarded: for="1.2.3.4`, `Forwarded: for=203.0.113.9`}, "203.0.113.9"},
	{"Forwarded: huge", "", []string{"Forwarded: " + strings.Repeat(`for="\"`, 1<<17)}, "10.0.0.1"},
	{"Forwarded: backslashes without end", "", []string{`Forwarded: for="` + strings.Repeat(`\`, 1<<20) + `"`}, "10.0.0.1"},

	// Both fields, none named: who forges the one that the proxy does not set
	// gains nothing.
	{"both, alike", "", []string{"X-Forwarded-For: 203.0.113.9", "Forwarded: for=203.0.113.9"}, "203.0.113.9"},
	{"both, not alike", "", []string{"X-Forwarded-For: 203.0.113.9", "Forwarded: for=1.2.3.4"}, "10.0.0.1"},
	{"both, one bad", "", []string{"X-Forwarded-For: 203.0.113.9", "Forwarded: nonsense"}, "10.0.0.1"},

	{"named: X-Forwarded-For", "X-Forwarded-For", []string{"X-Forwarded-For: 203.0.113.9", "Forwarded: for=1.2.3.4"}, "203.0.113.9"},
	{"named: the other is not read", "x-forwarded-for", []string{"Forwarded: for=1.2.3.4"}, "10.0.0.1"},
	{"named: Forwarded", "forwarded", []string{"X-Forwarded-For: 1.2.3.4", "Forwarded: for=203.0.113.9"}, "203.0.113.9"},
	{"named: another", "X-Real-IP", []string{"X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "X-Real-IP: 203.0.113.9"}, "203.0.113.9"},
}

func manyLines(line string, n int, last string) []string {
	lines := make([]string, 0, n+1)
	for range n {
		lines = append(lines, line)
	}
	return append(lines, last)
}

func TestForwardedAddresses(t *testing.T) {
	for _, test := range forwardings {
		t.Run(test.name, func(t *testing.T) {
			source := httpthrottle.Source{Trusted: trusted, Header: test.header, IPv6Bits: 128}
			r := request(proxy, test.fields...)
			before := r.Header.Clone()
			start := time.Now()
			require.Equal(t, test.want, source.Addr(r).String())
			require.Less(t, time.Since(start), 10*time.Second, "however much there is to read")
			require.Equal(t, test.want, source.Key(r))
			require.Equal(t, before, r.Header)

			r.RemoteAddr = "192.0.2.1:4711"
			require.Equal(t, "192.0.2.1", source.Addr(r).String(), "of a peer that is not trusted")
		})
	}
}

func TestPrefixOfAddressesThatStandForIPv4OnesMeansTheIPv4One(t *testing.T) {
	for _, prefix := range []string{"::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104"} {
		source := httpthrottle.Source{Trusted: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		for _, peer := range []string{proxy, "[::ffff:10.0.0.1]:4711", "[64:ff9b::10.0.0.1]:4711"} {
			require.Equal(t, "203.0.113.9", source.Addr(request(peer, "X-Forwarded-For: 203.0.113.9")).String())
		}
		require.Equal(t, "11.0.0.1", source.Addr(request("11.0.0.1:1", "X-Forwarded-For: 203.0.113.9")).String())
	}
	for prefix, trusts := range map[string]bool{"::ffff:0:0/96": true, "::ffff:10.0.0.1/128": true, "::ffff:10.0.0.0/128": false} {
		source := httpthrottle.Source{Trusted: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		client := source.Addr(request(proxy, "X-Forwarded-For: 203.0.113.9"))
		require.Equal(t, trusts, client.String() == "203.0.113.9", prefix)
	}
	wide := httpthrottle.Source{Trusted: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/95")}}
	require.Equal(t, "10.0.0.1", wide.Addr(request(proxy, "X-Forwarded-For: 203.0.113.9")).String(), "wider than the IPv4 addresses")
}

func TestUnixSocketIsTrustedOnRequest(t *testing.T) {
	for _, peer := range []string{"@", "", "/run/socket"} {
		r := request(peer, "X-Forwarded-For: 203.0.113.9")
		require.False(t, httpthrottle.Source{Trusted: trusted}.Addr(r).IsValid())
		require.Equal(t, "203.0.113.9", httpthrottle.Source{TrustUnix: true}.Addr(r).String())
		require.Empty(t, httpthrottle.Source{TrustUnix: true}.Key(request(peer)))
	}
	require.Equal(t, "10.0.0.1", httpthrottle.Source{TrustUnix: true}.Addr(request(proxy, "X-Forwarded-For: 1.2.3.4")).String())
}

// Requests through proxies that Hops counts.
var hopsTests = []struct {
	name   string
	source httpthrottle.Source
	fields []string
	want   string
}{
	{"two of two", httpthrottle.Source{Hops: 2}, []string{"X-Forwarded-For: 203.0.113.9, 198.51.100.1"}, "203.0.113.9"},
	{"one of two", httpthrottle.Source{Hops: 1}, []string{"X-Forwarded-For: 203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
	{"a forged one before", httpthrottle.Source{Hops: 2}, []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9, 198.51.100.1"}, "203.0.113.9"},
	{"over lines", httpthrottle.Source{Hops: 2}, []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9", "X-Forwarded-For: 198.51.100.1"}, "203.0.113.9"},
	{"too few", httpthrottle.Source{Hops: 3}, []string{"X-Forwarded-For: 203.0.113.9, 198.51.100.1"}, "10.0.0.1"},
	{"none", httpthrottle.Source{Hops: 1}, nil, "10.0.0.1"},
	{"no address there", httpthrottle.Source{Hops: 2}, []string{"X-Forwarded-For: 1.2.3.4, unknown, 198.51.100.1"}, "10.0.0.1"},
	{"empty there", httpthrottle.Source{Hops: 2}, []string{"X-Forwarded-For: 1.2.3.4, , 198.51.100.1"}, "10.0.0.1"},
	{"no address behind", httpthrottle.Source{Hops: 2}, []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.9, unknown"}, "203.0.113.9"},
	{"mapped, with a port", httpthrottle.Source{Hops: 1}, []string{"X-Forwarded-For: [::ffff:203.0.113.9]:80"}, "203.0.113.9"},
	{"Forwarded", httpthrottle.Source{Hops: 2}, []string{`Forwarded: for=1.2.3.4, for="203.0.113.9:80", for=198.51.100.1`}, "203.0.113.9"},
	{"both, alike", httpthrottle.Source{Hops: 1}, []string{"X-Forwarded-For: 203.0.113.9", "Forwarded: for=203.0.113.9"}, "203.0.113.9"},
	{"both, not alike", httpthrottle.Source{Hops: 1}, []string{"X-Forwarded-For: 203.0.113.9", "Forwarded: for=1.2.3.4"}, "10.0.0.1"},
	{"named", httpthrottle.Source{Hops: 1, Header: "cf-connecting-ip"}, []string{"X-Forwarded-For: 1.2.3.4", "Cf-Connecting-Ip: 203.0.113.9"}, "203.0.113.9"},
	{"beside Trusted", httpthrottle.Source{Hops: 1, Trusted: trusted}, []string{"X-Forwarded-For: 203.0.113.9"}, "10.0.0.1"},
	{"negative", httpthrottle.Source{Hops: -1}, []string{"X-Forwarded-For: 203.0.113.9"}, "10.0.0.1"},
	{"negative beside Trusted", httpthrottle.Source{Hops: -1, Trusted: trusted}, []string{"X-Forwarded-For: 203.0.113.9"}, "203.0.113.9"},
	{"more than the field has", httpthrottle.Source{Hops: math.MaxInt}, []string{"X-Forwarded-For: " + strings.Repeat("1.2.3.4,", 1<<17)}, "10.0.0.1"},
}

func TestHopsCountFromTheRight(t *testing.T) {
	for _, test := range hopsTests {
		test.source.IPv6Bits = 128
		require.Equal(t, test.want, test.source.Addr(request(proxy, test.fields...)).String(), test.name)
		require.Equal(t, test.want, test.source.Key(request(proxy, test.fields...)), test.name)
	}
	socket := request("@", "X-Forwarded-For: 203.0.113.9")
	require.Equal(t, "203.0.113.9", httpthrottle.Source{Hops: 1}.Addr(socket).String())
	require.False(t, httpthrottle.Source{Hops: 2}.Addr(socket).IsValid())
	require.Error(t, httpthrottle.Source{Hops: 2}.PerAddress("site", 1, time.Second)(socket).Validate())
	require.NoError(t, httpthrottle.Source{Hops: 1}.PerAddress("site", 1, time.Second)(socket).Validate())
}

func TestPrivateNetworksHoldNoPublicAddress(t *testing.T) {
	source := httpthrottle.Source{Trusted: httpthrottle.PrivateNetworks(), IPv6Bits: 128}
	for peer, private := range map[string]bool{
		"10.0.0.0": true, "10.255.255.255": true, "11.0.0.0": false, "172.15.255.255": false, "172.16.0.0": true, "172.31.255.255": true, "172.32.0.0": false,
		"192.168.255.255": true, "192.169.0.0": false, "127.0.0.1": true, "169.254.1.1": true, "100.64.0.1": false, "::1": true, "::2": false,
		"fd00::1": true, "fe80::1": true, "fec0::1": false, "2001:db8::1": false, "::ffff:10.1.2.3": true, "2002:a00:1::1": false,
	} {
		want := map[bool]string{true: "203.0.113.9", false: peer}[private]
		require.Equal(t, want, source.Addr(request(peer, "X-Forwarded-For: 203.0.113.9")).String(), peer)
	}
	httpthrottle.PrivateNetworks()[0] = netip.MustParsePrefix("0.0.0.0/0")
	require.Equal(t, "10.0.0.0/8", httpthrottle.PrivateNetworks()[0].String(), "a copy of its own")
}

func TestKeyCutsAddressesToTheirPrefix(t *testing.T) {
	for _, test := range []struct {
		peer         string
		bits4, bits6 int
		want         string
	}{
		{"203.0.113.9:1", 0, 0, "203.0.113.9"},
		{"203.0.113.9:1", 32, 24, "203.0.113.9"},
		{"203.0.113.9:1", 33, 0, "203.0.113.9"},
		{"203.0.113.9:1", -1, 0, "203.0.113.9"},
		{"203.0.113.9:1", 24, 0, "203.0.113.0/24"},
		{"203.0.113.9:1", 1, 0, "128.0.0.0/1"},
		{"[::ffff:203.0.113.9]:1", 0, 0, "203.0.113.9"},
		{"[::ffff:203.0.113.9]:1", 24, 0, "203.0.113.0/24"},
		{"[64:ff9b::203.0.113.9]:1", 0, 0, "203.0.113.9"},
		{"[64:ff9b:1::203.0.113.9]:1", 24, 0, "64:ff9b:1::cb00:7109"},
		{"[2002:cb00:7109:1::1]:1", 0, 0, "203.0.113.9"},
		{"[2002:cb00:7109:1::1]:1", 24, 128, "203.0.113.0/24"},
		{"[2002:a00:1:1::1]:1", 24, 0, "2002:a00:1:1::/64"},
		{"[2001:db8:1:2:3:4:5:6]:1", 24, 0, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:ffff::]:1", 0, 0, "2001:db8:1:2::/64"},
		{"[2001:db8:1:3::]:1", 0, 0, "2001:db8:1:3::/64"},
		{"[2001:db8:1:2:3:4:5:6]:1", 0, -1, "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:3:4:5:6]:1", 0, 48, "2001:db8:1::/48"},
		{"[2001:db8:1:2:3:4:5:6]:1", 0, 128, "2001:db8:1:2:3:4:5:6"},
		{"[2001:db8:1:2:3:4:5:6]:1", 0, 1000, "2001:db8:1:2:3:4:5:6"},
		{"[fe80::1%eth0]:1", 0, 0, "fe80::/64"},
		{"[fe80::1%eth0]:1", 0, 128, "fe80::1"},
		{"@", 24, 0, ""},
	} {
		require.Equal(t, test.want, httpthrottle.Source{IPv4Bits: test.bits4, IPv6Bits: test.bits6}.Key(request(test.peer)))
	}
}

func TestEachAddressHasARuleOfItsOwn(t *testing.T) {
	var source httpthrottle.Source
	perAddress := source.PerAddress("site", 10, time.Second)
	first, second := perAddress(request("203.0.113.8:1")), perAddress(request("203.0.113.9:1"))
	require.Equal(t, "203.0.113.8", first.Either[0].Value, "each request has a rule of its own")
	require.Equal(t, "203.0.113.9", second.Either[0].Value)
}

// FuzzAddr has what no field may do: change what an untrusted peer is, fail,
// name another client than the one that the proxy has appended, or get out an
// address that is not plain.
func FuzzAddr(f *testing.F) {
	for _, test := range forwardings {
		for _, field := range test.fields {
			if _, value, _ := strings.Cut(field, ":"); len(value) < 1000 {
				f.Add(value)
			}
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, header := range []string{"X-Forwarded-For", "Forwarded"} {
			source := httpthrottle.Source{Trusted: trusted, Header: header}
			r := request(proxy)
			r.Header[header] = []string{value}
			addr := source.Addr(r)
			require.True(t, addr.IsValid())
			require.Equal(t, addr.Unmap().WithZone(""), addr)
			require.NotEmpty(t, source.Key(r))

			r.RemoteAddr = "192.0.2.1:4711"
			require.Equal(t, "192.0.2.1", source.Addr(r).String())

			r.RemoteAddr = value
			for _, source := range []httpthrottle.Source{{IPv6Bits: 128}, {IPv6Bits: 128, Trusted: trusted}} {
				text := ""
				if addr := source.Addr(r); addr.IsValid() {
					text = address.Counted(addr).String()
				}
				require.Equal(t, text, source.Key(r))
			}

			r.RemoteAddr = proxy
			appended := "203.0.113.9"
			if header == "Forwarded" {
				appended = `by="x,\"y";for="203.0.113.9:80"`
			}
			r.Header[header] = []string{value + ", " + appended}
			require.Equal(t, "203.0.113.9", source.Addr(r).String())
			r.Header[header] = []string{value, appended}
			require.Equal(t, "203.0.113.9", source.Addr(r).String())
		}
	})
}
