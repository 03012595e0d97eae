package serve_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ask asks as a proxy does, about a request of a client.
func ask(t *testing.T, s *service, path, client, target string, header ...string) (*http.Response, string) {
	t.Helper()
	header = append([]string{"X-Forwarded-For", client, "X-Forwarded-Uri", target, "X-Forwarded-Method", "GET", "X-Original-Uri", target}, header...)
	return request(t, http.DefaultClient, "GET", "http://"+s.listen+path, "", header...)
}

func TestARefusalSaysWhatTheRuleFileSays(t *testing.T) {
	s := start(t, `
rules:
  - name: a
    either: [{name: address, value: "{address}", max: 1, per: 1h, message: Slow down.}]
    for: {path: [/a]}
  - name: b
    either: [{name: address, value: "{address}", max: 1, per: 1h}]
    for: {path: [/b]}
    answer: {status: 420, type: text/html, body: <p>No.</p>}
`)
	for _, path := range []string{"/a", "/b"} {
		answer, _ := ask(t, s, "/auth", "203.0.113.7", path)
		require.Equal(t, 200, answer.StatusCode)
		assert.Equal(t, "200", answer.Header.Get("X-Throttler-Status"))
	}
	answer, body := ask(t, s, "/auth", "203.0.113.7", "/a", "Accept", "text/plain")
	assert.Equal(t, 429, answer.StatusCode)
	assert.Equal(t, "429", answer.Header.Get("X-Throttler-Status"))
	assert.Contains(t, body, "Slow down.")
	answer, body = ask(t, s, "/auth", "203.0.113.7", "/b")
	assert.Equal(t, 420, answer.StatusCode)
	assert.Equal(t, "<p>No.</p>", body)
	assert.Equal(t, "text/html", answer.Header.Get("Content-Type"))

	answer, _ = ask(t, s, "/auth/nginx", "203.0.113.7", "/b")
	assert.Equal(t, 403, answer.StatusCode, "nginx passes nothing else on")
	assert.Equal(t, "420", answer.Header.Get("X-Throttler-Status"))
	answer, _ = ask(t, s, "/nothing", "203.0.113.7", "/b")
	assert.Equal(t, 404, answer.StatusCode)
}

func TestAllRulesForARequestDecideIt(t *testing.T) {
	s := start(t, `
rules:
  - name: narrow
    for: {path: [/a]}
    either: [{name: address, value: "{address}", max: 1, per: 1h}]
  - name: wide
    either: [{name: address, value: "{address}", max: 3, per: 1h}]
`)
	var statuses []int
	for _, target := range []string{"/a", "/a", "/a", "/b", "/b", "/b"} {
		answer, _ := ask(t, s, "/auth", "203.0.113.7", target)
		statuses = append(statuses, answer.StatusCode)
	}
	assert.Equal(t, []int{200, 429, 429, 200, 200, 429}, statuses, "what the first blocks, the second does not count")
}

func TestAProxyThatIsNotTrustedIsToldAndItsWordIsNotTaken(t *testing.T) {
	s := start(t, strings.Replace(limits, "127.0.0.1", "192.0.2.1", 1))
	for range 5 {
		answer, body := ask(t, s, "/auth", "203.0.113.7", "/page/1")
		assert.Equal(t, 500, answer.StatusCode)
		assert.Contains(t, body, "not trusted")
	}
	s.stop()
	assert.Equal(t, 1, strings.Count(s.log.String(), "not trusted"), "said once")
}

