package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dav asks for a page by Basic authentication.
func (g *guarded) dav(t *testing.T, method, name, password, addr string, body io.Reader) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, g.URL+"/dav/x", body)
	require.NoError(t, err)
	r.SetBasicAuth(name, password)
	return send(t, r, addr)
}

func TestAClientWithBasicAuthenticationSendsManyRequestsAtOnce(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	together(50, func(i int) {
		assert.Equal(t, http.StatusOK, g.dav(t, "GET", "alice", "right", "203.0.113.7", nil).StatusCode)
	})
	assert.EqualValues(t, 50, s.verified.Load())
	assert.Equal(t, map[login.Result]int{login.Succeeded: 1}, g.results(), "one of them is an attempt")
	g.dav(t, "GET", "alice", "right", "203.0.113.8", nil)
	assert.Equal(t, map[login.Result]int{login.Succeeded: 1}, g.results(), "at another address another one")
}

func TestOfGuessesByBasicAuthenticationFiveReachTheServer(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	require.Equal(t, http.StatusOK, g.dav(t, "GET", "mallory", "right", "203.0.113.7", nil).StatusCode)
	for _, same := range []bool{false, true} {
		s.verified.Store(0)
		together(60, func(i int) {
			g.dav(t, "GET", fmt.Sprint("alice", same), fmt.Sprintf("guess-%d", i*map[bool]int{false: 1, true: 0}[same]), "203.0.113.7", nil)
		})
		assert.EqualValues(t, 5, s.verified.Load(), "the same one: %v", same)
	}
	assert.Equal(t, http.StatusTooManyRequests, g.dav(t, "GET", "alicefalse", "right", "203.0.113.7", nil).StatusCode)
}

func TestAPasswordThatWasChangedIsAGuessAgain(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	require.Equal(t, http.StatusOK, g.dav(t, "GET", "alice", "right", "203.0.113.7", nil).StatusCode)
	s.password.Store("new")
	var refused atomic.Int64
	for range 10 {
		if g.dav(t, "GET", "alice", "right", "203.0.113.7", nil).StatusCode == http.StatusTooManyRequests {
			refused.Add(1)
		}
	}
	assert.EqualValues(t, 4, refused.Load(), "one more than five reached the server")
}

func TestCredentialsStayKnownForFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guardUnserved(t, "http://127.0.0.1:1", logins, memstore.New())
		g.proxy.SetTransport(&outage{})
		for minute := range 12 {
			want := map[login.Result]int{}
			if minute%5 == 0 {
				want[login.Succeeded] = 1
			}
			require.Equal(t, http.StatusOK, g.asks("alice", "", "203.0.113.7"))
			require.Equal(t, want, g.results(), "after %d minutes", minute)
			time.Sleep(time.Minute)
		}
	})
}

// Nobody's program has to be verified anew because the server was away.
func TestCredentialsStayKnownWhileTheServerIsAway(t *testing.T) {
	s, address := newSite(t), nowhere(t)
	serve := func() *httptest.Server {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		server := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.Config.Handler}}
		server.Start()
		return server
	}
	g := guardSite(t, "http://"+address, logins)
	before := serve()
	require.Equal(t, http.StatusOK, g.dav(t, "GET", "alice", "right", "203.0.113.7", nil).StatusCode)
	before.Close()
	require.Equal(t, http.StatusBadGateway, g.dav(t, "GET", "alice", "right", "203.0.113.7", nil).StatusCode)
	defer serve().Close()
	require.Equal(t, http.StatusOK, g.dav(t, "GET", "alice", "right", "203.0.113.7", nil).StatusCode)
	assert.Equal(t, map[login.Result]int{login.Succeeded: 1}, g.results())
}

func TestALargeUploadIsPassedOnWhileItComes(t *testing.T) {
	g := guardSite(t, newSite(t).URL, logins)
	const size = 20 << 20
	answer := g.dav(t, "PUT", "alice", "right", "203.0.113.7", io.LimitReader(zeros{}, size))
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("PUT %d", size), string(body))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWithoutCredentialsThereIsNoAttempt(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	for range 20 {
		answer := send(t, post(t, g.URL+"/dav/x", "text/plain", "body"), "203.0.113.7")
		assert.Equal(t, http.StatusUnauthorized, answer.StatusCode)
		assert.NotEmpty(t, answer.Header.Get("WWW-Authenticate"))
	}
	assert.Empty(t, g.results())
	r := post(t, g.URL+"/DAV//x", "text/plain", "")
	r.Header.Set("Authorization", "Bearer YWxpY2U6eA==")
	assert.Equal(t, http.StatusBadRequest, send(t, r, "203.0.113.7").StatusCode)
	assert.False(t, strings.Contains(g.log.String(), "YWxpY2U6eA"), "no secrets in the log")
}

