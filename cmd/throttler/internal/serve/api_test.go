package serve_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// programs may ask with this key; all services of a test share the tokens.
var programs = serve.API{Listen: "127.0.0.1:0", Keys: []string{"a key of sixteen bytes or more"}, Token: "a secret of sixteen bytes or more"}

// askAPI asks the API of a service.
func askAPI(t *testing.T, client *http.Client, url, path, body string) (int, map[string]any) {
	t.Helper()
	answer, text := request(t, client, "POST", url+path, body, "Authorization", "Bearer "+programs.Keys[0], "Content-Type", "application/json")
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &fields), "%d %s", answer.StatusCode, text)
	return answer.StatusCode, fields
}

// Each of the examples is a login in another language. Its replicas are asked in
// turn, a connection each, so that most attempts end where they did not begin.
func TestLoginsInOtherLanguagesAreGuarded(t *testing.T) {
	t.Parallel()
	for interpreter, example := range map[string]string{"perl": "login.pl", "python3": "login.py", "php": "login.php"} {
		t.Run(interpreter, func(t *testing.T) {
			path := skiptest.Program(t, interpreter, "perl python3 php-cli")
			server := servertest.NewMemcached(t)
			both := balancer(t, startAPI(t, programs, limits, server.Addr), startAPI(t, programs, limits, server.Addr))
			run := func(name, password, address string, env ...string) (said, logged string) {
				command := exec.Command(path, filepath.Join("..", "..", "examples", example), name, password, address)
				command.Env = append(os.Environ(), "THROTTLER_URL=http://"+both, "THROTTLER_API_KEY="+programs.Keys[0])
				command.Env = append(command.Env, env...)
				var errs bytes.Buffer
				command.Stderr = &errs
				out, err := command.Output()
				require.NoError(t, err, errs.String())
				return strings.TrimSpace(string(out)), errs.String()
			}
			logInAs := func(name, password, address string) string {
				said, logged := run(name, password, address)
				assert.Empty(t, logged)
				return said
			}
			logIn := func(password, address string) string { return logInAs("alice", password, address) }
			for range 6 {
				require.Equal(t, "Welcome!", logIn("correct horse", "203.0.113.7"), "successes do not count")
			}
			for _, from := range [][]string{
				{"HTTP_SEC_FETCH_SITE=cross-site"}, {"HTTP_SEC_FETCH_SITE=same-site"}, {"HTTP_ORIGIN=null", "HTTP_HOST=example.org"},
				{"HTTP_ORIGIN=https://evil.example", "HTTP_HOST=example.org"}, {"HTTP_ORIGIN=https://example.org:8443", "HTTP_HOST=example.org"},
				{"HTTP_SEC_FETCH_SITE=cross-site"},
			} {
				said, _ := run("alice", "wrong", "203.0.113.8", from...)
				require.Equal(t, "Please use our own form.", said, from)
			}
			for _, from := range [][]string{
				{"HTTP_SEC_FETCH_SITE=same-origin"}, {"HTTP_SEC_FETCH_SITE=none"}, {"HTTP_ORIGIN=https://example.org", "HTTP_HOST=example.org"},
			} {
				said, _ := run("alice", "correct horse", "203.0.113.7", from...)
				require.Equal(t, "Welcome!", said, from)
			}
			for range 5 {
				require.Equal(t, "Wrong name or password.", logIn("wrong", "203.0.113.8"))
			}
			for _, password := range []string{"wrong", "correct horse"} {
				assert.Regexp(t, `^Too many attempts. Please try again later. \((600|59\d) s\)$`, logIn(password, "203.0.113.8"))
			}
			assert.Equal(t, "Welcome!", logIn("correct horse", "203.0.113.7"), "at home they get in")

			assert.Equal(t, "Wrong name or password.", logInAs("\xff\xfe", "\xff", "203.0.113.10"), "what is no UTF-8")
			for range 5 {
				require.Equal(t, "Wrong name or password.", logInAs("ren\u00e9", "wrong", "203.0.113.9"))
			}
			_, same := askAPI(t, http.DefaultClient, "http://"+both, "/v1/login/begin", `{"name":"ren\u00e9","address":"203.0.113.9"}`)
			assert.Equal(t, "blocked", same["status"], "every language counts the same name")

			said, logged := run("alice", "correct horse", "localhost")
			assert.Equal(t, "Please try again later.", said)
			assert.Contains(t, logged, "is no address", "the log says why")
		})
	}
}

