package serve_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has the proxy that guards logins, before real programs.

// ofPage is the rule file of a page of the manual that guards a program, at another address.
func ofPage(t *testing.T, program, server string) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/login-proxy.md")
	require.NoError(t, err)
	for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.HasPrefix(block, "# "+program) {
			changed := strings.Replace(block, "http://127.0.0.1:8000", "http://"+server, 1)
			require.NotEqual(t, block, changed)
			return changed
		}
	}
	require.Fail(t, "the manual has no rule file for "+program)
	return ""
}

// needs skips a test for want of a file of a package, and fails it in CI.
func needs(t *testing.T, file, name string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		skiptest.Missing(t, fmt.Sprintf("%s is not installed: apt-get install %s", name, name))
	}
}

// radicale starts radicale, with alice whose password is "right".
func radicale(t *testing.T) string {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users"), []byte("alice:right\nbob:right\n"), 0o600))
	config := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`[server]
hosts = %s
max_connections = 0
[auth]
type = htpasswd
htpasswd_filename = %s/users
htpasswd_encryption = plain
delay = 0
[rights]
type = owner_only
[storage]
filesystem_folder = %s/collections
`, address, dir, dir)), 0o600))
	run(t, address, "radicale", "--config", config)
	return address
}

// dokuwiki starts DokuWiki in the web server of PHP, with alice whose password is "right".
func dokuwiki(t *testing.T) string {
	t.Helper()
	const program = "/usr/share/dokuwiki"
	needs(t, program+"/doku.php", "dokuwiki")
	dir, address := t.TempDir(), freeAddress(t)
	for _, name := range []string{"pages", "attic", "media", "media_attic", "media_meta", "meta", "cache", "index", "locks", "tmp", "log"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "data", name), 0o700))
	}
	for name, text := range map[string]string{
		"begin.php":      "<?php define('DOKU_CONF', '" + dir + "/');",
		"local.php":      "<?php $conf['useacl'] = 1; $conf['savedir'] = '" + dir + "/data';",
		"acl.auth.php":   "* @ALL 1\n",
		"users.auth.php": "alice:$1$abcdefgh$vdBSIIpG7R8DPkuUogsqU0:Alice:alice@example.org:user\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Setenv("PHP_CLI_SERVER_WORKERS", "4")
	run(t, address, "php", "-d", "auto_prepend_file="+dir+"/begin.php", "-d", "session.save_path="+dir+"/data/tmp", "-S", address, "-t", program)
	return address
}

// A program is one whose logins are guarded.
type program struct {
	start func(t *testing.T) string
	// login logs in at a site. A refusal is 429.
	login func(t *testing.T, site, name, password string) *http.Request
	// right reports whether an answer is one to a right password, and wrong to a wrong one.
	right, wrong func(*http.Response) bool
}

var guardedPrograms = map[string]program{
	"radicale": {
		start: radicale,
		login: func(t *testing.T, site, name, password string) *http.Request {
			r := asking(t, "PROPFIND", site+"/"+name+"/", "")
			r.SetBasicAuth(name, password)
			return r
		},
		right: func(a *http.Response) bool { return a.StatusCode == http.StatusMultiStatus },
		wrong: func(a *http.Response) bool { return a.StatusCode == http.StatusUnauthorized },
	},
	"dokuwiki": {
		start: dokuwiki,
		login: func(t *testing.T, site, name, password string) *http.Request {
			r := asking(t, "POST", site+"/doku.php", url.Values{"do": {"login"}, "id": {"start"}, "u": {name}, "p": {password}}.Encode())
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			return r
		},
		right: func(a *http.Response) bool { return a.StatusCode == http.StatusFound },
		wrong: func(a *http.Response) bool { return a.StatusCode == http.StatusForbidden },
	},
}

