package robots_test

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/robots"
)

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, text := range texts {
		ps = append(ps, netip.MustParsePrefix(text))
	}
	return ps
}

func TestListsAreReadByTheirShape(t *testing.T) {
	for name, c := range map[string]struct {
		list string
		want []netip.Prefix
	}{
		"Google":       {`{"creationTime":"2026-05-01T22:00:46.000000","prefixes":[{"ipv6Prefix":"2001:4860:4801:10::/64"},{"ipv4Prefix":"66.249.64.0/27"}]}`, prefixes("2001:4860:4801:10::/64", "66.249.64.0/27")},
		"JAFAR":        {`{"synctoken":"1","notes":"see 9.9.9.9","prefixes":[{"ipv4Prefix":"9.0.0.0/24","services":["Examplebot"]},{"ipv4Prefix":"9.0.1.0/24","ipv6Prefix":"2a00::/32"},{"ipv4Prefix":"9.0.2.0/24"}]}`, prefixes("9.0.0.0/24", "9.0.2.0/24")},
		"AWS":          {`{"syncToken":"1","prefixes":[{"ip_prefix":"3.5.140.0/22","region":"x"}],"ipv6_prefixes":[{"ipv6_prefix":"2600:1f00::/24"}]}`, prefixes("2600:1f00::/24", "3.5.140.0/22")},
		"Azure":        {`{"values":[{"name":"x","properties":{"addressPrefixes":["4.1.0.0/16","2603:1000::/24"]}}]}`, prefixes("4.1.0.0/16", "2603:1000::/24")},
		"meta":         {`{"hooks":["192.30.252.0/22"],"ssh_keys":["ssh-rsa AAAA","1.2.3"],"verifiable":true,"web":["9.0.0.1"]}`, prefixes("192.30.252.0/22", "9.0.0.1/32")},
		"Fastly":       {`{"addresses":["23.235.32.0/20"],"ipv6_addresses":["2a04:4e40::/32"]}`, prefixes("23.235.32.0/20", "2a04:4e40::/32")},
		"Ahrefs":       {`{"ips":[{"ip_address":"5.39.1.224"}]}`, prefixes("5.39.1.224/32")},
		"array":        {` [ "9.0.0.0/24" ] `, prefixes("9.0.0.0/24")},
		"plain":        {"149.154.160.0/20\n2001:67c:4e8::/48", prefixes("149.154.160.0/20", "2001:67c:4e8::/48")},
		"CR LF, BOM":   {"\xef\xbb\xbf9.0.0.0/24\r\n\r\n9.0.1.1\r\n", prefixes("9.0.0.0/24", "9.0.1.1/32")},
		"BOM, JSON":    {"\xef\xbb\xbf[\"9.0.0.0/24\"]\r\n", prefixes("9.0.0.0/24")},
		"comments":     {"# all of 10.0.0.0/8\n9.0.0.0/24 # one\n; two\n9.0.1.0/24; three", prefixes("9.0.0.0/24", "9.0.1.0/24")},
		"geofeed":      {"# feed\n5.101.96.0/21,NL,NL-NH,Amsterdam,1105\n2a03:b0c0::/32,,,,\n", prefixes("5.101.96.0/21", "2a03:b0c0::/32")},
		"CSV":          {"ip_prefix,country\n\"5.101.96.0/21\",\"NL\"\n", prefixes("5.101.96.0/21")},
		"tabs":         {"5.101.96.0/21\t64500\n", prefixes("5.101.96.0/21")},
		"RADb":         {"route:      31.13.24.0/21\ndescr:      not 10.0.0.0/8\n            of Meta\norigin:     AS32934\n\nroute6:     2a03:2880::/32\n", prefixes("31.13.24.0/21", "2a03:2880::/32")},
		"host bits":    {"9.0.0.5/24\n2a00::1/32", prefixes("9.0.0.0/24", "2a00::/32")},
		"mapped":       {"::ffff:9.0.0.0/120\n::ffff:9.0.1.1", prefixes("9.0.0.0/24", "9.0.1.1/32")},
		"twice":        {"9.0.0.5/24\n9.0.0.0/24\n9.0.0.0/25", prefixes("9.0.0.0/24", "9.0.0.0/25")},
		"rubbish":      {"9.0.0.0/24\n1/0\nNULL\n9.0.1.0/24\nc/1364677\n9.0.2.0/24\n9.0.3.0/24", prefixes("9.0.0.0/24", "9.0.1.0/24", "9.0.2.0/24", "9.0.3.0/24")},
		"the shortest": {"17.0.0.0/8\n2600::/16", prefixes("17.0.0.0/8", "2600::/16")},
	} {
		got, err := robots.ReadPrefixes(strings.NewReader(c.list))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestListsThatWouldVerifyAnybodyOrNobodyAreRefused(t *testing.T) {
	for list, want := range map[string]string{
		"":                  "no prefixes",
		" \n# nothing\n":    "no prefixes",
		"{}":                "no prefixes",
		`{"prefixes":[]}`:   "no prefixes",
		`{"prefixes":null}`: "no prefixes",
		"null":              "no prefixes",
		`{"prefixes":[{"ipv4Prefix":"9.0.0.0/24"}`: "line 1: not JSON",
		`["9.0.0.0/24"] more`:                      "line 1: not JSON",
		"<!DOCTYPE html>\n<p>9.0.0.0/24":           "line 1: a page of HTML",
		"9.0.0.0/24\n<br>9.0.1.0/24":               "line 2: a page of HTML",
		"Not Found\nSorry\n9.0.0.1":                "half of the lines or more are no prefixes (line 2 is \"Sorry\")",
		"Not Found":                                "no prefixes",
		"9.0.0.0/24\n1/0":                          "half of the lines or more",
		"9.0.0.0/24\n9.0.0.0/7":                    "line 2: 9.0.0.0/7 is shorter than /8",
		"0.0.0.0/0":                                "line 1: 0.0.0.0/0 is shorter than /8",
		"::/0":                                     "::/0 is shorter than /16",
		"2000::/15":                                "2000::/15 is shorter than /16",
		"::ffff:0:0/96":                            "is shorter than /8",
		"10.1.2.3":                                 "10.1.2.3 is not on the internet, as 10.0.0.0/8 is reserved",
		"192.168.1.0/24":                           "is not on the internet",
		"192.0.0.0/8":                              "is not on the internet",
		"127.0.0.1":                                "is not on the internet",
		"203.0.113.0/24":                           "is not on the internet",
		"198.51.100.7":                             "is not on the internet",
		"2001:db8::/32":                            "is not on the internet",
		"fd00::/16":                                "is not on the internet",
		"fe80::1":                                  "is not on the internet",
		"::1":                                      "is not on the internet",
		"255.255.255.255":                          "is not on the internet",
		"9.0.0.0/24\n3.455.766.537":                `line 2: "3.455.766.537" is no prefix`,
		"9.0.0.0/24\n9.0.1.0/240":                  `line 2: "9.0.1.0/240" is no prefix`,
		"9.0.0.0/24\n9.0.1":                        `line 2: "9.0.1" is no prefix`,
		"9.0.0.0/24\n2a00::/129":                   `line 2: "2a00::/129" is no prefix`,
		"fe80::1%eth0":                             "no prefixes",
		"{\"prefixes\":[\n{\"ipv4Prefix\":\"9.0.0.0/24\"},\n{\"ipv4Prefix\":\"10.0.0.0/8\"}]}": "line 3: 10.0.0.0/8 is not on the internet",
		"{\"prefixes\":[\n{\"ipv4Prefix\":\"9.0.0.0/244\"}]}":                                  `line 2: ipv4Prefix "9.0.0.0/244" is no prefix`,
	} {
		got, err := robots.ReadPrefixes(strings.NewReader(list))
		require.ErrorContains(t, err, want, list)
		require.Nil(t, got)
	}
}

func TestPublishedListsAreRead(t *testing.T) {
	for name, want := range map[string]int{
		"ahrefs-ips.json": 50, "applebot.json": 12, "bingbot.json": 28, "chatgpt-user.json": 240, "common-crawlers.json": 309,
		"duckduckbot.json": 319, "gptbot.json": 21, "perplexitybot.json": 8, "searchbot.json": 35, "telegram.txt": 14, "yandex.txt": 16,
	} {
		contents, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		got, err := robots.ReadPrefixes(bytes.NewReader(contents))
		require.NoError(t, err, name)
		require.Len(t, got, want, name)
	}
}

// Whatever is read, what comes out would verify neither everybody nor a private network, and
// reads back the same.
func FuzzReadPrefixes(f *testing.F) {
	for _, seed := range []string{"9.0.0.0/24\r\n2a00::1", `{"prefixes":[{"ipv4Prefix":"9.0.0.0/24"}]}`, "route: 9.0.0.0/24", "<html>", "a,b\n9.0.0.0/24,x", "\xef\xbb\xbf[\"9.0.0.1\"]", "::ffff:9.0.0.0/120"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		got, err := robots.ReadPrefixes(bytes.NewReader(list))
		require.Equal(t, err == nil, len(got) > 0)
		var again strings.Builder
		for _, p := range got {
			require.Equal(t, p.Masked(), p)
			require.True(t, p.Addr().Is4() && p.Bits() >= 8 || p.Addr().Is6() && !p.Addr().Is4In6() && p.Bits() >= 16, p)
			require.False(t, p.Addr().IsPrivate() || p.Addr().IsLoopback() || p.Addr().IsMulticast() || p.Addr().IsUnspecified(), p)
			again.WriteString(p.String() + "\n")
		}
		if err == nil {
			same, err := robots.ReadPrefixes(strings.NewReader(again.String()))
			require.NoError(t, err)
			require.Equal(t, got, same)
		}
	})
}
