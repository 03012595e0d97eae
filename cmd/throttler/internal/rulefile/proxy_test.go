package rulefile_test

import (
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// proxyOf parses a file of testdata.
func proxyOf(t *testing.T, name string) *rulefile.Proxy {
	t.Helper()
	source, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	file, err := rulefile.Parse(name, source)
	require.NoError(t, err)
	require.NotNil(t, file.Proxy)
	return file.Proxy
}

func TestAProxyIsRead(t *testing.T) {
	p := proxyOf(t, "proxy.yaml")
	assert.Equal(t, "http://127.0.0.1:8000", p.Server.String())
	assert.Equal(t, 15*time.Second, p.Timeout)
	logins := p.Logins(&rulefile.Request{Host: "example.org", Target: "/login;x"})
	require.Len(t, logins, 2)
	form, basic := logins[0], logins[1]
	body, err := form.Finder.Read("application/json", []byte(`{"user": {"name": "alice"}}`), false)
	require.NoError(t, err)
	assert.Equal(t, "alice", body.Name)
	assert.True(t, form.Basic && form.Pass && basic.Basic)
	assert.True(t, !basic.Pass && basic.Finder == nil)
	assert.True(t, form.Names.MatchString("abc"))
	assert.False(t, form.Names.MatchString("abc1") || form.Names.MatchString("1abc"))

	file, err := rulefile.Parse("x", []byte(`proxy: {server: "https://a:1", logins: [{for: {path: [/a]}, name: {form: a}, right: {status: [200]}}]}`))
	require.NoError(t, err)
	assert.Equal(t, 20*time.Second, file.Proxy.Timeout)
}

func TestNoSpellingOfAPathEvadesALogin(t *testing.T) {
	p := proxyOf(t, "proxy.yaml")
	all := p.Logins(&rulefile.Request{Host: "example.org", Target: "/login;x"})
	for host, want := range map[string][]*rulefile.Login{"Example.org:80": all[:1], "example.com": all[1:], "": all[1:]} {
		for _, target := range []string{"/login", "/LOGIN", "/login/", "/%6cogin", "/%4Cogin", "/login?x", "/log%C4%B1n", "/api/v1/session"} {
			assert.Equal(t, want, p.Logins(&rulefile.Request{Host: host, Target: target}), target)
		}
		for _, target := range []string{"/", "/logins", "/login/x", "/api/session", "/x/login", "/a%20b", "/10%25", "/%C3%A9", "/x%23", "/a%2Fb;c//d/..", "/log;/in"} {
			assert.Equal(t, all[1:], p.Logins(&rulefile.Request{Host: host, Target: target}), target)
		}
	}
	for _, target := range []string{
		"//login", "/login;x", "/;x/login", "/%256cogin", "/%254Cogin", "/x/../login", "/x/..%2flogin", `/x\..\login`, "/x%5C..%5clogin", "/%255Clogin", "/login%3fx", "/./login",
		"http://example.org/login", `/x\y/../login`, "/login/..;/..", "/login/x//../..", "/x%23/../login", "/login%2500", "/login%00x", "//login;a/%2e", "//x/login", "/login.",
		"/login%20", "/x%255c..%5clogin;b", "/%25u006cogin", "/x%c0%af..%c0%aflogin", "/api%2Fv1/session", "/api/;/session", "/login#x", "/login%23x",
	} {
		assert.Equal(t, all, p.Logins(&rulefile.Request{Host: "example.org", Target: target}), target)
		assert.Equal(t, all[1:], p.Logins(&rulefile.Request{Host: "example.com", Target: target}), target)
	}
}

func TestALoginMayBeThatOfAnyHost(t *testing.T) {
	p := proxyOf(t, "proxy.yaml")
	all := p.Logins(&rulefile.Request{Host: "example.org", Target: "/login;x"})
	for _, c := range []struct {
		host  string
		hosts []string
		want  []*rulefile.Login
	}{
		{"example.org:1:2", nil, all[:1]},
		{"example.org", []string{" Example.org:80", ""}, all[:1]},
		{"a", []string{"example.org"}, all},
		{"example.org", []string{"a"}, all},
		{"a", []string{"b"}, all[1:]},
	} {
		assert.Equal(t, c.want, p.Logins(&rulefile.Request{Host: c.host, Hosts: c.hosts, Target: "/login"}), c)
	}
	file, err := rulefile.Parse("x", []byte(`proxy: {server: "https://a:1", logins: [{for: {path: [/a]}, name: {form: a}, right: {status: [200]}}]}`))
	require.NoError(t, err)
	assert.Empty(t, file.Proxy.Logins(&rulefile.Request{Host: "a", Target: "/x"}))
}

// BenchmarkPaths compares paths with those of a rule, and of a login.
func BenchmarkPaths(b *testing.B) {
	source := `{proxy: {server: "http://a", logins: [{for: {path: [/login]}, name: {form: a}, right: {status: [302]}}]},
		rules: [{name: a, for: {path: [/login]}, either: [{name: b, value: x, max: 1, per: 1m}]}]}`
	file, err := rulefile.Parse("x", []byte(source))
	require.NoError(b, err)
	for name, target := range map[string]string{"plain": "/users/17/orders", "encoded": "/users/a%20b/orders", "worst": strings.Repeat(`/%252f/..;a\%2f%253f%2509b`, 8<<10/26)} {
		b.Run("of=rule/path="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				file.For(&rulefile.Request{Target: target})
			}
		})
		b.Run("of=login/path="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				file.Proxy.Logins(&rulefile.Request{Target: target})
			}
		})
	}
}

