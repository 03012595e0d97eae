package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/login"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has requests that try to have another name counted than the server reads.

// ask sends the text of a request, and returns the status of the answer.
func (g *guarded) ask(t *testing.T, text string) int {
	t.Helper()
	status, _ := g.tell(t, text)
	return status
}

// tell is ask for the body of the answer, too.
func (g *guarded) tell(t *testing.T, text string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err, text)
	got, _ := io.ReadAll(answer.Body) // an error: the client has not sent all that it said
	return answer.StatusCode, string(got)
}

// A seen is what a server has got.
type seen struct {
	target, cookie, kind, body string
	header                     http.Header
}

// guardSeen starts a proxy before a server that tells what it gets, and verifies no password.
func guardSeen(t *testing.T, more string) (g *guarded, got chan seen) {
	t.Helper()
	got = make(chan seen, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.RequestURI, r.Header.Get("Cookie"), r.Header.Get("Content-Type"), string(body), r.Header}
	}))
	t.Cleanup(s.Close)
	return guardSite(t, s.URL, more), got
}

// The rule files of the requests below.
var (
	everywhere = `
  logins:
    - for: {path: [/**]}
      name: {form: user, json: user, basic: true}
      missing: pass
      right: {status: [303]}
`
	onlyJSON    = strings.Replace(logins, "{form: user, json: user}", "{json: user}", 1)
	lowercase   = strings.Replace(logins, "json: user}", `matches: "[a-z]+"}`, 1)
	ofASPNET    = strings.Replace(logins, "form: user", "form: Input.Email", 1)
	basicOrForm = strings.Replace(logins, "{basic: true}", "{basic: true, form: u}\n      missing: pass", 1)
)

// What becomes of a request, besides being counted as a name's attempt: it is passed on as none,
// or answered with a status.
const passed = "(passed)"

const (
	asForm  = "Content-Type: application/x-www-form-urlencoded\n"
	asJSON  = "Content-Type: application/json\n"
	asText  = "Content-Type: text/plain\n"
	inParts = "multipart/form-data; boundary=B"
	parted  = "Content-Type: " + inParts + "\n"
	creds   = "Authorization: Basic YWxpY2U6Z3Vlc3M=\n" // alice:guess
	guess   = "user=alice&password=guess"
	part    = "--B\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n"
)

