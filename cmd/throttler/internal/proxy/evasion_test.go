package proxy_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has requests that try to have another name counted than the server reads.

func TestWhatCanBeReadInDifferentWaysDoesNotReachTheServer(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	const form = "application/x-www-form-urlencoded"
	for _, c := range []struct {
		path, kind, body string
		want             int
	}{
		{"/login", form, "user=a&user=b", 400},
		{"/login?user=a", form, "user=b", 400},
		{"/login", form, "x=1;user=b", 400},
		{"/login", form, "password=b", 400},
		{"/login", form, "USER=b", 400},
		{"/login", form + "; charset=utf-16", "user=b", 415},
		{"/login", "text/plain", "user=b", 400},
		{"/login?user=a", "text/plain", "user=b", 400},
		{"/login", "application/json", `{"user": "a", "user": "b"}`, 400},
		{"/login", "application/json", `{"user": `, 415},
		{"/login", "multipart/form-data; boundary=B", "--B\r\n", 415},
		{"/login", form, strings.Repeat("a=1&", 20_000) + "user=b", 413},
		{"/login", form, "user=" + strings.Repeat("b", 1025), 403},
		{"//LOGIN/;x", form, "user=a&user=b", 400},
		{"/%256cogin", form, "user=a&user=b", 400},
		{"/login%00", form, "user=b", 400},
		{"/login%09", form, "user=b", 400},
	} {
		answer := send(t, post(t, g.URL+c.path, c.kind, c.body), "203.0.113.7")
		assert.Equal(t, c.want, answer.StatusCode, "%s %s %.40s", c.path, c.kind, c.body)
	}
	assert.Zero(t, s.served.Load())
	assert.Contains(t, g.log.String(), "a login was not passed on")
	assert.Equal(t, 200, send(t, post(t, g.URL+"/login", "application/json", `{"user": "a"}`), "203.0.113.7").StatusCode)
	assert.EqualValues(t, 1, s.served.Load())
	assert.Equal(t, 200, send(t, post(t, g.URL+"/login?user=a", form, "password=b"), "203.0.113.7").StatusCode, "a form without one may follow a query with one")
}

func TestNamesThatDoNotMatchAreRefused(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, strings.Replace(logins, "json: user}", `matches: "[a-z]+"}`, 1))
	assert.Equal(t, http.StatusForbidden, g.guess(t, "al!ice", "right", "203.0.113.7").StatusCode)
	assert.Equal(t, http.StatusSeeOther, g.guess(t, "alice", "right", "203.0.113.7").StatusCode)
	assert.EqualValues(t, 1, s.served.Load())
}

func TestBodiesWithoutANamePassWhereOtherPagesTakeThem(t *testing.T) {
	s := newSite(t)
	const everywhere = `
  logins:
    - for: {path: [/**]}
      name: {form: user}
      missing: pass
      right: {status: [303]}
      wrong: {status: [200]}
`
	g := guardSite(t, s.URL, everywhere)
	large := strings.Repeat("0123456789", 100_000)
	for kind, body := range map[string]string{
		"application/x-www-form-urlencoded": "text=" + large, "text/plain": large, "application/json": "{}",
		"multipart/form-data; boundary=B": "--B\r\nContent-Disposition: form-data; name=f; filename=g\r\n\r\n" + large + "\r\n--B--\r\n",
	} {
		answer := send(t, post(t, g.URL+"/page", kind, body), "203.0.113.7")
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(string(text), "POST /page "+body+"\n"), kind)
	}
	assert.Empty(t, g.results())
	served := s.served.Load()
	answer := send(t, post(t, g.URL+"/login", "application/x-www-form-urlencoded", "text="+large+"&user=alice&password=right"), "203.0.113.7")
	assert.Equal(t, http.StatusBadRequest, answer.StatusCode, "a name far behind")
	assert.LessOrEqual(t, s.served.Load(), served+1)
	assert.Zero(t, s.verified.Load(), "the server has not got the whole body")
}

