package serve_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limits are the rules of these tests. Clients are at 127.0.0.2 and above.
const limits = `
trust: [127.0.0.1]
rules:
  - name: pages
    for: {path: [/page/**]}
    either:
      - {name: address, value: "{address}", max: 3, per: 1h, public: true}
`

// A service is one that runs in this process.
type service struct {
	listen, admin, envoy, api string
	log                       *bytes.Buffer
	stop                      func()
}

// start runs the service by rules.
func start(t *testing.T, rules string, servers ...string) *service {
	t.Helper()
	return startAPI(t, serve.API{}, rules, servers...)
}

// startAPI is start for a service that programs may ask.
func startAPI(t *testing.T, api serve.API, rules string, servers ...string) *service {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{log: new(bytes.Buffer)}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- serve.Run(ctx, serve.Options{
			Rules: path, Servers: servers, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
			Log:   slog.New(slog.NewTextHandler(&locked{w: s.log}, nil)),
			Envoy: "127.0.0.1:0",
			API:   api,
			Ready: func(listen, admin, envoy, api net.Addr) {
				s.listen, s.admin, s.envoy = listen.String(), admin.String(), envoy.String()
				if api != nil {
					s.api = api.String()
				}
				close(ready)
			},
		})
	}()
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

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
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
	switch {
	case err == nil:
	case os.Getenv("THROTTLER_REQUIRE_MEMCACHED") == "1":
		require.NoError(t, err)
	default:
		skiptest.Skip(t, fmt.Sprintf("%s is not installed: apt-get install %s", name, name))
	}
	command := exec.Command(path, args...)
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_DATA_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var output bytes.Buffer
	command.Stdout, command.Stderr = &locked{w: &output}, nil
	command.Stderr = command.Stdout
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		command.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 30*time.Second, 20*time.Millisecond, "%s does not listen", name)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// configuration writes one of ../../proxies with other addresses, and without the
// lines that let requests pass while the service is down if closed is set.
func configuration(t *testing.T, name, listen, service, application string, without ...string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("../../proxies", name))
	require.NoError(t, err)
	text := string(source)
	for _, part := range without {
		require.Contains(t, text, part)
		text = strings.Replace(text, part, "", 1)
	}
	lua, err := filepath.Abs("../../proxies/throttler.lua")
	require.NoError(t, err)
	text = strings.NewReplacer("127.0.0.1:8080", listen, "127.0.0.1:4180", service, "127.0.0.1:8000", application,
		"/etc/haproxy/throttler.lua", lua).Replace(text)
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func nginx(t *testing.T, service, application string, closed bool) string {
	address := freeAddress(t)
	var without []string
	if closed {
		without = []string{"error_page 502 504 = @open;"}
	}
	dir := t.TempDir()
	main := filepath.Join(dir, "main.conf")
	require.NoError(t, os.WriteFile(main, fmt.Appendf(nil, `
daemon off; pid %[1]s/pid; error_log stderr error;
events {}
http {
    access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
    include %[2]s;
}`, dir, configuration(t, "nginx.conf", address, service, application, without...)), 0o644))
	run(t, address, "nginx", "-c", main, "-p", dir, "-e", "stderr")
	return address
}

func caddy(t *testing.T, service, application string, closed bool) string {
	address := freeAddress(t)
	var without []string
	if closed {
		without = []string{"	handle_errors { # throttler is down: let pass. Without this block: 502\n		reverse_proxy 127.0.0.1:8000\n	}\n"}
	}
	config := configuration(t, "Caddyfile", address, service, application, without...)
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, append([]byte("{\n	admin off\n}\n"), text...), 0o644))
	run(t, address, "caddy", "run", "--config", config, "--adapter", "caddyfile")
	return address
}

func haproxy(t *testing.T, service, application string, closed bool) string {
	address := freeAddress(t)
	var without []string
	if closed {
		without = []string{" down }"}
	}
	config := configuration(t, "haproxy.cfg", address, service, application, without...)
	if closed {
		text, err := os.ReadFile(config)
		require.NoError(t, err)
		fixed := strings.Replace(string(text), "-m str 200\n", "-m str 200 }\n", 1)
		require.NoError(t, os.WriteFile(config, []byte(fixed), 0o644))
	}
	run(t, address, "haproxy", "-db", "-f", config)
	return address
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

var proxies = map[string]proxy{"nginx": nginx, "caddy": caddy, "haproxy": haproxy, "traefik": traefik}

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

			for _, forged := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "X-Forwarded-Uri", "X-Original-Uri", "X-Forwarded-Method", "X-Forwarded-Host"} {
				answer, _ := request(t, robot, "GET", site+"/page/4", "", forged, "/free")
				assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode, "a forged %s", forged)
				answer, _ = request(t, robot, "GET", site+"/page/4", "", forged, "198.51.100.1")
				assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode, "a forged %s", forged)
			}
			for _, spelling := range []string{"/%70age/4", "//page/4", "/x/../page/4"} {
				answer, _ := request(t, robot, "GET", site+spelling, "")
				assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode, spelling)
			}
			answer, _ = request(t, robot, "GET", site+"/free", "")
			assert.Equal(t, 200, answer.StatusCode, "what no rule is for passes")
			answer, _ = request(t, person, "GET", site+"/page/4", "")
			assert.Equal(t, 200, answer.StatusCode, "and so do others")
		})
	}
}

func TestWithoutTheServiceRequestsPassOrFailAsConfigured(t *testing.T) {
	for name, proxy := range proxies {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " closed=", closed), func(t *testing.T) {
				if name == "traefik" && !closed {
					t.Skip("Traefik always fails closed")
				}
				s := start(t, limits)
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

func TestNginxTellsWhatIsLeftOfPublicLimits(t *testing.T) {
	s := start(t, limits)
	site := "http://" + nginx(t, s.listen, application(t), false)
	client := clientAt(t, "127.0.0.2")
	answer, _ := request(t, client, "GET", site+"/page/1", "")
	assert.Equal(t, `"address";q=3;w=3600`, answer.Header.Get("RateLimit-Policy"))
	assert.Contains(t, answer.Header.Get("RateLimit"), `"address";r=2;t=`)
	for range 3 {
		answer, _ = request(t, client, "GET", site+"/page/1", "")
	}
	assert.Equal(t, 429, answer.StatusCode)
	assert.Contains(t, answer.Header.Get("RateLimit"), `"address";r=0;t=`)
}

func TestTheManualHasTheConfigurationsThatAreTested(t *testing.T) {
	for page, name := range map[string]string{"nginx.md": "nginx.conf", "caddy.md": "Caddyfile", "haproxy.md": "haproxy.cfg"} {
		manual, err := os.ReadFile(filepath.Join("../../../../docs", page))
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join("../../proxies", name))
		require.NoError(t, err)
		assert.Contains(t, string(manual), "\n"+string(text)+"```\n", name)
	}
}