func TestWhileMemcachedIsDownRequestsPassOrNotAsTheRuleFileSays(t *testing.T) {
	for _, failure := range []string{"open", "closed"} {
		server := servertest.NewMemcached(t)
		s := start(t, limits+"failure: "+failure+"\n", server.Addr)
		answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
		require.Equal(t, 200, answer.StatusCode)
		server.Kill()
		var statuses []int
		for range 5 {
			answer, _ = ask(t, s, "/auth", "203.0.113.7", "/page/1")
			statuses = append(statuses, answer.StatusCode)
		}
		if failure == "open" {
			assert.Equal(t, []int{200, 200, 429, 429, 429}, statuses, "the process counts by itself, after the one before the outage")
			continue
		}
		assert.Equal(t, []int{503, 503, 503, 503, 503}, statuses)
		assert.Equal(t, "1", answer.Header.Get("Retry-After"))
		answer, _ = ask(t, s, "/auth/nginx", "203.0.113.7", "/page/1")
		assert.Equal(t, 403, answer.StatusCode)
		assert.Equal(t, "503", answer.Header.Get("X-Throttler-Status"))
		answer, _ = ask(t, s, "/auth", "203.0.113.7", "/free")
		assert.Equal(t, 200, answer.StatusCode, "no rule is for it")
		answer, body := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/readyz", "")
		assert.Equal(t, 503, answer.StatusCode)
		assert.Equal(t, "all servers are down\n"+server.Addr+" does not answer: calls for its values are refused\n", body)
		s.stop()
		assert.Regexp(t, `msg=ended by="context canceled" decided=7 blocked=0 released=0`, s.log.String())
	}
}

func TestAStoreThatDoesNotAnswerIsToldAtTheStart(t *testing.T) {
	const missing = "127.0.0.1:1"
	s := start(t, limits, missing)
	require.Eventually(t, func() bool {
		return strings.Contains(s.log.String(), "a server does not answer: each process counts its values by itself") &&
			strings.Contains(s.log.String(), missing)
	}, 30*time.Second, 10*time.Millisecond)
}

func TestAPortInUseNamesItsFlag(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(limits), 0o600))
	err = serve.Run(t.Context(), serve.Options{
		Rules: path, Listen: "127.0.0.1:0", Admin: taken.Addr().String(), Log: slog.New(slog.DiscardHandler),
	})
	assert.ErrorContains(t, err, "-admin "+taken.Addr().String()+": ")
}

func TestAReloadChangesWhatHappensWhileMemcachedIsDown(t *testing.T) {
	t.Parallel()
	server := servertest.NewMemcached(t)
	s := start(t, limits+"failure: closed\n", server.Addr)
	decided := func() (statuses []int) {
		for range 5 {
			answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
			statuses = append(statuses, answer.StatusCode)
		}
		return statuses
	}
	server.Kill()
	require.Equal(t, []int{503, 503, 503, 503, 503}, decided())
	rewrite(t, limits+"failure: open\n")
	require.Eventually(t, func() bool {
		answer, _ := ask(t, s, "/auth", "203.0.113.8", "/page/1")
		return answer.StatusCode == 200
	}, 30*time.Second, 50*time.Millisecond)
	assert.Equal(t, []int{200, 200, 200, 429, 429}, decided(), "the process counts by itself")
	rewrite(t, limits+"failure: closed\n")
	require.Eventually(t, func() bool { return decided()[4] == 503 }, 30*time.Second, 50*time.Millisecond)
	assert.Equal(t, []int{503, 503, 503, 503, 503}, decided())
}

func TestOperatorsSeeWhatTheServiceDoes(t *testing.T) {
	server := servertest.NewMemcached(t)
	s := start(t, limits, server.Addr)
	for range 5 {
		ask(t, s, "/auth", "203.0.113.7", "/page/1")
	}
	look := func(path string) string {
		answer, body := request(t, http.DefaultClient, "GET", "http://"+s.admin+path, "", "Accept", "application/json")
		assert.Equal(t, 200, answer.StatusCode, path)
		return body
	}
	assert.Equal(t, "ok\n", look("/healthz"))
	assert.Equal(t, "ready\n", look("/readyz"))
	assert.Contains(t, look("/tally"), "203.0.113.7")
	metrics := look("/metrics")
	assert.Regexp(t, `throttler_decisions_total\{.*throttler_result="blocked",throttler_rule="pages"\} 2`, metrics)
	assert.Regexp(t, `throttler_memory_evictions_total\{.*throttler_store="fallback"\} 0`, metrics)
	assert.Contains(t, metrics, "throttler_server_up{")
	answer, _ := request(t, http.DefaultClient, "GET", "http://"+s.listen+"/tally", "")
	assert.Equal(t, 404, answer.StatusCode, "not where proxies ask")
}