func TestASecondNameFarBehindCostsTheAttempt(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	for range 5 {
		answer := send(t, post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=mallory&x="+strings.Repeat("x", 200_000)+"&user=alice&password=right"), "203.0.113.7")
		assert.Equal(t, http.StatusBadRequest, answer.StatusCode)
	}
	assert.Equal(t, map[login.Result]int{login.Failed: 5}, g.results())
	answer := send(t, post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=mallory&password=right&x="+strings.Repeat("x", 200_000)), "203.0.113.8")
	assert.Equal(t, http.StatusSeeOther, answer.StatusCode, "a long body is passed on")
}

// ask sends the text of a request, and returns the status of the answer.
func (g *guarded) ask(t *testing.T, text string) int {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err, text)
	return answer.StatusCode
}

// guessAt guesses alice's password with a form at a request target.
func (g *guarded) guessAt(t *testing.T, target, fields string) int {
	t.Helper()
	const body = "user=alice&password=guess"
	return g.ask(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n%s\r\n%s", target, len(body), fields, body))
}

// lenient is a server whose login is found under more spellings of its path than that of
// a site, and that counts the passwords it verifies.
func lenient(t *testing.T, isLogin func(target string) bool) (url string, verified *atomic.Int64) {
	t.Helper()
	verified = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isLogin(r.RequestURI) {
			verified.Add(1)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, verified
}

func TestNoRequestTargetEvadesALogin(t *testing.T) {
	for target, sent := range map[string]string{
		"http://a/login": "/login", "HTTP://a/login": "/login", "x:/login": "/login", "ftp://a/login": "/login", "http:/login": "/login", "x:login": "login",
		"/x#/../login": "/x%23/../login", `/x\y/../login`: "/x%5Cy/../login", "/login/..;/..": "/login/..;/..", "/login/x//../..": "/login/x//../..",
		"//x/login": "//x/login", "/login.": "/login.", "//login;a/%2e": "//login;a/%2e", "/login;a/..;/..": "/login;a/..;/..",
		"/login%2500": "/login%2500", "/log%C4%B1n": "/log%C4%B1n",
	} {
		server, verified := lenient(t, func(target string) bool { return target == sent })
		g := guardSite(t, server, logins)
		for range 20 {
			g.guessAt(t, target, "")
		}
		assert.LessOrEqual(t, verified.Load(), int64(5), target)
	}
}

func TestAFieldThatSomeServersTakeForThePathIsOneToo(t *testing.T) {
	for _, field := range []string{"X-Original-URL: /login?a=b", "X-Rewrite-Url: //LOGIN"} {
		g := guardSite(t, newSite(t).URL, logins)
		passed := 0
		for range 20 {
			if g.guessAt(t, "/x", field+"\r\n") == http.StatusOK {
				passed++
			}
		}
		assert.Equal(t, 5, passed, field)
	}
}

// guardHosts starts a proxy before a server with a login at one host. hostOf returns what the
// server takes for the host of a request.
func guardHosts(t *testing.T, host string, hostOf func(*http.Request) string) (g *guarded, verified *atomic.Int64) {
	t.Helper()
	verified = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hostOf(r) == host {
			verified.Add(1)
		}
	}))
	t.Cleanup(s.Close)
	return guardSite(t, s.URL, strings.Replace(logins, "path: [/login]", "path: [/login], host: ["+host+"]", 1)), verified
}

func TestNoSpellingOfAHostEvadesALogin(t *testing.T) {
	upToColon := func(r *http.Request) string {
		name, _, _ := strings.Cut(r.Host, ":")
		return strings.ToLower(strings.TrimRight(name, "."))
	}
	const form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 25\r\n\r\nuser=alice&password=guess"
	for request, host := range map[string]string{
		"/login HTTP/1.1\r\nHost: a.example:1:2":                  "a.example",
		"/login HTTP/1.1\r\nHost: a.example:80:x":                 "a.example",
		"/login HTTP/1.1\r\nHost: a.example:]":                    "a.example",
		"/login HTTP/1.1\r\nHost: A.Example.:80":                  "a.example",
		"/login HTTP/1.1\r\nHost: a.example:":                     "a.example",
		"/login HTTP/1.1\r\nHost: a.example..":                    "a.example",
		"http://b%C3%BCcher.example/login HTTP/1.1\r\nHost: x":    "xn--bcher-kva.example",
		"http://B%c3%9cCHER.example:80/login HTTP/1.1\r\nHost: x": "xn--bcher-kva.example",
		"/login HTTP/1.1\r\nHost: ":                               "127.0.0.1", // that of the server
		"/login HTTP/1.0":                                         "127.0.0.1",
	} {
		g, verified := guardHosts(t, host, upToColon)
		for range 20 {
			g.ask(t, "POST "+request+"\r\n"+form)
		}
		assert.LessOrEqual(t, verified.Load(), int64(5), request)
	}
}