func TestWhatBecomesOfARequest(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	type row struct{ head, body, want, sent string } // sent: the body that the server gets, if it matters
	for _, c := range []struct {
		what, file string
		rows       []row
	}{
		{"a form and JSON", logins, []row{
			{"POST /login\n" + asForm, guess, "alice", guess},
			{"POST /login\n" + asForm + "Transfer-Encoding: chunked\n", "3\r\nuse\r\n5\r\nr=bob\r\n0\r\nX: y\r\n\r\n", "bob", "user=bob"},
			{"POST /login\n" + asJSON, `{"user": "alice", "n": 1.50}`, "alice", `{"n":1.50,"user":"alice"}`},
			{"POST /login\n" + asJSON, `{"user": "decoy", "user": "alice"}`, "alice", `{"user":"alice"}`},
			{"POST /login\n" + asText, `{"user": "alice"}`, "alice", `{"user":"alice"}`},
			{"PUT /login\n" + asForm, "x=1;user=alice&user=bob", "bob", "x=1%3Buser%3Dalice&user=bob"},
			{"GET /login\n" + asForm, guess, "alice", guess}, // with a body
			{"POST /login?user=bob\n" + asForm, guess, "alice", guess},
			{"POST /login?user=bob\n" + asForm, "password=guess", "400", ""}, {"POST /login\n" + asForm, "password=b", "400", ""}, {"POST /login\n" + asText, guess, "400", ""}, {"POST /login\n", guess, "400", ""},
			{"POST /login\n" + asForm, "user=a&user=b", "400", ""}, {"POST /login\n" + asForm, "USER=b", "400", ""}, {"POST /login\n" + asForm, "user=%zz", "400", ""},
			{"POST /login\nContent-Type: application/x-www-form-urlencoded; charset=utf-16\n", guess, "400", ""}, {"POST /login\n" + asForm + asForm, guess, "400", ""},
			{"POST /login\n" + asForm + "Content-Encoding: gzip\n", guess, "400", ""}, {"POST /login\n" + asForm + "Content-Encoding: Identity\n", guess, "alice", ""},
			{"POST /login\n" + asForm + "Connection: Content-Type\n", guess, "400", ""}, {"POST /login\n" + asForm + "Connection: close, x\n", guess, "400", ""}, {"POST /login\n" + asForm + "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\n", guess, "alice", ""},
			{"POST /login\n" + asJSON, `{"user": `, "400", ""}, {"POST /login\n" + parted, "--B\r\n", "400", ""}, {"POST /login\n" + asForm, "user=" + strings.Repeat("b", 1025), "403", ""},
			{"POST /login\n" + asForm, "user=alice&x=" + long, "413", ""}, {"POST /login\n" + parted, fmt.Sprintf(part+part, "user", "alice", "x", long) + "--B--\r\n", "413", ""},
			{"POST /login\n" + asForm + "Transfer-Encoding: chunked\n", "nonsense\r\n", "400", ""},
			{"POST /login\n" + asForm, "", passed, ""}, {"POST /login?user=alice&password=guess\n", "", passed, ""}, {"GET /login?user=alice&password=guess\n", "", passed, ""}, {"OPTIONS /login\n" + creds, "", passed, ""},
			{"GET /login?user=alice#1\n", "", "400", ""}, {"GET /login?%zz=1\n", "", "400", ""}, {"GET /page?user=alice#1&%zz\n", "", passed, ""},
			{"POST /login%3fuser=alice\n" + asForm, guess, "400", ""}, {"GET /login%3fuser=alice&password=guess\n", "", "400", ""}, {"GET /login%253Fuser=alice%2526password=%25zz\n", "", "400", ""},
			{"GET /login;y%252525252525253fuser=alice\n", "", "400", ""}, {"GET /login%3fnext=x\n", "", passed, ""}, {"GET /wiki/What%3F\n", "", passed, ""},
			{"POST /page\n" + asForm, "user=a&user=b", passed, "user=a&user=b"},
		}},
		{"browsers", logins, []row{
			{"POST /login\n" + asForm + "Sec-Fetch-Site: cross-site\nOrigin: http://a\n", guess, "403", ""}, {"POST /login\n" + asForm + "Origin: https://evil.example\n", guess, "403", ""},
			{"POST /login\n" + asForm + "Origin: null\n", guess, "403", ""}, {"PUT /dav/x\n" + creds + "Sec-Fetch-Site: cross-site\n", "x", "403", ""},
			{"POST /login\n" + asForm + "Sec-Fetch-Site: same-origin\nOrigin: null\n", guess, "alice", ""}, {"POST /login\n" + asForm + "Sec-Fetch-Site: same-site\nOrigin: http://www.a\n", guess, "alice", ""},
			{"POST /login\n" + asForm + "Sec-Fetch-Site: none\n", guess, "alice", ""}, {"POST /login\n" + asForm + "Origin: https://a\n", guess, "alice", ""},
			{"POST /login\n" + asForm + "Origin: https://b:81\nX-Forwarded-Host: x, b:81\n", guess, "alice", ""}, {"GET /dav/x\n" + creds + "Sec-Fetch-Site: cross-site\n", "", "alice", ""},
			{"POST /page\n" + asForm + "Sec-Fetch-Site: cross-site\n", "x=y", passed, ""}, {"POST /login\n" + asForm + "Sec-Fetch-Site: cross-site\n", "", passed, ""},
		}},
		{"Basic authentication", basicOrForm, []row{
			{"GET /dav/x\n" + creds, "", "alice", ""}, {"GET /dav/x\nAuthorization: bAsIc YWxpY2U6Z3Vlc3M=\n", "", "alice", ""},
			{"GET /dav/x\nConnection: authorization\n" + creds, "", "400", ""}, {"PROPFIND /DAV/x?u=bob\n" + creds, "<x/>", "alice", "<x/>"},
			{"GET /dav/x\nAuthorization: Bearer YWxpY2U6Z3Vlc3M=\n", "", "400", ""}, {"GET /dav/x\n" + creds + creds, "", "400", ""}, {"GET /dav/x\nAuthorization: Basic  YWxpY2U6Z3Vlc3M=\n", "", "400", ""},
			{"POST /dav/x\n" + asForm + creds, "u=bob", "400", ""}, {"POST /dav/x\n" + asForm + creds, "a=%62", "alice", "a=b"},
			{"GET /dav/%252e%252e/login\n" + creds, "", "400", ""}, {"GET /dav/%252e%252e/login\n", "", passed, ""}, {"GET /dav/10%25%20%23.pdf\n" + creds, "", "alice", ""},
			{"PUT /dav/a;b\n", "x", passed, "x"}, {"PUT /dav/a;b/../login\n", "x", "400", ""},
		}},
		{"names that match", lowercase, []row{{"POST /login\n" + asForm, guess, "alice", ""}, {"POST /login\n" + asForm, "user=al!ice", "403", ""}}},
		{"ASP.NET", ofASPNET, []row{
			{"POST /login?Email=x\n" + asForm, "Input.Email=alice&Input.Password=x", "alice", ""}, {"POST /login\n" + asForm, "Email=alice", "400", ""}, {"POST /login\n" + asForm, "Input.Email=decoy&Model.Input.Email=alice", "400", ""},
			{"POST /login?Email=alice&Password=guess\n", "", passed, ""}, {"GET /login?Email=alice&Password=guess\n", "", passed, ""},
		}},
		{"JSON alone", onlyJSON, []row{
			{"POST /login?user=bob\n" + asJSON, `{"user": "alice"}`, "alice", ""}, {"POST /login?user=alice\n", "", passed, ""}, {"POST /login?next=user\n" + asForm, `{"user": "alice"}`, "alice", ""},
			{"POST /login\n" + asForm, guess, "400", ""},
		}},
		{"any page", everywhere, []row{
			{"POST /page\n" + asForm, "text=" + long + "&user=alice", "alice", ""}, {"POST /page\n" + asForm, "text=" + strings.Repeat("x", 2<<20), "413", ""}, {"POST /page\n" + asJSON, `{"x": "` + strings.Repeat("x", 2<<20) + `"}`, "413", ""},
			{"POST /page\n" + asText, "{\"x\": \"" + strings.Repeat("x", 2<<20) + "\"}", "413", ""}, {"POST /page\n" + asText, `{"x": NaN, "user": "alice"}`, "400", ""}, {"POST /page\n", strings.Repeat("[", 300), passed, strings.Repeat("[", 300)},
			{"POST /page\n" + asText, guess, passed, guess}, {"POST /page\n", guess, passed, guess}, {"POST /page\n", `{"x": "&user=alice&"}`, passed, `{"x":"\u0026user=alice\u0026"}`}, {"POST /page\n" + asText, long, passed, long},
			{"POST /page\n" + asForm, "users=x", passed, "users=x"}, {"POST /page?user=x&a=b\n" + asForm, "user[]=x", "400", ""}, {"POST /a;b\n" + asForm, guess, "alice", ""}, {"GET /page?user=alice\n" + creds, "", "alice", ""},
			{"POST /page\n" + creds + asForm, guess, "400", ""}, {"GET /wiki/C%23%20or%20What%3F%20now%20user\n", "", passed, ""}, {"GET /page%3Fa%3Bus%65r=x\n", "", "400", ""}, {"POST /page\nContent-Type: multipart/mixed; boundary=B\n", "--B--", "400", ""},
		}},
	} {
		for _, r := range c.rows {
			g, got := guardSeen(t, c.file)
			head, fields, _ := strings.Cut(r.head, "\n")
			if !strings.Contains(fields, "Transfer-Encoding") {
				fields += fmt.Sprintf("Content-Length: %d\n", len(r.body))
			}
			status := g.ask(t, strings.ReplaceAll(head+" HTTP/1.1\nHost: a\nCookie: user=bob\n"+fields+"\n", "\n", "\r\n")+r.body)
			becomes := strconv.Itoa(status)
			if status == http.StatusOK {
				becomes = passed
				server := <-got
				if c.file == everywhere || strings.Contains(head, " /login") {
					assert.NotContains(t, server.target+server.cookie, "user=", "%s: %.200q", c.what, r)
					assert.False(t, strings.HasPrefix(head, "POST") && strings.Contains(server.target, "Email="), "%.200q", r)
				} else if strings.Contains(head, " /page") {
					assert.Equal(t, "user=bob", server.cookie, "elsewhere it is passed on")
				}
				if r.sent != "" {
					assert.Equal(t, r.sent, server.body, "%s: %.200q", c.what, r)
				}
				assert.True(t, server.body == "" || server.kind != "", "in a body without a type some servers read a form")
			}
			select {
			case e := <-g.events:
				becomes = e.Name
				assert.NotEqual(t, login.Refused, e.Result)
			default:
				assert.Empty(t, got, "what is refused does not reach the server")
			}
			assert.Equal(t, r.want, becomes, "%s: %.200q", c.what, r)
		}
	}
}