func TestMetricsTellTheServiceTheProcessAndAReloadThatWentWrong(t *testing.T) {
	t.Parallel()
	s := startAPI(t, serve.API{Listen: "127.0.0.1:0", Keys: []string{"a key of 16 bytes or more"}}, limits)
	metrics := func() string {
		_, body := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
		return body
	}
	assert.Regexp(t, `(?m)^target_info\{.*service_name="throttler",service_version="[^"]+"`, metrics())
	assert.Contains(t, metrics(), "\ngo_goroutines ")
	assert.Contains(t, metrics(), "\nprocess_start_time_seconds ")
	assert.Contains(t, metrics(), `throttler_api_turned_away_total{reason="wrong_key"} 0`)
	answer, _ := request(t, http.DefaultClient, "POST", "http://"+s.api+"/v1/peek", "{}", "Authorization", "Bearer x", "Content-Type", "application/json")
	require.Equal(t, 401, answer.StatusCode)
	assert.Contains(t, metrics(), `throttler_api_turned_away_total{reason="wrong_key"} 1`)
	assert.Contains(t, metrics(), "\nthrottler_rules_current 1\n")
	status := func() int {
		answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
		return answer.StatusCode
	}
	for status() == 200 {
	}
	rewrite(t, "broken: [")
	require.Eventually(t, func() bool { return strings.Contains(metrics(), "\nthrottler_rules_current 0\n") }, 30*time.Second, 50*time.Millisecond)
	assert.Equal(t, 429, status(), "the rules stay as they are")
	assert.Contains(t, metrics(), `throttler_rules_reloads_total{result="failure"} 1`)
	rewrite(t, strings.Replace(limits, "max: 3", "max: 100", 1))
	require.Eventually(t, func() bool { return strings.Contains(metrics(), "\nthrottler_rules_current 1\n") }, 30*time.Second, 50*time.Millisecond)
	assert.Equal(t, 200, status(), "without a restart")
}

func TestTheTallyIsNotForWebPagesOfOthers(t *testing.T) {
	s := start(t, limits)
	for target, want := range map[string]int{
		"/tally": 200, "/tally localhost:4181": 200, "/tally throttler": 200, "/tally [::1]:4181": 200, "/tally 203.0.113.7": 200,
		"/tally rebound.example.org": 421, "/tally rebound.example.org:4181": 421, "/tally 1.2.3.4.example.org": 421,
		"/metrics throttler.monitoring.svc": 200, // Prometheus asks by name
	} {
		path, host, _ := strings.Cut(target, " ")
		r, err := http.NewRequest("GET", "http://"+s.admin+path, nil)
		require.NoError(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, target)
	}
}

func TestGarbageIsRefusedAndTheServiceGoesOn(t *testing.T) {
	s := start(t, limits)
	for _, garbage := range []string{
		"\x00\x01\x02\r\n\r\n",
		"GET /auth HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"GET /auth HTTP/1.1\r\n\r\n",
		"POST /auth HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", s.listen)
		require.NoError(t, err)
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		io.WriteString(conn, garbage)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			assert.GreaterOrEqual(t, answer.StatusCode, 400, "%.30q", garbage)
			answer.Body.Close()
		}
		conn.Close()
	}
	for _, target := range []string{"", "%zz", "\\", "//", "?", strings.Repeat("/a", 1000), "http://", "*"} {
		answer, _ := ask(t, s, "/auth", "nonsense, ,;", target)
		assert.Equal(t, 200, answer.StatusCode, "%.20q", target)
	}
	answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
	assert.Equal(t, 200, answer.StatusCode)
}

