package robots_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/adaptivethrottler/throttler/robots"
)

// write writes a file into a directory of the test and returns its path.
func write(t testing.TB, name, contents string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(contents), 0o600))
	return path
}

// lists are those in testdata, by robot.
func lists() map[string][]string {
	return map[string][]string{
		"Googlebot": {"testdata/common-crawlers.json"}, "Bingbot": {"testdata/bingbot.json"},
		"DuckDuckBot": {"testdata/duckduckbot.json"}, "Applebot": {"testdata/applebot.json"},
		"YandexBot": {"testdata/yandex.txt"}, "GPTBot": {"testdata/gptbot.json"}, "OAI-SearchBot": {"testdata/searchbot.json"},
		"PerplexityBot": {"testdata/perplexitybot.json"}, "ChatGPT-User": {"testdata/chatgpt-user.json"},
		"TelegramBot": {"testdata/telegram.txt"}, "AhrefsBot": {"testdata/ahrefs-ips.json"},
	}
}

func open(t testing.TB, o robots.Options) *robots.Directory {
	d, err := robots.Open(o)
	require.NoError(t, err)
	return d
}

const (
	chrome   = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"
	google   = "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; Googlebot/2.1; +http://www.google.com/bot.html) Chrome/120.0.0.0 Safari/537.36"
	gpt      = "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)"
	iMessage = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_11_1) AppleWebKit/601.2.4 (KHTML, like Gecko) Version/9.0.1 Safari/601.2.4 facebookexternalhit/1.1 Facebot Twitterbot/1.0"
)

