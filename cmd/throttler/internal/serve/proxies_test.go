package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/logtest"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limits are the rules of these tests. Clients are at 127.0.0.2 and above.
const limits = `
trust: [127.0.0.1]
rules:
  - name: pages
    for: {path: [/page/**, /login]}
    either:
      - {name: address, value: "{address}", max: 3, per: 1h, public: true}
`

// A service is one that runs in this process.
type service struct {
	listen, admin, envoy, api, proxy string
	log                              *logtest.Log
	stop                             func()
}

// start runs the service by rules.
func start(t *testing.T, rules string, servers ...string) *service {
	t.Helper()
	return startAPI(t, serve.API{}, rules, servers...)
}

// startAPI is start for a service that programs may ask.
func startAPI(t *testing.T, api serve.API, rules string, servers ...string) *service {
	t.Helper()
	return startWith(t, rules, func(o *serve.Options) { o.API, o.Servers = api, servers })
}

// startAt is start at an address for proxies.
func startAt(t *testing.T, listen, rules string) *service {
	t.Helper()
	return startWith(t, rules, func(o *serve.Options) { o.Listen = listen })
}

// startWith runs the service with other options than start.
func startWith(t *testing.T, rules string, change func(*serve.Options)) *service {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{log: new(logtest.Log)}
	ready, ended := make(chan struct{}), make(chan error, 1)
	o := serve.Options{
		Rules: path, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Envoy: "127.0.0.1:0",
		Log:   slog.New(slog.NewTextHandler(s.log, nil)),
		Proxy: serve.Proxy{Listen: "127.0.0.1:0"},
		Ready: func(listen, admin, envoy, api, proxy net.Addr) {
			s.listen, s.admin, s.envoy = listen.String(), admin.String(), envoy.String()
			if proxy != nil {
				s.proxy = proxy.String()
			}
			if api != nil {
				s.api = api.String()
			}
			close(ready)
		},
	}
	change(&o)
	go func() { ended <- serve.Run(ctx, o) }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err)
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(s.stop)
	return s
}

// application is what the proxies protect: it tells the request that it got.
func application(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// A proxy is the address of one that runs, before a service and an application.
type proxy func(t *testing.T, service, application string, closed bool) string

// run starts a command that serves at address until the test ends.
func run(t *testing.T, address string, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		skiptest.Missing(t, fmt.Sprintf("%s is not installed: apt-get install %s", name, name))
	}
	command := exec.Command(path, args...)
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_DATA_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, command.Start())
	exited := make(chan struct{})
	go func() {
		command.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		<-exited
		if t.Failed() {
			t.Log(output.String())
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return true
		}
		select {
		case <-exited:
			return true
		default:
			return false
		}
	}, 30*time.Second, 20*time.Millisecond, "%s does not listen", name)
	select {
	case <-exited:
		require.Fail(t, name+" has ended")
	default:
	}
}

// lastPort is the last one that freeAddress has tried.
var lastPort = rand.Uint32()

// freeAddress returns an address that nobody takes before it is used. Its port is below those
// of the servers of other tests, and of connections, and no other call returns it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 5_000+atomic.AddUint32(&lastPort, 1)%5_000)
		l, err := net.Listen("tcp", address)
		if err == nil {
			require.NoError(t, servertest.Free(l))
			return address
		}
	}
	require.Fail(t, "no port is free")
	return ""
}

// patient has a proxy wait for the service while the machine is busy.
var patient = strings.NewReplacer(
	"proxy_connect_timeout 100ms", "proxy_connect_timeout 10s", "proxy_read_timeout 1s", "proxy_read_timeout 10s",
	"dial_timeout 100ms", "dial_timeout 10s", "response_header_timeout 1s", "response_header_timeout 10s",
	"timeout = 1000 ", "timeout = 10000 ")

// An edit of a configuration: a text that it has, and another one in its place.
type edit struct{ old, new string }

// configuration writes one of ../../proxies with other addresses and times, and edits.
func configuration(t *testing.T, name, listen, service, application string, edits []edit) string {
	t.Helper()
	read := func(name string) string {
		source, err := os.ReadFile(filepath.Join("../../proxies", name))
		require.NoError(t, err)
		return patient.Replace(string(source))
	}
	text := read(name)
	for _, e := range edits {
		require.Contains(t, text, e.old)
		text = strings.Replace(text, e.old, e.new, 1)
	}
	dir := t.TempDir()
	lua, path := filepath.Join(dir, "throttler.lua"), filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(lua, []byte(read("throttler.lua")), 0o644))
	text = strings.NewReplacer("127.0.0.1:8080", listen, "127.0.0.1:4180", service, "127.0.0.1:8000", application,
		"127.0.0.1:4189", freeAddress(t), "/etc/haproxy/throttler.lua", lua).Replace(text)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// refuseWhileDown are the edits that have requests refused while the service is down.