// asking is a request.
func asking(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

// from sends a request from an address, and follows no redirect.
func from(t *testing.T, address string, r *http.Request) *http.Response {
	t.Helper()
	r.Header.Set("X-Forwarded-For", address)
	answer, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
	if !assert.NoError(t, err) {
		return &http.Response{}
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	return answer
}

func TestLoginsOfRealProgramsAreGuarded(t *testing.T) {
	for name, p := range guardedPrograms {
		t.Run(name, func(t *testing.T) {
			s := start(t, ofPage(t, name, p.start(t)))
			site := "http://" + s.proxy
			login := func(password, address string) *http.Response {
				return from(t, address, p.login(t, site, "alice", password))
			}
			require.True(t, p.right(login("right", "203.0.113.9")), "the owner, at home")

			guess := func(n int, address func(i int) string) (verified int64) {
				var count atomic.Int64
				var running sync.WaitGroup
				for i := range n {
					running.Go(func() {
						answer := login(fmt.Sprint("guess", i), address(i))
						if p.wrong(answer) {
							count.Add(1)
						} else {
							assert.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
						}
					})
				}
				running.Wait()
				return count.Load()
			}
			assert.EqualValues(t, 5, guess(60, func(int) string { return "203.0.113.7" }), "from one address")
			assert.EqualValues(t, 24-5, guess(100, func(i int) string { return fmt.Sprintf("198.51.100.%d", i) }), "from many")
			assert.Equal(t, http.StatusTooManyRequests, login("right", "192.0.2.1").StatusCode, "a stranger with the right password")
			assert.True(t, p.right(login("right", "203.0.113.9")), "the owner, at home")
		})
	}
}

func TestNoPageOfRadicalePassesForARightPassword(t *testing.T) {
	s := start(t, ofPage(t, "radicale", radicale(t)))
	guess := func(method, path, password string) int {
		r := asking(t, method, "http://"+s.proxy+path, "")
		r.SetBasicAuth("alice", password)
		return from(t, "203.0.113.7", r).StatusCode
	}
	verified := 0
	for i := range 10 {
		for _, path := range []string{"/.well-known/x", "/.well-known/caldav", "/.web/", "/"} {
			guess("GET", path, fmt.Sprint(i)) // some of these Radicale answers without a look at the password
		}
		if guess("PROPFIND", "/alice/", fmt.Sprint(i)) == http.StatusUnauthorized {
			verified++
		}
	}
	assert.LessOrEqual(t, verified, 5)
}

func TestEveryWayInToDokuWikiIsGuarded(t *testing.T) {
	wiki := dokuwiki(t)
	const form = "application/x-www-form-urlencoded"
	ways := map[string]func(site, password string) *http.Request{
		"a query": func(site, password string) *http.Request {
			return asking(t, "GET", site+"/doku.php?u=alice&p="+password, "")
		},
		"any page": func(site, password string) *http.Request {
			r := asking(t, "POST", site+"/lib/exe/ajax.php/x", "u=alice&p="+password)
			r.Header.Set("Content-Type", form)
			return r
		},
		"Basic": func(site, password string) *http.Request {
			r := asking(t, "GET", site+"/doku.php", "")
			r.SetBasicAuth("alice", password)
			return r
		},
		"parts": func(site, password string) *http.Request {
			r := asking(t, "POST", site+"/doku.php", "--B\r\nContent-Disposition: form-data; name=\"u\"\r\n\r\nalice\r\n--B\r\nContent-Disposition: form-data; name=\"p\"\r\n\r\n"+password+"\r\n--B--\r\n")
			r.Header.Set("Content-Type", "multipart/form-data; boundary=B")
			return r
		},
	}
	for name, way := range ways {
		s := start(t, ofPage(t, "dokuwiki", wiki))
		refused := 0
		for i := range 20 {
			if from(t, "203.0.113.7", way("http://"+s.proxy, fmt.Sprint(i))).StatusCode == http.StatusTooManyRequests {
				refused++
			}
		}
		answer := from(t, "203.0.113.8", way("http://"+s.proxy, "right"))
		cookies := fmt.Sprint(answer.Cookies())
		if name == "a query" { // which has no name then
			assert.Zero(t, refused)
			assert.NotRegexp(t, "DW[0-9a-f]{32}=[^d]", cookies)
			continue
		}
		assert.Equal(t, 15, refused, name)
		assert.Equal(t, name != "Basic", strings.Contains(cookies, "__Host-throttler-"), "%s: a right password is noticed", name)
	}
	s := start(t, ofPage(t, "dokuwiki", wiki))
	for _, body := range []string{"u=alice%21&p=right", "u=ALICE_&p=right", "u=x&u=alice&p=right", "u[]=x&u=alice&p=right", "u%00x=alice&p=right", "U=x&u=alice&p=right"} {
		r := asking(t, "POST", "http://"+s.proxy+"/doku.php", body)
		r.Header.Set("Content-Type", form)
		assert.Contains(t, []int{http.StatusBadRequest, http.StatusForbidden}, from(t, "203.0.113.7", r).StatusCode, body)
	}
	assert.Equal(t, http.StatusOK, from(t, "203.0.113.7", asking(t, "GET", "http://"+s.proxy+"/doku.php?id=start", "")).StatusCode, "who does not log in")
}

// guardedForm is a rule file without rules.
const guardedForm = `
proxy:
  server: http://%s
  logins:
    - for: {path: [/login]}
      name: {form: user}
      right: {status: [303]}
`

func TestTheProxySpeaksHTTP2OverTLS(t *testing.T) {
	cert, key := new(authority).sign(t, "proxy")
	s := startWith(t, fmt.Sprintf(guardedForm, application(t)), func(o *serve.Options) { o.Proxy.Cert, o.Proxy.CertKey = cert, key })
	roots := x509.NewCertPool()
	text, err := os.ReadFile(cert)
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(text))
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Post("https://"+s.proxy+"/page", "text/plain", strings.NewReader("body"))
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	answer.Body.Close()
	assert.Equal(t, 2, answer.ProtoMajor)
	assert.Equal(t, "POST /page body", string(body))
}

func TestThereIsNoProxyWithoutOneInTheRuleFile(t *testing.T) {
	assert.Empty(t, start(t, limits).proxy)
	s := startWith(t, fmt.Sprintf(guardedForm, "127.0.0.1:1"), func(o *serve.Options) { o.Proxy.Listen = "" })
	assert.Empty(t, s.proxy)
	err := serve.Run(context.Background(), serve.Options{Rules: "/nonexistent"})
	assert.Error(t, err)
}
