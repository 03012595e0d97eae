package address_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/address"
	"github.com/stretchr/testify/require"
)

func parse(text string) netip.Addr {
	addr, _ := netip.ParseAddr(text) // the zero Addr of ""
	return addr
}

func TestAClientCountsAsOneHoweverItsAddressIsWritten(t *testing.T) {
	for _, tt := range []struct{ addr, plain, text, network string }{
		{"203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"::ffff:203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"::ffff:203.0.113.9%eth0", "203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"64:ff9b::203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"64:ff9b::cb00:7109%eth0", "203.0.113.9", "203.0.113.9", "203.0.113.0/24"},
		{"64:ff9b::1:203.0.113.9", "64:ff9b::1:cb00:7109", "64:ff9b::/64", "64:ff9b::/48"},
		{"64:ff9b:1::203.0.113.9", "64:ff9b:1::cb00:7109", "64:ff9b:1::cb00:7109", "64:ff9b:1::/48"},
		{"64:ff9b:1:cb00:71:900::", "64:ff9b:1:cb00:71:900::", "64:ff9b:1:cb00:71:900::", "64:ff9b:1::/48"},
		{"64:ff9b:2::203.0.113.9", "64:ff9b:2::cb00:7109", "64:ff9b:2::/64", "64:ff9b:2::/48"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", "2001:db8:1::/48"},
		{"::203.0.113.9", "::cb00:7109", "::/64", "::/48"},
		{"fe80::1%eth0", "fe80::1", "fe80::/64", "fe80::/48"},
		{"2002:cb00:7109:1::5", "2002:cb00:7109:1::5", "203.0.113.9", "203.0.113.0/24"},
		{"2002:a00:1:1::5", "2002:a00:1:1::5", "2002:a00:1:1::/64", "2002:a00:1::/48"},
		{"2002:7f00:1:1::5", "2002:7f00:1:1::5", "2002:7f00:1:1::/64", "2002:7f00:1::/48"},
		{"::1", "::1", "::/64", "::/48"},
		{"", "invalid IP", "", ""},
	} {
		addr := parse(tt.addr)
		require.Equal(t, tt.plain, address.Plain(addr).String())
		require.Equal(t, tt.text, address.Text(addr, 64), tt.addr)
		require.Equal(t, tt.network, address.Network(addr, 24, 48), tt.addr)
		require.Equal(t, addr.Is6() && !strings.HasPrefix(tt.addr, "64:ff9b:1:") && address.Plain(addr).Is6(), address.HasNetwork(addr), tt.addr)
	}
}

func TestTextKeepsTheBitsThatAreAskedFor(t *testing.T) {
	for bits, want := range map[int]string{
		-1: "::/1", 0: "::/1", 1: "::/1", 48: "2001:db8:1::/48", 127: "2001:db8:1:2:3:4:5:6/127",
		128: "2001:db8:1:2:3:4:5:7", 1000: "2001:db8:1:2:3:4:5:7",
	} {
		require.Equal(t, want, address.Text(parse("2001:db8:1:2:3:4:5:7"), bits), bits)
		require.Equal(t, "203.0.113.9", address.Text(parse("203.0.113.9"), bits))
	}
}

func TestAPrefixIsThatOfThePlainAddresses(t *testing.T) {
	addrs := []string{"10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "64:ff9b::10.1.2.3%eth0"}
	for prefix, want := range map[string]bool{
		"10.0.0.0/8": true, "11.0.0.0/8": false, "0.0.0.0/0": true,
		"::ffff:10.0.0.0/104": true, "::ffff:11.0.0.0/104": false, "::ffff:10.1.2.3/128": true,
		"64:ff9b::10.0.0.0/104": true, "64:ff9b::11.0.0.0/104": false, "64:ff9b::/96": true,
		"64:ff9b::/95": false, "::/0": false, // wider than all IPv4 addresses
	} {
		prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix(prefix)}
		for _, addr := range addrs {
			require.Equal(t, want, address.In(parse(addr), prefixes), "%s in %s", addr, prefix)
		}
	}
	local := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	require.False(t, address.In(parse("64:ff9b:1::10.1.2.3"), local), "nobody knows where its IPv4 address is")
	require.False(t, address.In(netip.Addr{}, append(local, netip.MustParsePrefix("::/0"))))
	require.True(t, address.In(parse("fe80::1%eth0"), []netip.Prefix{netip.MustParsePrefix("fe80::/10")}))
	require.False(t, address.In(parse("10.1.2.3"), nil))
}