func TestNamesAreFoundInUserAgents(t *testing.T) {
	d := open(t, robots.Options{})
	for agent, want := range map[string]string{
		google:                "claimed Googlebot search",
		"Googlebot-Image/1.0": "claimed Googlebot search",
		"gOOGLEBOT":           "claimed Googlebot search",
		"Mozilla/5.0+(compatible;+Googlebot/2.1;++http://www.google.com/bot.html)": "claimed Googlebot search",
		"Mediapartners-Google":     "claimed AdsBot-Google search",
		"DuckDuckBot-Https/1.1; x": "claimed DuckDuckBot search",
		"Mozilla/5.0 (compatible;PetalBot;+https://webmaster.petalsearch.com/site/petalbot)":                                                                                        "claimed PetalBot search",
		"Mozilla/5.0 (compatible; YandexScreenshotBot/3.0; +http://yandex.com/bots)":                                                                                                "claimed YandexBot search",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/13.1.1 Safari/605.1.15 (Applebot/0.1; +http://www.apple.com/go/applebot)": "claimed Applebot search",
		gpt: "claimed GPTBot ai",
		chrome + "; GPTBot/1.3; +https://openai.com/gptbot":                         "claimed GPTBot ai",
		chrome + " (compatible; meta-externalagent/1.1)":                            "claimed meta-externalagent ai",
		"Claude-User (claude-code/1.0; +https://support.example/)":                  "claimed Claude-User fetch",
		"TelegramBot (like TwitterBot)":                                             "claimed TelegramBot preview",
		"facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)": "claimed facebookexternalhit preview",
		"facebookexternalhit/1.1;kakaotalk-scrap/1.0":                               "claimed facebookexternalhit preview",
		iMessage: "claimed iMessage preview",
		"Mozilla/5.0 (compatible; Pinterestbot/1.0; +http://www.pinterest.com/bot.html)":        "claimed Pinterestbot preview",
		"Feedly/1.0 (+http://www.feedly.com/fetcher.html; 3 subscribers)":                       "claimed Feedly feed",
		"Mozilla/5.0 (compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)":                "claimed UptimeRobot monitor",
		"Mozilla/5.0 (compatible; archive.org_bot +http://archive.org/details/archive.org_bot)": "claimed archive.org_bot archive",
		"Mozilla/5.0 (compatible; SemrushBot-OCOB/1; +https://www.semrush.com/bot/)":            "claimed SemrushBot seo",

		// A word that only holds a token, and a token that names what the robot is like.
		"Snapplebot/1.0":   "unknown other ",
		"NotGPTBot/1.0":    "unknown other ",
		"Pre-GPTBot/1.0":   "unknown other ",
		"GPTBots are here": "unknown other ",
		"Mozilla/5.0 (compatible; Foo/1; like Googlebot)":    "unknown other ",
		"Mozilla/5.0 (compatible; Foobot/1; like Googlebot)": "unknown other ",

		"":                          "unknown other ",
		"-":                         "unknown other ",
		"  ":                        "unknown other ",
		"curl/8.5.0":                "unknown curl ",
		"python-requests/2.31.0":    "unknown python-requests ",
		"Python/3.11 aiohttp/3.9.1": "unknown aiohttp ",
		"Go-http-client/2.0":        "unknown Go-http-client ",
		"Wget/1.21.4":               "unknown Wget ",
		"Java/17.0.2":               "unknown Java ",
		"okhttp/4.12.0":             "unknown okhttp ",
		"GuzzleHttp/7":              "unknown GuzzleHttp ",
		"libwww-perl/6.67":          "unknown libwww-perl ",
		"Mozilla/5.0 (compatible; Foo-Crawler/1.0)": "unknown other ",
		"foospider": "unknown other ",
		"Mozilla/5.0 (compatible; Thing/1.0; +https://thing.example/)":                                    "unknown other ",
		"Mozilla/5.0 (X11) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/120.0.0.0 Safari/537.36": "unknown HeadlessChrome ",

		chrome: "person  ",
		"Mozilla/5.0 (Linux; Android 10; CUBOT NOTE 20) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Mobile Safari/537.36": "person  ",
		"Mozilla/5.0 (Linux; Android 10; CUBOT_X18) Chrome/120.0.0.0":                                                                 "person  ",
		"MyApp/1.2 CFNetwork/1408 Darwin/22.5.0":                                                                                      "person  ",
		"Mozilla/5.0 (iPhone) YandexSearch/7.70":                                                                                      "person  ",
		"Mozilla/5.0 (iPhone) DuckDuckGo/7 Safari/605.1.15":                                                                           "person  ",
		"Javanese/1.0 Botany Rubys Pythonic":                                                                                          "person  ",
		strings.Repeat("x", 512) + " Googlebot":                                                                                       "person  ",
	} {
		id := d.Identify(agent, netip.Addr{})
		require.Equal(t, want, fmt.Sprintf("%v %s %s", id.Standing, id.Name, id.Group), agent)
	}
}

func TestEveryTokenOfTheTableNamesItsRobot(t *testing.T) {
	known := robots.Known()
	d := open(t, robots.Options{Robots: known})
	for _, r := range known {
		require.Contains(t, robots.Groups(), r.Group)
		for _, token := range r.Tokens {
			for _, agent := range []string{token, strings.ToUpper(token), "Mozilla/5.0 (compatible; " + token + "/1.0; +http://x.example)"} {
				id := d.Identify(agent, netip.Addr{})
				require.Equal(t, robots.Identity{Name: r.Name, Group: r.Group, Standing: robots.Claimed}, id, agent)
			}
		}
	}
	known[0].Name = "changed"
	require.Equal(t, "Googlebot", robots.Known()[0].Name)
}

func TestAClaimIsCheckedAgainstTheListOfTheNameClaimed(t *testing.T) {
	d := open(t, robots.Options{Lists: lists()})
	for _, c := range []struct {
		agent, addr string
		want        robots.Standing
	}{
		{google, "66.249.64.1", robots.Verified},
		{google, "::ffff:66.249.64.1", robots.Verified},
		{google, "2001:4860:4801:10::5", robots.Verified},
		{google, "2001:4860:4801:10::5%eth0", robots.Verified},
		{google, "5.6.7.8", robots.Impostor},
		{google, "2a00::1", robots.Impostor},
		{google, "", robots.Claimed},
		{"bingbot/2.0", "157.55.39.1", robots.Verified},
		{"bingbot/2.0", "66.249.64.1", robots.Impostor},
		{"bingbot/2.0", "2a01:111::1", robots.Claimed}, // Bing publishes no IPv6
		{"bingbot/2.0", "::ffff:5.6.7.8", robots.Impostor},
		{"YandexBot/3.0", "95.108.213.1", robots.Verified},
		{"YandexBot/3.0", "2a02:6b8::1", robots.Verified},
		{"TelegramBot", "149.154.161.1", robots.Verified},
		{"AhrefsBot/7.0", "142.44.220.0", robots.Verified},
		{"AhrefsBot/7.0", "142.44.220.1", robots.Impostor},
		{"ClaudeBot/1.0", "66.249.64.1", robots.Claimed},
		{iMessage, "5.6.7.8", robots.Claimed},
		{chrome, "66.249.64.1", robots.Person},
		{"", "66.249.64.1", robots.Unknown},
	} {
		addr, _ := netip.ParseAddr(c.addr)
		require.Equal(t, c.want.String(), d.Identify(c.agent, addr).Standing.String(), "%s from %s", c.agent, c.addr)
	}
}

// People's phones send iMessage's agent from anywhere, also if the table knows only the robots in it.
func TestAPhoneIsNoImpostor(t *testing.T) {
	d := open(t, robots.Options{Robots: []robots.Robot{
		{Name: "Facebook", Tokens: []string{"facebookexternalhit"}, Group: "preview", Lists: []string{write(t, "list", "31.13.24.0/21")}},
	}})
	require.Equal(t, robots.Claimed, d.Identify(iMessage, netip.MustParseAddr("9.0.0.1")).Standing)
	require.Equal(t, robots.Verified, d.Identify(iMessage, netip.MustParseAddr("31.13.24.1")).Standing)
	require.Equal(t, robots.Impostor, d.Identify("facebookexternalhit/1.1", netip.MustParseAddr("9.0.0.1")).Standing)
	known := open(t, robots.Options{Lists: lists()})
	require.Equal(t, robots.Impostor, known.Identify("YandexImages-"+iMessage[strings.Index(iMessage, "facebook"):], netip.MustParseAddr("9.0.0.1")).Standing)
}

func TestAFileMayBeAListAndATable(t *testing.T) {
	both := write(t, "both", "9.0.0.0/24,7\n")
	d := open(t, robots.Options{ASN: []string{both}, Lists: map[string][]string{"GPTBot": {both}}, Networks: map[string][]string{"net": {both}, "AS7": nil}})
	id := d.Identify("GPTBot", netip.MustParseAddr("9.0.0.1"))
	require.Equal(t, robots.Identity{Name: "GPTBot", Group: "ai", Network: "net", ASN: 7, Standing: robots.Verified}, id)
	require.NoError(t, d.Reload())
	require.Len(t, d.Files(), 2)
}

func TestANetworkIsTheNarrowestThatHoldsTheAddress(t *testing.T) {
	asn := write(t, "asn.tsv", "1.0.0.0\t1.255.255.255\t64500\tXX\tWide\n2.0.0.0\t2.0.0.255\t132203\tCN\tTENCENT\n2400::\t2400:ffff:ffff:ffff:ffff:ffff:ffff:ffff\t132203\tCN\tX\n3.0.0.0\t3.255.255.255\t0\tNone\tNot routed\n")
	d := open(t, robots.Options{
		ASN: []string{asn},
		Networks: map[string][]string{
			"tencent":  {"AS132203"},
			"as64500":  nil,
			"cloud":    {write(t, "cloud", "1.2.0.0/16\n4.0.0.0/8\n2a00::/29"), write(t, "more", "5.0.0.0/8")},
			"customer": {write(t, "customer", "1.2.3.0/24\n4.5.6.7")},
			"both":     {write(t, "both", "6.0.0.0/8\n1.2.3.4"), "AS132203"},
		},
	})
	for addr, want := range map[string]string{
		"1.0.0.0": "as64500 64500", "1.1.255.255": "as64500 64500", "1.2.0.0": "cloud 64500", "1.2.3.0": "customer 64500",
		"1.2.3.4": "both 64500", "1.2.3.5": "customer 64500", "1.2.4.0": "cloud 64500", "1.255.255.255": "as64500 64500",
		"2.0.0.0": "both 132203", "2.0.1.0": " 0", "2400::1": "both 132203", "2401::": " 0",
		"3.0.0.0": " 0", "4.5.6.7": "customer 0", "4.5.6.8": "cloud 0", "5.1.1.1": "cloud 0", "6.1.1.1": "both 0",
		"2a00::1": "cloud 0", "2a00:8::": " 0", "255.255.255.255": " 0", "::": " 0", "::ffff:1.2.3.4": "both 64500",
	} {
		id := d.Identify(chrome, netip.MustParseAddr(addr))
		require.Equal(t, want, fmt.Sprintf("%s %d", id.Network, id.ASN), addr)
		require.Equal(t, robots.Person, id.Standing)
	}
}

func TestTablesOfAutonomousSystemsHaveManyForms(t *testing.T) {
	for name, contents := range map[string]string{
		"tsv":     "9.0.0.0\t9.0.0.255\t7\tXX\tName, with a comma\n",
		"csv":     "9.0.0.0,9.0.0.255,7,Name",
		"quoted":  "\"9.0.0.0\",\"9.0.0.255\",\"7\",\"Name\"\r\n",
		"decimal": "150994944\t150995199\t7\tXX\tName\n",
		"AS":      "range_start,range_end,asn\n9.0.0.0,9.0.0.255,AS7\n",
		"prefix":  "# routes\n\n9.0.0.0/24\t7\n",
		"mapped":  "\xef\xbb\xbf::ffff:9.0.0.0,::ffff:9.0.0.255,7",
	} {
		d := open(t, robots.Options{ASN: []string{write(t, name, contents)}})
		require.EqualValues(t, 7, d.Identify("", netip.MustParseAddr("9.0.0.255")).ASN, name)
		require.Zero(t, d.Identify("", netip.MustParseAddr("9.0.1.0")).ASN, name)
	}
	for contents, want := range map[string]string{
		"":                                       "table: no ranges: want lines of start, end and number",
		"9.0.0.0,9.0.0.255,7\n9.0.0.0,8.0.0.0,7": "table:2: 9.0.0.0 to 8.0.0.0 is no range",
		"9.0.0.0,9.0.0.255,7\n9.0.0.0,::,7":      "table:2: 9.0.0.0 to :: is no range",
		"9.0.0.0,9.0.0.255,7\nx,y,7":             `table:2: "x" is no address`,
		"9.0.0.0,9.0.0.255,7\n9.0.0.0,9.0.0.255": `table:2: "" is no number of an autonomous system`,
		"9.0.0.0,9.0.0.255,7\n9.0.0.0/33,7":      `table:2: "9.0.0.0/33" is no prefix`,
		"<html>":                                 `table:1: "<html>" is no address`,
		"9.0.0.0,9.0.0.255,0":                    "table: no ranges",
	} {
		_, err := robots.Open(robots.Options{ASN: []string{write(t, "table", contents)}})
		require.ErrorContains(t, err, want, contents)
	}
}

func TestMistakesInOptionsAreTold(t *testing.T) {
	good := write(t, "good", "9.0.0.0/24")
	one := func(name, group string, tokens ...string) []robots.Robot {
		return []robots.Robot{{Name: name, Group: group, Tokens: tokens}}
	}
	for want, o := range map[string]robots.Options{
		`robot "X": group "bad" is unknown: want one of search, ai, fetch`: {Robots: one("X", "bad", "xbot")},
		`robot "X": no tokens: want the part`:                              {Robots: one("X", "ai")},
		`robot "X": token "xy" has fewer than 3 letters`:                   {Robots: one("X", "ai", "xy")},
		`robot "X": token "-x/y-" has fewer than 3 letters`:                {Robots: one("X", "ai", "-x/y-")},
		`robot "X": token "bücher" is not at most 512 ASCII characters`:    {Robots: one("X", "ai", "bücher")},
		`robot "x": the name is there twice`:                               {Robots: append(one("X", "ai", "xbot"), one("x", "ai", "ybot")...)},
		`robot "Y": token "XBOT" is that of "X" too`:                       {Robots: append(one("X", "ai", "xbot"), one("Y", "ai", "XBOT")...)},
		`robot "other": want a name`:                                       {Robots: one("other", "ai", "xbot")},
		`robot "": want a name`:                                            {Robots: one("", "ai", "xbot")},
		`Lists["Nobody"]: there is no robot of that name`:                  {Lists: map[string][]string{"Nobody": {good}}},
		`open no/such/file`:                                                {Lists: map[string][]string{"GPTBot": {"no/such/file"}}},
		`Networks["cloud"]: want a name, and files`:                        {Networks: map[string][]string{"cloud": nil}},
		`Networks["cloud"]: AS7 needs a table`:                             {Networks: map[string][]string{"cloud": {"AS7"}}},
		`Networks["cloud"]: AS7 is in none of the tables`:                  {Networks: map[string][]string{"cloud": {"AS7"}}, ASN: []string{write(t, "asn", "9.0.0.0,9.0.0.9,8")}},
		`bad:2: 10.0.0.0/8 is not on the internet`:                         {Networks: map[string][]string{"cloud": {write(t, "bad", "9.0.0.0/24\n10.0.0.0/8")}}},
	} {
		d, err := robots.Open(o)
		require.ErrorContains(t, err, want)
		require.Nil(t, d)
	}
	_, err := robots.Open(robots.Options{Robots: one("X", "bad", "xy"), Lists: map[string][]string{"Y": nil}})
	require.ErrorContains(t, err, "group")
	require.ErrorContains(t, err, "token")
	require.ErrorContains(t, err, `Lists["Y"]`, "all mistakes at once")
}

func TestAReloadKeepsWhatARefusedFileHeld(t *testing.T) {
	list, other, table := write(t, "list", "9.0.0.1\n9.0.0.2\n9.0.0.3\n9.0.0.4\n"), write(t, "other", "8.0.0.0/24"), write(t, "table", "9.0.0.0,9.0.0.9,7")
	d := open(t, robots.Options{Lists: map[string][]string{"GPTBot": {list}, "CCBot": {other}}, ASN: []string{table}, Networks: map[string][]string{"net": {"AS7"}}})
	set := func(path, contents string) { require.NoError(t, os.WriteFile(path, []byte(contents), 0o600)) }
	verified := func(agent, addr string) bool {
		return d.Identify(agent, netip.MustParseAddr(addr)).Standing == robots.Verified
	}
	require.NoError(t, d.Reload())
	for _, c := range []struct{ contents, why string }{
		{"", "no prefixes"},
		{"<!DOCTYPE html><html>", "HTML"},
		{"0.0.0.0/0", "shorter than /8"},
		{"9.0.0.1", "has 1 entries where 4 were"},
	} {
		set(list, c.contents)
		set(other, "8.0.1.0/24\n8.0.0.0/24\n")
		err := d.Reload()
		require.ErrorContains(t, err, list)
		require.ErrorContains(t, err, c.why)
		require.True(t, verified("GPTBot", "9.0.0.4"))
		require.False(t, verified("GPTBot", "9.0.0.5"))
		require.True(t, verified("CCBot", "8.0.1.1"), "the other file is taken")
		files := d.Files()
		require.Len(t, files, 3)
		i := slices.IndexFunc(files, func(f robots.File) bool { return f.Path == list })
		require.Equal(t, 4, files[i].Entries)
		require.ErrorContains(t, files[i].Err, c.why)
	}
	require.NoError(t, os.Remove(list))
	require.ErrorContains(t, d.Reload(), list)
	require.True(t, verified("GPTBot", "9.0.0.4"))
	set(list, "9.0.0.5\n9.0.0.6\n")
	require.NoError(t, d.Reload(), "half is enough")
	require.True(t, verified("GPTBot", "9.0.0.5"))
	require.False(t, verified("GPTBot", "9.0.0.4"))

	set(table, "9.0.0.0,9.0.0.9,8")
	require.ErrorContains(t, d.Reload(), "AS7 is in none")
	require.Equal(t, "net", d.Identify("", netip.MustParseAddr("9.0.0.1")).Network, "nothing of that reload is taken")
	require.EqualValues(t, 7, d.Identify("", netip.MustParseAddr("9.0.0.1")).ASN)
}

func TestIdentifyAndReloadAtTheSameTime(t *testing.T) {
	list := write(t, "list", "9.0.0.0/24")
	d := open(t, robots.Options{Lists: map[string][]string{"GPTBot": {list}}})
	var group sync.WaitGroup
	done := make(chan bool)
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if id := d.Identify("GPTBot", netip.MustParseAddr("9.0.0.1")); id.Standing != robots.Verified {
					t.Error(id)
					return
				}
				runtime.Gosched()
			}
		})
	}
	for range 50 {
		require.NoError(t, d.Reload())
	}
	close(done)
	group.Wait()
}