// balancer returns the address of one that hands each connection to another of the
// services.
func balancer(t *testing.T, services ...*service) string {
	t.Helper()
	var conns atomic.Int64
	return servertest.Serve(t, func(conn net.Conn) {
		forward(conn, services[conns.Add(1)%int64(len(services))].api)
	})
}

func forward(conn net.Conn, address string) {
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		io.Copy(to, conn)
		to.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(conn, to)
}

func TestWhatOneServiceBeganAnotherEndsAfterItWasKilled(t *testing.T) {
	server := servertest.NewMemcached(t)
	first := startAPI(t, programs, limits, server.Addr)
	begin := `{"name":"alice","address":"203.0.113.7"}`
	var tokens []string
	for range 5 {
		_, a := askAPI(t, http.DefaultClient, "http://"+first.api, "/v1/login/begin", begin)
		tokens = append(tokens, fmt.Sprintf(`{"attempt":%q}`, a["attempt"]))
	}
	first.stop()
	second := startAPI(t, programs, limits, server.Addr)
	_, a := askAPI(t, http.DefaultClient, "http://"+second.api, "/v1/login/begin", begin)
	assert.Equal(t, "blocked", a["status"], "five are under way")
	for _, token := range tokens {
		status, _ := askAPI(t, http.DefaultClient, "http://"+second.api, "/v1/login/succeed", token)
		assert.Equal(t, 200, status)
	}
	_, a = askAPI(t, http.DefaultClient, "http://"+second.api, "/v1/login/begin", begin)
	assert.Equal(t, "authorized", a["status"])

	_, metrics := request(t, http.DefaultClient, "GET", "http://"+second.admin+"/metrics", "")
	assert.Regexp(t, `throttler_login_attempts_total\{.*throttler_login_result="succeeded"\} 5`, metrics)
	_, page := request(t, http.DefaultClient, "GET", "http://"+second.admin+"/tally", "", "Accept", "application/json")
	assert.Contains(t, page, `"succeeded": 5`)
	assert.NotContains(t, second.log.String(), "level=ERROR")
}

func TestWithoutAWayToTellWhoAsksThereIsNoAPI(t *testing.T) {
	s := startAPI(t, serve.API{Listen: "127.0.0.1:0"}, limits)
	assert.Empty(t, s.api)
	s.stop()
	assert.Contains(t, s.log.String(), "THROTTLER_API_KEYS")

	lonely := programs
	lonely.Token = ""
	s = startAPI(t, lonely, limits, servertest.NewMemcached(t).Addr)
	s.stop()
	assert.Contains(t, s.log.String(), "THROTTLER_TOKEN_KEY")
}

func TestWrongOptionsOfTheAPIAreErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(limits), 0o600))
	for want, api := range map[string]serve.API{
		"API key has 1 bytes": {Keys: []string{"x"}}, "token key has 1 bytes": {Keys: programs.Keys, Token: "x"},
		"needs -api-cert": {TLS: serve.TLS{ClientCA: path}}, "-api-cert: open nothing: no such file": {Keys: programs.Keys, TLS: serve.TLS{Cert: "nothing"}},
	} {
		api.Listen = "127.0.0.1:0"
		err := serve.Run(t.Context(), serve.Options{Rules: path, API: api, Log: slog.New(slog.DiscardHandler)})
		assert.ErrorContains(t, err, want)
	}
}