func TestAHostThatATrustedProxyNamesMayBeTheOne(t *testing.T) {
	for field, value := range map[string]string{"X-Forwarded-Host": "c, A.example:80", "Forwarded": `for=_x, proto=http;Host="a.ex\ample:80"`} {
		g, verified := guardHosts(t, "a.example", func(r *http.Request) string {
			if strings.Contains(strings.ToLower(r.Header.Get(field)), "a.ex") {
				return "a.example"
			}
			return r.Host
		})
		passed := 0
		for range 20 {
			if g.guessAt(t, "/login", field+": "+value+"\r\n") == http.StatusOK {
				passed++
			}
		}
		assert.Equal(t, 5, passed, field)
		assert.EqualValues(t, 5, verified.Load(), field)
	}
}

func TestAHostThatIsNoneIsNotPassedOn(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	for host, want := range map[string]int{
		"a": 200, "a_b.example.:8080": 200, "192.0.2.1:80": 200, "[2001:db8::1]": 200, "[::ffff:192.0.2.1]:80": 200,
		"a:b": 400, "a:1:2": 400, "[::1]x": 400, "[::1%25eth0]": 400, ".a": 400, "a%2eb": 400, ":80": 400, "a,b": 400,
	} {
		assert.Equal(t, want, g.ask(t, "GET /page HTTP/1.1\r\nHost: "+host+"\r\n\r\n"), host)
	}
	assert.EqualValues(t, 5, s.served.Load())
}

// Each path is compared in many spellings, so a long one would take long.
func TestAPathThatIsTooLongIsNotPassedOn(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	long := strings.Repeat("/a", 4<<10)
	get := func(path string, fields ...string) int {
		r, err := http.NewRequest(http.MethodGet, g.URL+path, nil)
		require.NoError(t, err)
		for _, field := range fields {
			r.Header.Add(field, long+"/")
		}
		return send(t, r, "203.0.113.7").StatusCode
	}
	assert.Equal(t, http.StatusOK, get(long+"?"+long))
	assert.Equal(t, http.StatusRequestURITooLong, get(long+"/"))
	assert.Equal(t, http.StatusRequestURITooLong, get("/", "X-Original-Url"))
	assert.Equal(t, http.StatusRequestURITooLong, get("/", "X-Rewrite-Url"))
	assert.EqualValues(t, 1, s.served.Load())
}

func TestAPathThatMayBeThatOfTwoLoginsIsNotReadAsOneOfThem(t *testing.T) {
	server, verified := lenient(t, func(target string) bool { return strings.HasPrefix(target, "/dav/") })
	g := guardSite(t, server, logins)
	r, err := http.NewRequestWithContext(t.Context(), "GET", g.URL+"/dav/%252e%252e/login", nil)
	require.NoError(t, err)
	r.SetBasicAuth("alice", "guess")
	assert.Equal(t, http.StatusBadRequest, send(t, r, "203.0.113.7").StatusCode)
	assert.Zero(t, verified.Load())
	r.Header.Del("Authorization")
	assert.Equal(t, http.StatusOK, send(t, r, "203.0.113.7").StatusCode)
}

func TestAFieldThatTheServerDoesNotGetSaysNothing(t *testing.T) {
	s := newSite(t)
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" { // else a page for everybody
			s.Config.Handler.ServeHTTP(w, r)
		}
	}))
	defer pages.Close()
	g := guardSite(t, pages.URL, logins)
	for i := range 20 {
		basic := "Authorization: Basic " + base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "alice:%d", i)) + "\r\n"
		g.ask(t, "GET /dav/x HTTP/1.1\r\nHost: a\r\nConnection: close, authorization\r\n"+basic+"\r\n")
		g.ask(t, "GET /dav/x HTTP/1.1\r\nHost: a\r\n"+basic+"\r\n")
	}
	assert.LessOrEqual(t, s.verified.Load(), int64(5))
	assert.Equal(t, http.StatusTooManyRequests, g.guessAt(t, "/login", "Connection: Content-Type\r\n"), "a form to some servers")
}