// guessAt guesses alice's password with a form at a request target.
func (g *guarded) guessAt(t *testing.T, target, fields string) int {
	t.Helper()
	return g.ask(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n%s\r\n%s", target, len(guess), fields, guess))
}

func TestNoRequestTargetEvadesALogin(t *testing.T) {
	g, got := guardSeen(t, logins)
	for _, target := range []string{
		"http://a/login", "HTTP://a/login", "x:/login", "ftp://a/login", "http:/login", "x:login", "//login", "/LOGIN/;x", "/%256cogin", "/x#/../login", `/x\y/../login`, "/login/..;/..",
		"/login/x//../..", "//x/login", "/login.", "//login;a/%2e", "/login;a/..;/..", "/login%2500", "/log%C4%B1n", "/login%20", "/login/#x", "/x/..%2flogin", "/%25u006cogin", "/x%c0%af..%c0%aflogin",
	} {
		status := g.guessAt(t, target, "")
		if status == http.StatusBadRequest {
			assert.Empty(t, got)
			continue
		}
		<-got
		require.Len(t, g.events, 1, target)
		assert.Equal(t, "alice", (<-g.events).Name)
		require.NoError(t, g.guard.Lift(t.Context(), "alice", netip.MustParseAddr("127.0.0.1")))
	}
	for target, want := range map[string]int{"/login%00": 400, "/login%09": 400, "/a%00": 400, "/a": 200} {
		assert.Equal(t, want, g.guessAt(t, target, ""), target)
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

func TestBodiesWithoutANamePassWhereOtherPagesTakeThem(t *testing.T) {
	s := newSite(t)
	g := guardSite(t, s.URL, everywhere)
	large := strings.Repeat("0123456789", 100_000)
	for kind, body := range map[string]string{
		"application/x-www-form-urlencoded": "text=" + large, "text/plain": large, "application/json": "{}",
		inParts: "--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"g\"\r\n\r\n" + large + "\r\n--B--\r\n",
	} {
		answer := send(t, post(t, g.URL+"/page", kind, body), "203.0.113.7")
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		if _, boundary, found := strings.Cut(string(text), "boundary="); found { // a file
			boundary, _, _ = strings.Cut(boundary, "\r")
			text = []byte(strings.ReplaceAll(string(text), boundary, "B"))
		}
		assert.True(t, strings.HasPrefix(string(text), "POST /page "+body+"\n"), kind)
	}
	assert.Empty(t, g.results())
	answer := send(t, post(t, g.URL+"/login", inParts, fmt.Sprintf(part+part, "text", large, "user", "alice")+"--B--\r\n"), "203.0.113.7")
	assert.Equal(t, http.StatusBadRequest, answer.StatusCode, "a name far behind")
	assert.Zero(t, s.verified.Load(), "the server has not got the whole body")
	assert.Empty(t, g.results())
}

// In HTTP/2 a path may have blanks, which would end the request target in HTTP/1.1.
func TestABlankInTheQueryDoesNotReachTheServer(t *testing.T) {
	g, got := guardSeen(t, logins)
	for _, path := range []string{"/login", "/x"} {
		r := httptest.NewRequest("GET", path, nil)
		r.URL.RawQuery = "user=alice HTTP/1.1 17"
		w := httptest.NewRecorder()
		g.proxy.ServeHTTP(w, r)
		assert.Equal(t, http.StatusBadRequest, w.Code)
	}
	assert.Empty(t, got)
}