// Two services and their memcached are asked by more and more callers at once. What
// they answer stays exact, or is said to be degraded where memcached does not answer
// in time, and what is too much is turned away. Run with -v to see how fast they are.
func TestMoreAndMoreProgramsAreAnsweredExactlyOrTurnedAway(t *testing.T) {
	const values, limit = 20, 50
	server := servertest.NewMemcached(t)
	rules := fmt.Sprintf("rules:\n  - name: api\n    either: [{name: key, value: x, max: %d, per: 1h}]\n", limit)
	services := []*service{startAPI(t, programs, rules, server.Addr), startAPI(t, programs, rules, server.Addr)}
	for _, callers := range []int{1, 8, 64, 512, 2048} {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}, Timeout: time.Minute}
		var counts loadCounts
		counts.admitted, counts.answered, counts.degraded = make(map[string]int), make(map[string]int), make(map[string]int)
		var all sync.WaitGroup
		start := time.Now()
		for i := range callers {
			all.Go(func() {
				for j := range max(2, 2000/callers) {
					value := fmt.Sprint(callers, "-", (i+j)%values)
					asked := time.Now()
					status, d := askAPI(t, client, "http://"+services[(i+j)%2].api, "/v1/authorize", fmt.Sprintf(`{"rule":"api","values":{"key":%q}}`, value))
					counts.add(value, status, d, time.Since(asked))
				}
			})
		}
		all.Wait()
		total := time.Since(start)
		client.CloseIdleConnections()
		assert.Empty(t, counts.others)
		for value, n := range counts.answered {
			assert.LessOrEqual(t, counts.admitted[value], limit, value)
			if counts.degraded[value] == 0 {
				assert.Equal(t, min(n, limit), counts.admitted[value], value)
			}
		}
		slices.Sort(counts.took)
		t.Logf("%4d callers: %5.0f answers a second, half of them within %v, 99 %% within %v; %d turned away, of %d values some degraded", callers,
			float64(len(counts.took))/total.Seconds(), counts.part(50), counts.part(99), counts.turnedAway, len(counts.degraded))
	}
}

// loadCounts are what became of calls.
type loadCounts struct {
	mu                 sync.Mutex
	admitted, answered map[string]int // by value, without the degraded
	degraded           map[string]int // answered by one service alone, and said so: memcached was too slow
	turnedAway         int
	others             []int // statuses
	took               []time.Duration
}

func (c *loadCounts) add(value string, status int, answer map[string]any, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, took)
	switch {
	case status == http.StatusOK && answer["degraded"] == true:
		c.degraded[value]++
	case status == http.StatusOK:
		c.answered[value]++
		if answer["status"] == "authorized" {
			c.admitted[value]++
		}
	case status == http.StatusServiceUnavailable:
		c.turnedAway++
	default:
		c.others = append(c.others, status)
	}
}

// part returns the time within which a percentage of them ended.
func (c *loadCounts) part(percent int) time.Duration {
	return c.took[len(c.took)*percent/100].Round(10 * time.Microsecond)
}

// Clients choose a header field, and send a new one with each request.
func TestAFloodOfValuesForgetsNoGuesses(t *testing.T) {
	serve.SetMaxItems(t, 100)
	s := startAPI(t, programs, `
rules:
  - name: keys
    either: [{name: key, value: "{header:X-Api-Key}", max: 1, per: 1h}]
`)
	begin := func() map[string]any {
		_, a := askAPI(t, http.DefaultClient, "http://"+s.api, "/v1/login/begin", `{"name":"alice","address":"203.0.113.9"}`)
		return a
	}
	for begin()["status"] == "authorized" {
	}
	for i := range 2000 {
		ask(t, s, "/auth", "203.0.113.9", "/", "X-Api-Key", fmt.Sprint(i))
	}
	assert.Equal(t, "blocked", begin()["status"])
}
