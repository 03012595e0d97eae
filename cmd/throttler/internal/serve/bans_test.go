package serve_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// liftOnThePage lifts a ban of a value on the page of a service, as a browser does.
func liftOnThePage(t *testing.T, s *service, value, key string) int {
	t.Helper()
	site := "http://" + s.admin + "/tally"
	_, page := request(t, http.DefaultClient, "GET", site, "")
	row := regexp.MustCompile(`<bdi>` + regexp.QuoteMeta(value) + `</bdi> <small.*?href="(\?lift=[0-9a-f]+)"`).FindStringSubmatch(page)
	require.NotNil(t, row, "%s in %s", value, page)
	answer, _ := request(t, http.DefaultClient, "POST", site+row[1], url.Values{"key": {key}}.Encode(),
		"Content-Type", "application/x-www-form-urlencoded", "Origin", "http://"+s.admin)
	return answer.StatusCode
}

func TestBansOfRulesRobotsAndLoginsAreLiftedOnThePage(t *testing.T) {
	const rules = `
trust: [127.0.0.1]
robots: {own: [{name: Ourbot, tokens: [ourbot], group: monitor}]}
rules:
  - name: robots
    for: {robot: {group: monitor}}
    either: [{name: each, value: "{robot}", max: 1, per: 1h}]
    lockout: 2h
  - name: pages
    for: {path: [/page/*]}
    either: [{name: address, value: "{address}", max: 1, per: 1h}]
    lockout: 2h
`
	for name, servers := range map[string][]string{"memory": nil, "memcached": {servertest.NewMemcached(t).Addr}} {
		t.Run(name, func(t *testing.T) {
			s := startAPI(t, programs, rules, servers...)
			status := func(target, agent string) int {
				answer, _ := ask(t, s, "/auth", "203.0.113.7", target, "User-Agent", agent)
				return answer.StatusCode
			}
			require.Equal(t, []int{200, 429, 200, 429},
				[]int{status("/", "ourbot/1"), status("/", "ourbot/1"), status("/page/1", "Mozilla/5.0"), status("/page/1", "Mozilla/5.0")})
			logIn := func() map[string]any {
				_, begun := askAPI(t, http.DefaultClient, "http://"+s.api, "/v1/login/begin", `{"name": "alice", "address": "203.0.113.7"}`)
				return begun
			}
			fail := func() {
				if attempt := logIn()["attempt"]; attempt != nil {
					askAPI(t, http.DefaultClient, "http://"+s.api, "/v1/login/fail", fmt.Sprintf(`{"attempt": %q}`, attempt))
				}
			}
			for range 20 {
				fail()
			}
			require.Equal(t, "blocked", logIn()["status"])

			_, page := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/tally", "")
			assert.NotContains(t, page, "throttler-login-", "what the guard keeps for itself")
			assert.Equal(t, 403, liftOnThePage(t, s, "203.0.113.7", "a wrong key of 16 bytes"))
			for value, passes := range map[string]func() int{
				"Ourbot":      func() int { return status("/", "ourbot/1") },
				"203.0.113.7": func() int { return status("/page/1", "Mozilla/5.0") },
				"203.0.113.7#alice": func() int {
					fail() // one more, which bans nobody whose failures are forgotten
					if logIn()["status"] == "blocked" {
						return 429
					}
					return 200
				},
			} {
				require.Equal(t, 429, passes(), value)
				liftOnThePage(t, s, value, programs.Keys[0])
				assert.Equal(t, 200, passes(), value)
			}
		})
	}
}