// Without a drain, 2 of 2,600 such requests ended in EOF.
func TestNoRequestOnAKeptConnectionIsLostAtTheEnd(t *testing.T) {
	var ended sync.WaitGroup
	serve.SetDrained(t, ended.Wait) // a busy machine may take long to serve each connection
	for range 4 {
		s := startWith(t, limits, func(o *serve.Options) {
			o.API = serve.API{Listen: "127.0.0.1:0", Keys: []string{"a key of 16 bytes or more"}}
		})
		var begun sync.WaitGroup
		for i := range 30 {
			begun.Add(1)
			ended.Go(func() { askUntilClosed(t, s, i, begun.Done) })
		}
		begun.Wait()
		answer, _ := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/readyz", "")
		require.Equal(t, 200, answer.StatusCode)
		s.stop()
	}
}

// askUntilClosed sends requests over one connection until an answer closes it.
func askUntilClosed(t *testing.T, s *service, i int, begun func()) {
	begun = sync.OnceFunc(begun)
	defer begun()
	conn, err := net.Dial("tcp", []string{s.listen, s.api}[i%2])
	if !assert.NoError(t, err) {
		return
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	answers := bufio.NewReader(conn)
	for {
		text := "GET /auth HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n"
		if i%2 == 1 {
			text = "POST /v1/peek HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
		}
		_, err := io.WriteString(conn, text)
		if !assert.NoError(t, err) {
			return
		}
		answer, err := http.ReadResponse(answers, nil)
		if !assert.NoError(t, err, "a request was lost") {
			return
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		begun()
		if answer.Close {
			return
		}
	}
}

func TestRequestsUnderWayAreAnsweredBeforeTheEnd(t *testing.T) {
	serve.SetStoreTimeout(t, 250*time.Millisecond)
	hung, asked := hungServer(t)
	s := start(t, limits, hung)
	answered := make(chan int, 1)
	go func() {
		r, _ := http.NewRequest("GET", "http://"+s.listen+"/auth", nil)
		r.Header.Set("X-Forwarded-Uri", "/page/1")
		answer, err := http.DefaultClient.Do(r)
		if !assert.NoError(t, err) {
			answered <- 0
			return
		}
		answer.Body.Close()
		answered <- answer.StatusCode
	}()
	<-asked
	s.stop()
	assert.Equal(t, 200, <-answered)
}

func TestNoAddressTakesConnectionsWhileAnotherAnswersItsLastRequest(t *testing.T) {
	s := startWith(t, limits+fmt.Sprintf(guardedForm, application(t)), func(o *serve.Options) { o.API = programs })
	conn, err := net.Dial("tcp", s.api)
	require.NoError(t, err)
	defer conn.Close()
	body, answers := `{"rule": "pages", "values": {"address": "203.0.113.7"}}`, bufio.NewReader(conn)
	fmt.Fprintf(conn, "POST /v1/peek HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", programs.Keys[0], len(body))
	answer, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusContinue, answer.StatusCode, "the API waits for the body")
	var ended sync.WaitGroup
	ended.Go(s.stop)
	for _, address := range []string{s.listen, s.admin, s.envoy, s.api, s.proxy} {
		require.Eventually(t, func() bool {
			other, err := net.Dial("tcp", address)
			if err == nil {
				other.Close()
			}
			return err != nil
		}, 30*time.Second, 10*time.Millisecond)
	}
	io.WriteString(conn, body)
	answer, err = http.ReadResponse(answers, nil)
	require.NoError(t, err)
	answer.Body.Close()
	assert.Equal(t, http.StatusOK, answer.StatusCode)
	ended.Wait()
}

// hungServer returns the address of a server that takes requests and answers none,
// and a channel that is closed by the first that is not about its statistics.
func hungServer(t *testing.T) (address string, asked <-chan struct{}) {
	t.Helper()
	first := make(chan struct{})
	tell := sync.OnceFunc(func() { close(first) })
	return servertest.Serve(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		if line, err := r.ReadString('\n'); err == nil && !strings.HasPrefix(line, "stats") {
			tell()
		}
		io.Copy(io.Discard, r)
	}), first
}
