package proxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/logtest"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/proxy"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A site is a server with a login form, whose password is "right". It cannot be changed.
type site struct {
	*httptest.Server
	verified atomic.Int64 // passwords
	served   atomic.Int64 // requests
	password atomic.Value // of everybody
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	s.password.Store("right")
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		if !s.verify(r.PostFormValue("password")) {
			fmt.Fprint(w, "Wrong name or password.")
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "session", Value: r.PostFormValue("user")})
		http.Redirect(w, r, "/", http.StatusSeeOther)
	})
	mux.HandleFunc("/dav/", func(w http.ResponseWriter, r *http.Request) {
		_, password, given := r.BasicAuth()
		if !given || !s.verify(password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %d", r.Method, n)
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.served.Add(1)
		if _, pattern := mux.Handler(r); pattern == "POST /login" || pattern == "/dav/" {
			mux.ServeHTTP(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body) // and tells what it has got
		fmt.Fprintf(w, "%s %s %s\n", r.Method, r.RequestURI, body)
		r.Header.Write(w)
		fmt.Fprintln(w, "Host:", r.Host)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) verify(password string) bool {
	if password == "" {
		return false
	}
	s.verified.Add(1)
	time.Sleep(20 * time.Millisecond) // as hashing it takes
	return password == s.password.Load()
}

// logins are those of a site.
const logins = `
  logins:
    - for: {path: [/login]}
      name: {form: user, json: user}
      right: {status: [303], cookie: [session]}
      wrong: {status: [200]}
    - for: {path: [/dav/**]}
      name: {basic: true}
      right: {status: [200]}
      wrong: {status: [401]}
`

// A guarded is a proxy before a server.
type guarded struct {
	*httptest.Server
	proxy  *proxy.Proxy
	guard  *login.Guard
	events chan login.Event
	log    *logtest.Log
}

// guardSite starts a proxy before a server, with more of a rule file.
func guardSite(t *testing.T, server, more string) *guarded {
	t.Helper()
	return guardWith(t, server, more, memstore.New())
}

func guardWith(t *testing.T, server, more string, client throttler.Client) *guarded {
	t.Helper()
	g := guardUnserved(t, server, more, client)
	g.Server = httptest.NewServer(g.proxy)
	t.Cleanup(g.Close)
	return g
}

// guardUnserved is guardWith without a listener.
func guardUnserved(t *testing.T, server, more string, client throttler.Client) *guarded {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte("proxy:\n  server: "+server+"\n"+more), 0o600))
	rules, err := rulefile.Open(path)
	require.NoError(t, err)
	limits := throttler.New(client)
	g := &guarded{guard: login.New(limits), events: make(chan login.Event, 10_000), log: new(logtest.Log)}
	g.guard.Observe = func(_ context.Context, e login.Event) { g.events <- e }
	g.proxy = proxy.New(proxy.Options{Rules: rules, Throttler: limits, Guard: g.guard, Secret: "a secret of the site", Log: slog.New(slog.NewTextHandler(g.log, nil))})
	return g
}

// results are how the attempts so far were ended, by result.
func (g *guarded) results() map[login.Result]int {
	all := map[login.Result]int{}
	for {
		select {
		case e := <-g.events:
			all[e.Result]++
		default:
			return all
		}
	}
}

// client follows no redirects.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send sends a request from addr.
func send(t *testing.T, r *http.Request, addr string) *http.Response {
	t.Helper()
	r.Header.Set("X-Forwarded-For", addr)
	answer, err := client.Do(r)
	if !assert.NoError(t, err) {
		return &http.Response{Header: http.Header{}, Body: http.NoBody}
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	assert.NoError(t, err)
	answer.Body = io.NopCloser(strings.NewReader(string(body)))
	return answer
}

// post is a request with a body.
func post(t *testing.T, url, contentType, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", contentType)
	return r
}

// guess logs in at a form.
func (g *guarded) guess(t *testing.T, name, password, addr string, cookies ...*http.Cookie) *http.Response {
	t.Helper()
	r := post(t, g.URL+"/login", "application/x-www-form-urlencoded", url.Values{"user": {name}, "password": {password}}.Encode())
	for _, cookie := range cookies {
		r.AddCookie(cookie)
	}
	return send(t, r, addr)
}

// together runs n functions at once.
func together(n int, do func(i int)) {
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { do(i) })
	}
	running.Wait()
}