func TestAnAnswerIsRightOrWrong(t *testing.T) {
	logins := proxyOf(t, "proxy.yaml").Logins(&rulefile.Request{Host: "example.org", Target: "/login;x"})
	for _, c := range []struct {
		status           int
		location, cookie string
		want             rulefile.Verdict
	}{
		{302, "/home", "session=a", rulefile.Right},
		{303, "https://example.org/x/../home?a#b", "session=a; Max-Age=60", rulefile.Right},
		{302, "/start?first=1", "DWab=a; Expires=Fri, 31 Dec 9999 23:59:59 GMT", rulefile.Right},
		{302, "home", "session=a", rulefile.Right}, // from /login
		{302, "/start?first=2", "session=a", rulefile.Neither},
		{302, "/start", "session=a", rulefile.Neither},
		{302, "/home", "", rulefile.Neither},
		{302, "/home", "session=", rulefile.Neither},
		{302, "/home", "session=a; Max-Age=0", rulefile.Neither},
		{302, "/home", "session=deleted; Expires=Thu, 01 Jan 1970 00:00:00 GMT", rulefile.Neither},
		{302, "/home", "sessions=a", rulefile.Neither},
		{302, "", "session=a", rulefile.Neither},
		{302, "/login?error", "session=a", rulefile.Wrong},
		{200, "/login?error=1&x", "", rulefile.Wrong},
		{302, "/login?errors", "", rulefile.Neither},
		{403, "/login?error", "", rulefile.Neither},
		{500, "", "", rulefile.Neither},
	} {
		assert.Equal(t, c.want, logins[0].Verdict(answer(c.status, c.location, c.cookie)), "%+v", c)
	}
	for status, want := range map[int]rulefile.Verdict{207: rulefile.Right, 200: rulefile.Wrong, 401: rulefile.Wrong, 499: rulefile.Wrong, 500: rulefile.Neither, 503: rulefile.Neither} {
		assert.Equal(t, want, logins[1].Verdict(answer(status, "", "")), "%d, only right is told", status)
	}
}

// answer is one to a request for /login.
func answer(status int, location, cookie string) *http.Response {
	a := &http.Response{StatusCode: status, Header: http.Header{}, Request: &http.Request{URL: &url.URL{Scheme: "http", Host: "example.org", Path: "/login"}}}
	if location != "" {
		a.Header.Set("Location", location)
	}
	if cookie != "" {
		a.Header.Set("Set-Cookie", cookie)
	}
	return a
}

func TestCheckWarnsOfWhatTellsNothingOfAPassword(t *testing.T) {
	for login, want := range map[string]string{
		`name: {form: a}, right: {location: [/]}`:                             "send back",
		`name: {form: a}, right: {status: [302], location: [/]}`:              "send back",
		`name: {form: a}, right: {location: [/], cookie: [a]}`:                "",
		`name: {form: a}, right: {status: [204]}`:                             "",
		`name: {form: a}, right: {cookie: [a]}, wrong: {status: [200]}`:       "leave wrong out",
		`name: {basic: true}, right: {status: [200, 404]}`:                    "may answer 404",
		`name: {basic: true}, right: {status: [302], cookie: [a]}`:            "",
		`name: {basic: true}, right: {status: [207]}, wrong: {status: [401]}`: "",
		`name: {form: a}, right: {status: [200]}`:                             "without matches",
		`name: {basic: true}, right: {status: [200]}`:                         "without matches",
	} {
		if !strings.Contains(want, "matches") {
			login = strings.Replace(login, "}", `, matches: "[a-z]+"}`, 1)
		}
		file, err := rulefile.Parse("x", []byte(`{proxy: {server: "http://a", logins: [{for: {path: [/a]}, `+login+`}]}}`))
		require.NoError(t, err)
		if want == "" {
			assert.Empty(t, file.Warnings, login)
		} else if assert.Len(t, file.Warnings, 1, login) {
			assert.Contains(t, file.Warnings[0].Message, want)
		}
	}
}
