package serve_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// robotRules is examples/robots.yaml with lists.
func robotRules(t *testing.T, lists string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/robots.yaml")
	require.NoError(t, err)
	rules := strings.Replace(string(text), "  known: true\n", "  known: true\n  lists: "+lists+"\n", 1)
	require.NotEqual(t, string(text), rules)
	return rules
}

// published are the lists of package robots' tests.
func published(t *testing.T) string {
	dir, err := filepath.Abs("../../../../robots/testdata")
	require.NoError(t, err)
	return "{Googlebot: " + dir + "/common-crawlers.json, Bingbot: " + dir + "/bingbot.json, GPTBot: " + dir + "/gptbot.json}"
}

// forwarded are real proxies that are themselves behind one, which names the client.
var forwarded = map[string]proxy{
	"nginx": edited("nginx", edit{"auth_request /throttler;", "auth_request /throttler;\nset_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For;"}),
	"caddy": edited("caddy", edit{"uri /auth\n", "uri /auth\n		trusted_proxies 127.0.0.0/8\n"}),
}

func TestRobotsHaveTheirBudgetsBehindRealProxies(t *testing.T) {
	for name, proxy := range forwarded {
		t.Run(name, func(t *testing.T) {
			s := start(t, robotRules(t, published(t)))
			site := "http://" + proxy(t, s.listen, application(t), false)
			get := func(agent, addr, path string) (int, string) {
				answer, _ := request(t, http.DefaultClient, "GET", site+path, "", "User-Agent", agent, "X-Forwarded-For", addr)
				return answer.StatusCode, answer.Header.Get("Retry-After")
			}
			const google = "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; Googlebot/2.1; +http://www.google.com/bot.html) Chrome/120.0.0.0 Safari/537.36"
			for _, c := range []struct {
				agent, addr string
				passes      int
				retry       string
			}{
				{google, "9.9.9.9", 10, "3600"}, // an impostor
				{"Mozilla/5.0 (compatible; GPTBot/1.2; +https://openai.com/gptbot)", "132.196.86.1", 30, ""},
				{"curl/8.5.0", "9.9.9.9", 20, ""},
				{"made-up-17-bot", "9.9.9.9", 20, ""},
				{"", "9.9.9.9", 0, ""}, // counts together with the one before
			} {
				for range c.passes {
					status, _ := get(c.agent, c.addr, "/")
					require.Equal(t, 200, status, c.agent)
				}
				status, retry := get(c.agent, c.addr, "/")
				require.Equal(t, 429, status, c.agent)
				require.NotEmpty(t, retry)
				if c.retry != "" {
					require.Contains(t, []string{c.retry, "3599"}, retry, "a ban has Retry-After")
				}
			}
			for _, c := range []struct{ agent, addr, path string }{
				{google, "66.249.64.1", "/"}, {google, "9.9.9.9", "/robots.txt"}, {"curl/8.5.0", "9.9.9.9", "/.well-known/security.txt"},
				{"Mozilla/5.0 (X11; Linux x86_64) Chrome/120.0", "9.9.9.9", "/"},
			} {
				status, _ := get(c.agent, c.addr, c.path)
				assert.Equal(t, 200, status, "%+v", c)
			}
			_, metrics := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
			assert.Contains(t, metrics, `throttler_robots_requests_total{group="search",standing="impostor"} 12`)
			assert.Contains(t, metrics, `throttler_robots_requests_total{group="search",standing="verified"} 1`)
			assert.Contains(t, metrics, `throttler_robots_requests_total{group="ai",standing="verified"} 31`)
			assert.Contains(t, metrics, `throttler_robots_requests_total{group="",standing="person"} 1`)
			assert.Regexp(t, `throttler_robots_list_age_seconds\{file=".*gptbot.json"\} \d`, metrics)
			assert.NotContains(t, metrics, "made-up")
			_, tally := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/tally?format=json", "")
			assert.Regexp(t, `"group": "search",\s+"standing": "impostor",\s+"requests": 12\b`, tally)
		})
	}
}

func TestOldAndRefusedListsAreTold(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("9.0.0.0/24"), 0o600))
	old := time.Now().AddDate(0, 0, -9)
	require.NoError(t, os.Chtimes(list, old, old))
	s := start(t, robotRules(t, "{GPTBot: "+list+"}"))
	ready := func() string {
		answer, body := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/readyz", "")
		require.Equal(t, 200, answer.StatusCode, "it decides all the same")
		return body
	}
	require.Contains(t, ready(), list+" is 9 days old")
	require.Contains(t, s.log.String(), "is 9 days old")
	require.NoError(t, os.WriteFile(list, []byte("<html>"), 0o600))
	require.Eventually(t, func() bool { return strings.Contains(ready(), list+":1: a page of HTML") }, time.Minute, 20*time.Millisecond)
	require.Contains(t, s.log.String(), "a list of robots is refused")
	require.NoError(t, os.WriteFile(list, []byte("9.0.0.0/24\n"), 0o600))
	require.Eventually(t, func() bool { return ready() == "ready\n" }, time.Minute, 20*time.Millisecond)
}