// An account of one's own at one login must not be of use to guess at another.
func TestCredentialsAreKnownToOneLoginAtOneHost(t *testing.T) {
	const two = `
  logins:
    - for: {path: [/own/**]}
      name: {basic: true}
      right: {status: [200]}
      wrong: {status: [401]}
    - for: {path: [/**]}
      name: {basic: true}
      right: {status: [200]}
      wrong: {status: [401]}
`
	for _, victim := range []struct {
		host, path string
		forwarded  bool
	}{{"own", "/other", false}, {"other", "/own/x", false}, {"other", "/own/x", true}} {
		var guesses atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Forwarded-Host") != "own" || r.URL.Path != "/own/x" { // which takes any password
				guesses.Add(1)
				w.WriteHeader(http.StatusUnauthorized)
			}
		}))
		defer server.Close()
		g := guardSite(t, server.URL, two)
		try := func(host, path string, i int) {
			r, err := http.NewRequestWithContext(t.Context(), "GET", g.URL+path, nil)
			require.NoError(t, err)
			if r.Host = host; victim.forwarded {
				r.Host = ""
				r.Header.Set("X-Forwarded-Host", host)
			}
			r.SetBasicAuth("alice", fmt.Sprint(i))
			send(t, r, "203.0.113.7")
		}
		for i := range 60 {
			try("own", "/own/x", i)
			try(victim.host, victim.path, i)
		}
		assert.LessOrEqual(t, guesses.Load(), int64(24+12), victim)
	}
}

func TestTheAnswerToOptionsProvesNothing(t *testing.T) {
	s := newSite(t)
	lax := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodOptions && r.Method != http.MethodTrace {
			s.Config.Handler.ServeHTTP(w, r)
		}
	}))
	defer lax.Close()
	for _, method := range []string{http.MethodOptions, http.MethodTrace} {
		s.verified.Store(0)
		g := guardSite(t, lax.URL, logins)
		for i := range 20 {
			g.dav(t, method, "alice", fmt.Sprint(i), "203.0.113.7", nil)
			g.dav(t, "GET", "alice", fmt.Sprint(i), "203.0.113.7", nil)
		}
		assert.LessOrEqual(t, s.verified.Load(), int64(5), method)
		assert.Equal(t, http.StatusOK, g.dav(t, method, "bob", "right", "203.0.113.8", nil).StatusCode)
		assert.Equal(t, http.StatusOK, g.dav(t, "GET", "bob", "right", "203.0.113.8", nil).StatusCode)
	}
}

// Some servers look at a session first, and answer as they would without a password.
func TestTheAnswerToSomebodyElsesSessionProvesNothing(t *testing.T) {
	s := newSite(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if session, err := r.Cookie("session"); err != nil || session.Value != "mallory" {
			s.Config.Handler.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	g := guardSite(t, server.URL, logins)
	get := func(name, password, addr, session string) int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", g.URL+"/dav/x", nil)
		require.NoError(t, err)
		r.SetBasicAuth(name, password)
		if session != "" {
			r.Header.Set("Cookie", "session="+session)
		}
		return send(t, r, addr).StatusCode
	}
	for i := range 20 {
		get("alice", fmt.Sprint(i), "203.0.113.7", "mallory")
		get("alice", fmt.Sprint(i), "203.0.113.7", "nobody")
		get("alice", fmt.Sprint(i), "203.0.113.7", "")
	}
	assert.LessOrEqual(t, s.verified.Load(), int64(5))
	assert.Zero(t, g.results()[login.Succeeded])
	assert.Equal(t, http.StatusOK, get("alice", "right", "203.0.113.8", ""), "the owner, from elsewhere")
	for range 20 {
		assert.Equal(t, http.StatusOK, get("bob", "right", "203.0.113.9", "bob"), "known beside a cookie")
	}
	assert.Equal(t, http.StatusOK, get("bob", "right", "203.0.113.9", ""))
	assert.Equal(t, map[login.Result]int{login.Canceled: 1, login.Succeeded: 2}, g.results())
	assert.Equal(t, http.StatusOK, get("bob", "right", "203.0.113.9", "bob"))
	assert.Empty(t, g.results(), "it is known now")
}