func TestOfGuessesAtOnceFromOneAddressFiveReachTheServer(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	var refused atomic.Int64
	together(100, func(i int) {
		if answer := g.guess(t, "alice", fmt.Sprint(i), "203.0.113.7"); answer.StatusCode == http.StatusTooManyRequests {
			assert.NotEmpty(t, answer.Header.Get("Retry-After"))
			assert.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
			refused.Add(1)
		}
	})
	assert.EqualValues(t, 5, s.verified.Load())
	assert.EqualValues(t, 95, refused.Load())
	answer := g.guess(t, "alice", "right", "203.0.113.7")
	assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode, "banned")
	assert.Equal(t, "600", answer.Header.Get("Retry-After"))
	assert.Equal(t, map[login.Result]int{login.Failed: 5, login.Refused: 96}, g.results())
}

func TestOfGuessesAtOnceFromManyAddressesTwentyFourReachTheServer(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	together(200, func(i int) { g.guess(t, "alice", fmt.Sprint(i), fmt.Sprintf("198.51.100.%d", i)) })
	assert.EqualValues(t, 24, s.verified.Load())
}

func TestTheOwnerGetsInFromAKnownPlaceAndByADevice(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	require.Empty(t, g.guess(t, "alice", "wrong", "203.0.113.9").Cookies(), "no device")
	first := g.guess(t, "alice", "right", "203.0.113.9")
	require.Equal(t, http.StatusSeeOther, first.StatusCode)
	device := deviceOf(t, first)
	together(100, func(i int) { g.guess(t, "alice", fmt.Sprint(i), fmt.Sprintf("198.51.100.%d", i)) })
	require.EqualValues(t, 25, s.verified.Load())
	assert.Equal(t, http.StatusTooManyRequests, g.guess(t, "alice", "right", "192.0.2.1").StatusCode, "a stranger's place")
	assert.Equal(t, http.StatusSeeOther, g.guess(t, "alice", "right", "203.0.113.9").StatusCode, "the known place")
	away := g.guess(t, "alice", "right", "192.0.2.1", device)
	assert.Equal(t, http.StatusSeeOther, away.StatusCode, "the known device")
	assert.NotEqual(t, device.Value, deviceOf(t, away).Value, "it is replaced")
	assert.Equal(t, http.StatusTooManyRequests, g.guess(t, "alice", "right", "192.0.2.2", &http.Cookie{Name: device.Name, Value: strings.Repeat("A", 26)}).StatusCode)
}

// deviceOf is the device that an answer sets.
func deviceOf(t *testing.T, answer *http.Response) *http.Cookie {
	t.Helper()
	for _, cookie := range answer.Cookies() {
		if strings.HasPrefix(cookie.Name, "__Host-throttler-") {
			assert.True(t, cookie.Secure && cookie.HttpOnly && cookie.SameSite == http.SameSiteLaxMode && cookie.Path == "/" && cookie.Domain == "")
			assert.Greater(t, cookie.MaxAge, 300*86400)
			return cookie
		}
	}
	require.Fail(t, "no device")
	return nil
}

func TestTheServerSeesNoDevice(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	r, err := http.NewRequestWithContext(t.Context(), "GET", g.URL+"/page", nil)
	require.NoError(t, err)
	r.Header.Set("Cookie", "a=1; "+deviceOf(t, g.guess(t, "alice", "right", "203.0.113.7")).String()[:60]+"; b=2")
	body, err := io.ReadAll(send(t, r, "203.0.113.7").Body)
	require.NoError(t, err)
	assert.Contains(t, string(body), "Cookie: a=1; b=2\r\n")
}

func TestAPageThatShowsTheFormIsNoAttempt(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST"} {
		for range 30 {
			r, err := http.NewRequestWithContext(t.Context(), method, g.URL+"/login?next=%2F", nil)
			require.NoError(t, err)
			assert.NotEqual(t, http.StatusTooManyRequests, send(t, r, "203.0.113.7").StatusCode, method)
		}
	}
	assert.Empty(t, g.results())
}