// The naive directory looks through everything.
func naive(known []robots.Robot, prefixes map[string][]netip.Prefix, agent string, addr netip.Addr) (name string, s robots.Standing) {
	longest := 0
	lower := strings.ToLower(agent)
	alphanumeric := func(i int) bool {
		return i >= 0 && i < len(lower) && strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz", rune(lower[i]))
	}
	for i := range lower { // of equal tokens the first
		for _, r := range known {
			for _, token := range r.Tokens {
				if token = strings.ToLower(token); !strings.HasPrefix(lower[i:], token) || len(token) <= longest {
					continue
				}
				end := i + len(token)
				if alphanumeric(i) && (alphanumeric(i-1) || i > 0 && lower[i-1] == '-') || alphanumeric(end-1) && alphanumeric(end) ||
					strings.HasSuffix(lower[:i], "like ") {
					continue
				}
				longest, name = len(token), r.Name
			}
		}
	}
	if name == "" {
		return "", robots.Person
	}
	covered := false
	for _, p := range prefixes[name] {
		if p.Contains(addr) {
			return name, robots.Verified
		}
		covered = covered || p.Addr().Is4() == addr.Is4()
	}
	if covered {
		return name, robots.Impostor
	}
	return name, robots.Claimed
}

func TestIdentifyAgreesWithANaiveDirectory(t *testing.T) {
	known := robots.Known()
	d := open(t, robots.Options{Lists: lists()})
	prefixes := make(map[string][]netip.Prefix)
	var some []netip.Prefix
	for name, paths := range lists() {
		f, err := os.Open(paths[0])
		require.NoError(t, err)
		prefixes[name], err = robots.ReadPrefixes(f)
		require.NoError(t, err)
		f.Close()
		some = append(some, prefixes[name]...)
	}
	slices.SortFunc(some, netip.Prefix.Compare)
	var words []string
	for _, r := range known {
		words = append(words, r.Tokens...)
	}
	words = append(words, "like", "x", "Mozilla/5.0", "(", "-", "1", "bot")
	rapid.Check(t, func(t *rapid.T) {
		var agent strings.Builder
		for range rapid.IntRange(1, 4).Draw(t, "words") {
			agent.WriteString(rapid.SampledFrom(words).Draw(t, "word"))
			agent.WriteString(rapid.SampledFrom([]string{"", " ", "-", "/", "2"}).Draw(t, "separator"))
		}
		addr := rapid.SampledFrom(some).Draw(t, "prefix").Addr()
		switch rapid.IntRange(0, 2).Draw(t, "addr") {
		case 1:
			addr = addr.Prev()
		case 2:
			addr = addr.Next()
		}
		name, standing := naive(known, prefixes, agent.String(), addr)
		id := d.Identify(agent.String(), addr)
		if standing == robots.Person {
			if id.Standing != robots.Person && id.Standing != robots.Unknown {
				t.Fatalf("%q from %v is %+v", agent.String(), addr, id)
			}
		} else if id.Name != name || id.Standing != standing {
			t.Fatalf("%q from %v is %+v, want %s %v", agent.String(), addr, id, name, standing)
		}
	})
}