var refuseWhileDown = map[string]edit{
	"nginx":   {"error_page 502 504 = @open;", ""},
	"caddy":   {" 127.0.0.1:4189 {", " {"},
	"haproxy": {" down }", " }"},
}

// edited is a proxy with edits of its configuration.
func edited(name string, edits ...edit) proxy {
	return func(t *testing.T, service, application string, closed bool) string {
		edits := slices.Clone(edits)
		if closed {
			edits = append(edits, refuseWhileDown[name])
		}
		address := freeAddress(t)
		switch name {
		case "nginx":
			runNginx(t, address, configuration(t, "nginx.conf", address, service, application, edits))
		case "caddy":
			edits = append(edits, edit{"http://", "{\n	admin off\n}\nhttp://"})
			run(t, address, "caddy", "run", "--config", configuration(t, "Caddyfile", address, service, application, edits), "--adapter", "caddyfile")
		case "haproxy":
			run(t, address, "haproxy", "-db", "-f", configuration(t, "haproxy.cfg", address, service, application, edits))
		}
		return address
	}
}

// runNginx runs nginx with the configuration of a site.
func runNginx(t *testing.T, address, site string) {
	t.Helper()
	dir := t.TempDir()
	main := filepath.Join(dir, "main.conf")
	require.NoError(t, os.WriteFile(main, fmt.Appendf(nil, `
daemon off; pid %[1]s/pid; error_log stderr error;
events {}
http {
    access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
    include %[2]s;
}`, dir, site), 0o644))
	run(t, address, "nginx", "-c", main, "-p", dir, "-e", "stderr")
}

// traefik does what Traefik's ForwardAuth does: pkg/middlewares/auth/forward.go of
// Traefik 3. It has no way to fail open.
func traefik(t *testing.T, service, application string, _ bool) string {
	target, err := url.Parse("http://" + application)
	require.NoError(t, err)
	next := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+service+"/auth", nil)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		ask.Header = r.Header.Clone()
		for _, hop := range []string{"Connection", "Keep-Alive", "Te", "Trailers", "Transfer-Encoding", "Upgrade", "Forwarded"} {
			ask.Header.Del(hop)
		}
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		ask.Header.Set("X-Forwarded-For", client)
		ask.Header.Set("X-Forwarded-Method", r.Method)
		ask.Header.Set("X-Forwarded-Proto", "http")
		ask.Header.Set("X-Forwarded-Host", r.Host)
		ask.Header.Set("X-Forwarded-Uri", r.URL.RequestURI())
		answer, err := http.DefaultTransport.RoundTrip(ask)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		defer answer.Body.Close()
		if answer.StatusCode/100 == 2 {
			next.ServeHTTP(w, r)
			return
		}
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.StatusCode)
		io.Copy(w, answer.Body)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// clientAt returns a client whose address is the given one.
func clientAt(t *testing.T, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// request makes one request and returns the answer and its body.
func request(t *testing.T, client *http.Client, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := client.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(text)
}

// raw sends text from an address, and returns the answer and its body.
func raw(t *testing.T, from, site, text string) (*http.Response, string) {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", strings.TrimPrefix(site, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err, "%.60q", text)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(body)
}

var proxies = map[string]proxy{"nginx": edited("nginx"), "caddy": edited("caddy"), "haproxy": edited("haproxy"), "traefik": traefik}

func TestARobotIsThrottledBehindEachProxy(t *testing.T) {
	for name, proxy := range proxies {
		t.Run(name, func(t *testing.T) {
			s := start(t, limits)
			site := "http://" + proxy(t, s.listen, application(t), false)
			robot, person := clientAt(t, "127.0.0.2"), clientAt(t, "127.0.0.3")
			for i := range 3 {
				target := fmt.Sprintf("/page/%d?q=%%20x", i)
				answer, body := request(t, robot, "POST", site+target, "a body")
				require.Equal(t, 200, answer.StatusCode, body)
				assert.Equal(t, "POST "+target+" a body", body, "the application gets the request whole")
			}
			answer, _ := request(t, robot, "GET", site+"/page/4", "")
			require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
			retry, err := strconv.Atoi(answer.Header.Get("Retry-After"))
			require.NoError(t, err)
			assert.InDelta(t, 3600, retry, 120)

			for _, target := range []string{"/login#1", "/login#?"} {
				_, body := raw(t, "127.0.0.2", site, "GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				assert.NotRegexp(t, "^GET /login[ #]", body, "the application gets %s", target)
			}
			answer, _ = request(t, robot, "GET", site+"/free", "")
			assert.Equal(t, 200, answer.StatusCode, "what no rule is for passes")
			answer, _ = request(t, person, "GET", site+"/page/4", "")
			assert.Equal(t, 200, answer.StatusCode, "and so do others")
		})
	}
}

func TestWithoutTheServiceRequestsPassOrFailAsConfigured(t *testing.T) {
	t.Parallel()
	for name, proxy := range proxies {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " closed=", closed), func(t *testing.T) {
				if name == "traefik" && !closed {
					t.Skip("Traefik always fails closed")
				}
				t.Parallel()
				s := startAt(t, freeAddress(t), limits) // which no other test takes once it is stopped
				site := "http://" + proxy(t, s.listen, application(t), closed)
				client := clientAt(t, "127.0.0.2")
				answer, _ := request(t, client, "GET", site+"/page/1", "")
				require.Equal(t, 200, answer.StatusCode)
				s.stop()
				answer, body := request(t, client, "POST", site+"/page/2", "a body")
				if closed {
					assert.Contains(t, []int{403, 500, 502, 503}, answer.StatusCode)
					return
				}
				assert.Equal(t, 200, answer.StatusCode)
				assert.Equal(t, "POST /page/2 a body", body)
			})
		}
	}
}