func TestWhatServersMayTakeForTheQueryIsReadToo(t *testing.T) {
	for target, field := range map[string]string{
		"/x": "X-Original-URL: /login?user=alice&password=%d\r\n", "/y?a=b": "X-Rewrite-Url: /login?password=%d&user=alice\r\n",
		"/login%%3fuser=alice&password=%d": "", "/login%%253Fuser=alice%%26password=%d": "", "/z": "X-Original-URL: /login%%3fuser=alice&password=%d\r\n",
	} {
		server, verified := lenient(t, func(string) bool { return true })
		g := guardSite(t, server, logins)
		for i := range 20 {
			text := "GET " + target + " HTTP/1.1\r\nHost: a\r\n" + field + "\r\n"
			g.ask(t, fmt.Sprintf(text, i))
		}
		assert.EqualValues(t, 5, verified.Load(), target+field)
	}
	s := newSite(t)
	g := guardSite(t, s.URL, logins)
	for _, fields := range []string{"/login?user=alice#1 HTTP/1.1\r\nHost: a", "/x HTTP/1.1\r\nHost: a\r\nX-Original-Url: /login?user=alice#1"} {
		assert.Equal(t, http.StatusBadRequest, g.ask(t, "GET "+fields+"\r\n\r\n"), "most servers drop the fragment")
	}
	assert.Equal(t, http.StatusOK, g.ask(t, "GET /x?user=alice#1 HTTP/1.1\r\nHost: a\r\n\r\n"))
	assert.Equal(t, http.StatusBadRequest, g.ask(t, "GET /login?user=alice HTTP/1.1\r\nHost: a\r\nX-Original-Url: /login?user=bob\r\n\r\n"))
	assert.Equal(t, http.StatusOK, g.ask(t, "GET /login?user=alice HTTP/1.1\r\nHost: a\r\nX-Original-Url: /login?user=alice\r\n\r\n"), "as IIS says it")
	assert.Equal(t, http.StatusOK, g.ask(t, "GET /login%3fnext=x HTTP/1.1\r\nHost: a\r\n\r\n"))
}

// ASP.NET takes fields of the query for those of a form, and their names with one step more, or
// one less.
func TestAFieldThatASPNETMayTakeForTheNameDoesNotReachTheServer(t *testing.T) {
	for form, fields := range map[string]string{"Input.Email": "Email=alice%40x&Password=guess", "Email": "model.Email=alice&model.Password=guess"} {
		server, verified := lenient(t, func(string) bool { return true })
		for _, missing := range []string{"refuse", "pass"} {
			g := guardSite(t, server, strings.Replace(logins, "{form: user, json: user}", "{form: "+form+"}\n      missing: "+missing, 1))
			for _, text := range []string{
				"POST /login?" + fields + " HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
				fmt.Sprintf("POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", len(fields), fields),
			} {
				assert.Equal(t, http.StatusBadRequest, g.ask(t, text), "%s: %s", missing, text)
			}
			beside := fmt.Sprintf("GET /login?%s=decoy&%s HTTP/1.1\r\nHost: a\r\n\r\n", form, fields)
			assert.Equal(t, http.StatusBadRequest, g.ask(t, beside), "%s: %s", missing, beside)
		}
		assert.Zero(t, verified.Load(), fields)
		g := guardSite(t, server, strings.Replace(logins, "user, json: user", form, 1))
		assert.Equal(t, http.StatusOK, g.ask(t, "GET /login?"+fields+" HTTP/1.1\r\nHost: a\r\n\r\n"), "a link that fills the form in, or another page's")
		assert.Empty(t, g.results())
	}
}