// Overlapping networks and ranges in any way: the narrowest wins.
func TestNetworksAgreeWithANaiveSearch(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		type ranged struct {
			first, last netip.Addr
			n           int
		}
		var all []ranged
		var table strings.Builder
		at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{9, 0, byte(i >> 8), byte(i)}) }
		for n := range rapid.IntRange(1, 12).Draw(t, "ranges") {
			first := rapid.IntRange(0, 300).Draw(t, "first")
			last := first + rapid.IntRange(0, 300).Draw(t, "length")
			all = append(all, ranged{at(first), at(last), n + 1})
			fmt.Fprintf(&table, "%v,%v,%d\n", at(first), at(last), n+1)
		}
		path := filepath.Join(dir, "table")
		if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := robots.Open(robots.Options{ASN: []string{path}})
		if err != nil {
			t.Fatal(err)
		}
		size := func(r ranged) int {
			a, b := r.first.As4(), r.last.As4()
			return (int(b[2])-int(a[2]))<<8 + int(b[3]) - int(a[3])
		}
		for i := range 610 {
			want := uint32(0)
			best := 1 << 30
			for _, r := range all {
				if r.first.Compare(at(i)) <= 0 && at(i).Compare(r.last) <= 0 && size(r) < best {
					best, want = size(r), uint32(r.n)
				}
			}
			if id := d.Identify("", at(i)); id.ASN != want {
				t.Fatalf("%v is in %d, want %d", at(i), id.ASN, want)
			}
		}
	})
}

func TestIdentifyAllocatesNothing(t *testing.T) {
	d := open(t, robots.Options{Lists: lists()})
	for _, agent := range []string{google, gpt, chrome, "", iMessage} {
		for _, addr := range []netip.Addr{{}, netip.MustParseAddr("66.249.64.1"), netip.MustParseAddr("2001:4860:4801:10::5"), netip.MustParseAddr("::ffff:5.6.7.8")} {
			require.Zero(t, testing.AllocsPerRun(100, func() { d.Identify(agent, addr) }), agent)
		}
	}
}
