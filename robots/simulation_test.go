package robots_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/robots"
)

// A client makes an even number of requests a minute.
type client struct {
	name    string
	minute  int
	agent   string
	addr    func(n int) string // of the n-th request
	session bool
}

func from(addr string) func(int) string { return func(int) string { return addr } }

// scenes are the cases that site owners report, with their numbers where they tell them: clients
// that come at the same time.
var scenes = [][]client{
	{{"one crawler over 60 addresses (Bytespider)", 694, "Bytespider", func(n int) string { return addressOf(9, n%60) }, false}},
	{
		{"seven crawlers: a greedy one (Amazonbot)", 150, "Amazonbot/0.1", from("9.0.0.1"), false},
		{"- GPTBot", 10, gpt, from("132.196.86.1"), false},
		{"- ClaudeBot", 10, "ClaudeBot/1.0", from("9.0.0.2"), false},
		{"- CCBot, and three more like it", 10, "CCBot/2.0", from("9.0.0.3"), false},
		{"", 10, "meta-externalagent/1.1", from("9.0.0.4"), false},
		{"", 10, "Bytespider", from("9.0.0.5"), false},
		{"", 10, "Claude-SearchBot/1.0", from("9.0.0.6"), false},
	},
	{{"browsers in rotating /24s of a hoster", 600, chrome, func(n int) string {
		return netip.AddrFrom4([4]byte{43, byte(128 + n>>8%48), byte(n), byte(n >> 4)}).String()
	}, false}},
	{
		{"140,000 residential addresses", 2334, chrome, func(n int) string {
			n *= 40503
			return netip.AddrFrom4([4]byte{101, byte(n >> 16), byte(n >> 8), byte(n)}).String()
		}, false},
		{"- a scanner at the same time", 200, chrome, from("90.0.0.1"), false},
		{"- somebody signed in", 60, chrome, from("90.0.0.2"), true},
	},
	{
		{"an impostor of Googlebot", 100, google, from("9.9.9.9"), false},
		{"- Googlebot at the same time", 33, google, func(n int) string { return fmt.Sprintf("66.249.64.%d", 1+n%8) }, false},
	},
	{{"an app that polls", 200, "MyApp/3.1 CFNetwork/1408 Darwin/22.5.0", from("91.0.0.1"), false}},
	{{"a person who opens pages of 25 files", 100, chrome, from("92.0.0.1"), false}},
}

// simulate returns how many requests of each client pass in an hour.
func simulate(rule func(*http.Request) throttler.Rule) (passed []int) {
	for _, clients := range scenes {
		s := newSite(rule)
		total := 0
		for _, c := range clients {
			total += c.minute
		}
		sent, ok := make([]int, len(clients)), make([]int, len(clients))
		for n := range 60 * total {
			for i, c := range clients {
				if (n+1)*c.minute/total == sent[i] {
					continue // it is not its turn
				}
				if s.getIn(c.agent, c.addr(sent[i]), "/", c.session).Code == http.StatusOK {
					ok[i]++
				}
				sent[i]++
			}
			// A little more, so that no request comes at the very moment that a window ends.
			time.Sleep(time.Minute/time.Duration(total) + 5*time.Microsecond)
		}
		passed = append(passed, ok...)
	}
	return passed
}

func TestTheTableOfThePageIsWhatPoliciesLetThrough(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates 1.2 million requests")
	}
	asn := write(t, "asn.tsv", "43.128.0.0\t43.175.255.255\t132203\tCN\tTENCENT\n")
	policy := robots.Policy{
		Directory: open(t, robots.Options{Lists: lists(), ASN: []string{asn}, Networks: map[string][]string{"AS132203": nil}}),
		Session:   func(r *http.Request) bool { return r.Header.Get("Cookie") != "" },
	}
	loaded := policy
	loaded.SiteMax = 2000
	capped := loaded
	capped.Max = map[string]int{"load-address": -1}
	var columns [][]int
	for _, rule := range []func(*http.Request) throttler.Rule{
		httpthrottle.Source{}.PerAddress("site", 60, time.Minute), policy.Rule, loaded.Rule, capped.Rule,
	} {
		synctest.Test(t, func(*testing.T) { columns = append(columns, simulate(rule)) })
	}
	var table strings.Builder
	table.WriteString("| in an hour | requests | 60 a minute an address | policy | SiteMax 2,000 | and load-address -1 |\n| --- | --- | --- | --- | --- | --- |\n")
	i := 0
	for _, clients := range scenes {
		for _, c := range clients {
			if c.name != "" {
				fmt.Fprintf(&table, "| %s | %s |", c.name, thousands(60*c.minute))
				for _, column := range columns {
					fmt.Fprintf(&table, " %s |", thousands(column[i]))
				}
				table.WriteString("\n")
			}
			i++
		}
	}
	page, err := os.ReadFile("../docs/robots.md")
	require.NoError(t, err)
	_, told, _ := strings.Cut(string(page), "\n| in an hour |")
	told, _, _ = strings.Cut("| in an hour |"+told, "\n\n")
	if !alike(strings.TrimSpace(table.String()), told) {
		t.Errorf("docs/robots.md has not these numbers, to 2 %%:\n%s", &table)
	}
}

// alike reports whether two tables have the same cells, numbers to 2 %.
func alike(a, b string) bool {
	return slices.EqualFunc(strings.Split(a, "|"), strings.Split(b, "|"), func(a, b string) bool {
		x, err := strconv.Atoi(strings.ReplaceAll(strings.TrimSpace(a), ",", ""))
		y, err2 := strconv.Atoi(strings.ReplaceAll(strings.TrimSpace(b), ",", ""))
		return a == b || err == nil && err2 == nil && 50*max(x-y, y-x) <= y
	})
}

func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