// Laravel and Rails take fields of the query for keys of JSON.
func TestAFieldOfTheQueryIsNoKeyOfJSONThatIsNotCounted(t *testing.T) {
	server, verified := lenient(t, func(string) bool { return true })
	for _, missing := range []string{"refuse", "pass"} {
		g := guardSite(t, server, strings.Replace(logins, "{form: user, json: user}", "{json: user}\n      missing: "+missing, 1))
		status := func(method, target, body string) int {
			kind := ""
			if body != "" {
				kind = fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
			}
			return g.ask(t, method+" "+target+" HTTP/1.1\r\nHost: a\r\n"+kind+"\r\n"+body)
		}
		before := verified.Load()
		assert.Equal(t, http.StatusBadRequest, status("POST", "/login?user=alice&password=guess", ""))
		assert.Equal(t, http.StatusBadRequest, status("POST", "/login?user=alice", `{"user": "decoy", "password": "guess"}`))
		assert.Equal(t, http.StatusBadRequest, status("PUT", "/login%3fuser=alice&password=guess", ""))
		assert.Equal(t, http.StatusBadRequest, status("GET", "/login?user=alice", `{"user": "decoy", "password": "guess"}`))
		assert.Equal(t, before, verified.Load())
		assert.Equal(t, http.StatusOK, status("POST", "/login?next=user", `{"user": "alice", "password": "guess"}`))
		assert.Equal(t, http.StatusOK, status("GET", "/login?user=alice", ""), "as other pages may need it")
		assert.Equal(t, http.StatusOK, status("POST", "/x?user=alice", ""))
	}
	g := guardSite(t, server, logins)
	for range 20 {
		g.ask(t, "POST /login?user=alice HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	assert.Equal(t, map[login.Result]int{login.Failed: 5, login.Refused: 15}, g.results(), "counted as a form's")
}

// In HTTP/2 a path may have blanks, which would end the request target in HTTP/1.1.
func TestABlankInTheQueryDoesNotReachTheServer(t *testing.T) {
	server, verified := lenient(t, func(string) bool { return true })
	g := guardUnserved(t, server, logins, memstore.New())
	for _, path := range []string{"/login", "/x"} {
		r := httptest.NewRequest("GET", path, nil)
		r.URL.RawQuery = "user=alice HTTP/1.1 17"
		w := httptest.NewRecorder()
		g.proxy.ServeHTTP(w, r)
		assert.Equal(t, http.StatusBadRequest, w.Code)
	}
	assert.Zero(t, verified.Load())
}

// Where other pages take bodies without a name, too, one that is read elsewhere must not
// pass for one of these.
func TestABodyThatOnlyTheServerCanReadIsNoOtherPages(t *testing.T) {
	names := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if kind := r.Header.Get("Content-Type"); kind == "" || strings.HasSuffix(string(body), `"alice"}`) { // as Rack, and as PHP reads php://input
			names <- string(body)
		}
	}))
	defer server.Close()
	g := guardSite(t, server.URL, `
  logins:
    - for: {path: [/**]}
      name: {form: user, json: user, basic: true}
      missing: pass
      right: {status: [303]}
`)
	deep := `{"x": ` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `, "user": "alice"}`
	for _, c := range []struct {
		kind, body string
		want       int
	}{
		{"text/plain", deep, http.StatusUnsupportedMediaType},
		{"text/plain", `{"x": NaN, "user": "alice"}`, http.StatusUnsupportedMediaType},
		{"", deep, http.StatusUnsupportedMediaType},
		{"", `{"x": "&user=alice&"}`, http.StatusOK},
		{"", strings.Repeat("a", 5000) + "=1&user=alice", http.StatusOK},
		{"", "a%zz=1&user=alice", http.StatusOK},
		{"", strings.Repeat("a=1&", 20_000) + "a%zz=1&user=alice", http.StatusOK},
	} {
		r := post(t, g.URL+"/page", c.kind, c.body)
		if c.kind == "" {
			r.Header.Del("Content-Type")
		}
		assert.Equal(t, c.want, send(t, r, "203.0.113.7").StatusCode, "%.40s", c.body)
		assert.Empty(t, names, "%.40s", c.body)
	}
	r := post(t, g.URL+"/page", "", "a=1&b=2")
	r.Header.Del("Content-Type")
	assert.Equal(t, http.StatusOK, send(t, r, "203.0.113.7").StatusCode)
	assert.Equal(t, "a=1&b=2", <-names, "a form without a name is passed on as it is")
}

func TestNoCookieIsTakenForTheName(t *testing.T) {
	names := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as $_REQUEST of PHP
		name := r.FormValue("user")
		for _, cookie := range r.Cookies() {
			if key, _ := url.QueryUnescape(cookie.Name); key == "user" || key == "user[]" {
				name = cookie.Value
			}
		}
		names <- name + " " + r.Header.Get("Cookie")
	}))
	defer server.Close()
	g := guardSite(t, server.URL, logins)
	for _, cookie := range []string{"user=alice", "a=1; user=alice; b=2", "%75ser=alice", "user[]=alice", " user =alice"} {
		r := post(t, g.URL+"/login", "application/x-www-form-urlencoded", "user=decoy&password=x")
		r.Header.Set("Cookie", cookie)
		send(t, r, "203.0.113.7")
		assert.Contains(t, []string{"decoy ", "decoy a=1; b=2"}, <-names, cookie)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", g.URL+"/login?password=x", nil)
	require.NoError(t, err)
	r.Header.Add("Cookie", "user=alice")
	send(t, r, "203.0.113.7")
	assert.Equal(t, " ", <-names)
	r.URL.Path = "/page"
	send(t, r, "203.0.113.7")
	assert.Equal(t, "alice user=alice", <-names, "elsewhere it is passed on")
}