func TestARefusalReachesTheClientWhole(t *testing.T) {
	for name, proxy := range proxies {
		if name == "nginx" {
			continue // passes on no status but 401 and 403
		}
		t.Run(name, func(t *testing.T) {
			s := start(t, `
trust: [127.0.0.1]
rules:
  - name: hidden
    for: {path: [/page/**]}
    either: [{name: address, value: "{address}", max: 1, per: 1h, public: true}]
    answer: {status: 404, type: text/html, body: <p>Nothing here.</p>}
`)
			site := "http://" + proxy(t, s.listen, application(t), false)
			client := clientAt(t, "127.0.0.2")
			answer, _ := request(t, client, "GET", site+"/page/1", "")
			require.Equal(t, 200, answer.StatusCode)
			answer, body := request(t, client, "GET", site+"/page/1", "")
			assert.Equal(t, 404, answer.StatusCode)
			assert.Equal(t, "<p>Nothing here.</p>", body)
			assert.Equal(t, "text/html", answer.Header.Get("Content-Type"))
			assert.Regexp(t, `^3[56]\d\d$`, answer.Header.Get("Retry-After"))
			assert.Equal(t, `"address";q=1;w=3600`, answer.Header.Get("RateLimit-Policy"))
			assert.Contains(t, answer.Header.Get("RateLimit"), `"address";r=0;t=3`)
		})
	}
}

func TestProxiesTellTheServiceTheFieldsThatItsRulesRead(t *testing.T) {
	for name, proxy := range proxies {
		t.Run(name, func(t *testing.T) {
			s := start(t, `
trust: [127.0.0.1]
rules:
  - name: fields
    either:
      - {name: key, value: "{header:X-Api-Key}", max: 1, per: 1h, missing: skip}
      - {name: session, value: "{cookie:session}", max: 1, per: 1h, missing: skip}
      - {name: user, value: "{user}", max: 1, per: 1h, missing: skip}
      - {name: agent, value: "{header:User-Agent}", max: 1, per: 1h, missing: skip, exempt: [Go-http-client/1.1]}
`)
			site := "http://" + proxy(t, s.listen, application(t), false)
			client := clientAt(t, "127.0.0.2")
			for _, field := range [][2]string{
				{"X-Api-Key", "a"}, {"Cookie", "b=c; session=a"}, {"Authorization", "Basic YWxpY2U6cGFzc3dvcmQ="}, {"User-Agent", "a"},
			} {
				var statuses []int
				for range 2 {
					answer, _ := request(t, client, "GET", site+"/", "", field[0], field[1])
					statuses = append(statuses, answer.StatusCode)
				}
				assert.Equal(t, []int{200, 429}, statuses, field[0])
			}
			answer, _ := request(t, client, "GET", site+"/", "")
			assert.Equal(t, 200, answer.StatusCode)
		})
	}
}

func TestTheManualHasTheConfigurationsThatAreTested(t *testing.T) {
	manual, err := os.ReadFile("../../../../docs/proxies.md")
	require.NoError(t, err)
	for _, name := range []string{"nginx.conf", "Caddyfile", "haproxy.cfg"} {
		text, err := os.ReadFile(filepath.Join("../../proxies", name))
		require.NoError(t, err)
		assert.Contains(t, string(manual), "\n"+string(text)+"```\n", name)
	}
}
