package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A town is a running site with its operator's page. Visitors come through a
// proxy, so that a test can say from where.
type town struct {
	t              *testing.T
	site, operator *httptest.Server
	log            *bytes.Buffer
	post
}

// A post keeps the mails of a site, the last first.
type post struct {
	mu   sync.Mutex
	sent []mail
}

func (p *post) keep(m mail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append([]mail{m}, p.sent...)
}

func newTown(t *testing.T, limits *throttler.Throttler, https bool) *town {
	o := &options{https: https, key: []byte(rand.Text()), lift: "the operator's key", source: httpthrottle.Source{
		Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Header:  "X-Forwarded-For",
	}}
	written := new(bytes.Buffer)
	site := httptest.NewUnstartedServer(nil)
	o.url = "http://" + site.Listener.Addr().String()
	visitors, operators, m := pages(limits, o, log.New(written, "", 0))
	site.Config.Handler = visitors
	site.Start()
	town := &town{t: t, site: site, operator: httptest.NewServer(operators), log: written}
	m.send = town.keep
	t.Cleanup(town.site.Close)
	t.Cleanup(town.operator.Close)
	return town
}

func openTown(t *testing.T) *town { return newTown(t, throttler.New(memstore.New()), false) }

// A visitor is a browser with cookies, at an address.
type visitor struct {
	*http.Client
	town *town
	addr string
}

func (town *town) visitor(addr string) *visitor {
	jar, err := cookiejar.New(nil)
	require.NoError(town.t, err)
	client := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &visitor{client, town, addr}
}

// An answer is a response that was read.
type answer struct {
	*http.Response
	body string
}

func (v *visitor) do(method, url string, form url.Values, header ...string) answer {
	t := v.town.t
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	r.Header.Set("X-Forwarded-For", v.addr)
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := v.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return answer{response, string(body)}
}

func (v *visitor) get(path string) answer { return v.do("GET", v.town.site.URL+path, nil) }

func (v *visitor) logIn(name, password string) answer {
	return v.do("POST", v.town.site.URL+"/login", url.Values{"name": {name}, "password": {password}})
}

// block has v guess until it is blocked.
func (v *visitor) block(name string) answer {
	for range 5 {
		require.Equal(v.town.t, http.StatusForbidden, v.logIn(name, "wrong").StatusCode)
	}
	a := v.logIn(name, "wrong")
	require.Equal(v.town.t, http.StatusTooManyRequests, a.StatusCode)
	return a
}

func TestSignInAndOut(t *testing.T) {
	v := openTown(t).visitor("203.0.113.7")
	a := v.get("/")
	require.Equal(t, http.StatusSeeOther, a.StatusCode)
	require.Equal(t, "/login", a.Header.Get("Location"))
	a = v.get("/login")
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Contains(t, a.body, "<h1>Sign in</h1>")

	a = v.logIn(" ALICE", "correct horse")
	require.Equal(t, http.StatusSeeOther, a.StatusCode)
	require.Equal(t, "/", a.Header.Get("Location"))
	require.Contains(t, v.get("/").body, "Welcome, Alice")
	require.Equal(t, "/", v.get("/login").Header.Get("Location"), "who is in needs no form")

	a = v.do("POST", v.town.site.URL+"/logout", nil)
	require.Equal(t, "/login?bye", a.Header.Get("Location"))
	require.Contains(t, v.get("/login?bye").body, "You have signed out")
	require.Equal(t, "/login", v.get("/").Header.Get("Location"))
}

func TestWrongPasswordKeepsTheNameAndNothingElse(t *testing.T) {
	v := openTown(t).visitor("203.0.113.7")
	a := v.logIn(`al"ice<b>`, "my secret")
	require.Equal(t, http.StatusForbidden, a.StatusCode)
	require.Contains(t, a.body, `value="al&#34;ice&lt;b&gt;"`)
	require.NotContains(t, a.body, "my secret")
	require.Contains(t, a.body, "The name or the password is wrong.")
	require.Empty(t, a.Header.Get("Retry-After"))
}

// The account that is looked up by a padded name must not be found uncounted.
func TestPaddedNameIsAnsweredAsAWrongPassword(t *testing.T) {
	v := openTown(t).visitor("203.0.113.7")
	for range 20 {
		a := v.logIn(strings.Repeat(" ", 1024)+"alice", "correct horse")
		require.Equal(t, http.StatusForbidden, a.StatusCode)
		require.Contains(t, a.body, "The name or the password is wrong.")
	}
}

var figures = regexp.MustCompile(`[0-9]+`)

func TestSixthAttemptSaysWhenToComeBack(t *testing.T) {
	town := openTown(t)
	v := town.visitor("203.0.113.7")
	a := v.block("alice")
	require.Contains(t, []string{"599", "600"}, a.Header.Get("Retry-After"))
	require.Regexp(t, `data-seconds="(599|600)">(9 minutes 59 seconds|10 minutes)</span>`, a.body)
	require.Contains(t, a.body, `value="alice"`)
	require.Equal(t, http.StatusTooManyRequests, v.logIn("alice", "correct horse").StatusCode, "a right password, too")

	require.Equal(t, http.StatusSeeOther, town.visitor("198.51.100.9").logIn("alice", "correct horse").StatusCode)
	require.Equal(t, http.StatusSeeOther, v.logIn("bob", "battery staple").StatusCode)
}

func TestUnknownNamesAreAnsweredAlike(t *testing.T) {
	town := openTown(t)
	known, unknown := town.visitor("203.0.113.7"), town.visitor("203.0.113.8")
	for range 7 {
		a, b := known.logIn("alice", "wrong"), unknown.logIn("nobody", "wrong")
		require.Equal(t, a.StatusCode, b.StatusCode)
		like := func(a answer, name string) string {
			return figures.ReplaceAllString(strings.ReplaceAll(a.body, `value="`+name+`"`, ""), "")
		}
		require.Equal(t, like(a, "alice"), like(b, "nobody"))
	}
}

// What takes its time is the hash of what was typed: it is made whether there is
// such an account or not.
func TestUnknownNamesAreHashedForAsWell(t *testing.T) {
	a := demonstration()
	var hashed []string
	a.hash = func(password string, salt []byte) []byte {
		require.Len(t, salt, 16)
		hashed = append(hashed, password)
		return hash(password, salt)
	}
	for _, name := range []string{"alice", "nobody", ""} {
		_, ok, err := a.verify(t.Context(), name, "guess for "+name)
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.Equal(t, []string{"guess for alice", "guess for nobody", "guess for "}, hashed)
}

func TestNoMoreThanFourPasswordsAreHashedAtOnce(t *testing.T) {
	a := demonstration()
	for range maxHashing {
		a.hashing <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok, err := a.verify(ctx, "alice", "correct horse")
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, ok)
}

func TestParallelGuessesAreNotVerified(t *testing.T) {
	town := openTown(t)
	var verified atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			form := strings.NewReader(url.Values{"name": {"alice"}, "password": {"wrong"}}.Encode())
			response, err := http.Post(town.site.URL+"/login", "application/x-www-form-urlencoded", form)
			if assert.NoError(t, err) {
				response.Body.Close()
				if response.StatusCode != http.StatusTooManyRequests {
					verified.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, verified.Load(), int64(5))
	require.Positive(t, verified.Load())
}

func TestSessionIsNewAtEachLogin(t *testing.T) {
	town := openTown(t)
	v := town.visitor("203.0.113.7")
	site, err := url.Parse(town.site.URL)
	require.NoError(t, err)
	v.Jar.SetCookies(site, []*http.Cookie{{Name: "session", Value: "of-the-attacker", Path: "/"}})
	session := func() string {
		for _, c := range v.Jar.Cookies(site) {
			if c.Name == "session" {
				return c.Value
			}
		}
		return ""
	}
	v.logIn("alice", "correct horse")
	first := session()
	require.Len(t, first, 26)
	v.logIn("alice", "correct horse")
	require.NotEqual(t, first, session())

	other := town.visitor("203.0.113.8")
	other.Jar.SetCookies(site, []*http.Cookie{{Name: "session", Value: first, Path: "/"}})
	require.Equal(t, "/login", other.get("/").Header.Get("Location"), "the old one has ended")
}

func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sessions{memstore.New()}
		token := s.start("Alice")
		time.Sleep(sessionLength - 1)
		name, ok := s.name(token)
		require.True(t, ok)
		require.Equal(t, "Alice", name)
		time.Sleep(time.Nanosecond)
		_, ok = s.name(token)
		require.False(t, ok)
	})
}

func TestCookiesAreProtected(t *testing.T) {
	for _, https := range []bool{false, true} {
		v := newTown(t, throttler.New(memstore.New()), https).visitor("203.0.113.7")
		cookies := v.logIn("alice", "correct horse").Cookies()
		require.Len(t, cookies, 2)
		for _, c := range cookies {
			require.True(t, c.HttpOnly)
			require.Equal(t, http.SameSiteLaxMode, c.SameSite)
			require.Equal(t, https, c.Secure)
			require.Equal(t, https, strings.HasPrefix(c.Name, "__Host-"))
			require.Equal(t, "/", c.Path)
			require.Empty(t, c.Domain)
		}
		require.Equal(t, https, v.get("/login").Header.Get("Strict-Transport-Security") != "")
	}
}

func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	town := openTown(t)
	v := town.visitor("203.0.113.7")
	v.block("alice")
	form := url.Values{"name": {"bob"}, "password": {"battery staple"}}
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
		require.Equal(t, http.StatusForbidden, v.do("POST", town.site.URL+"/login", form, header...).StatusCode)
		require.Equal(t, http.StatusForbidden, v.do("POST", town.site.URL+"/logout", nil, header...).StatusCode)
		require.Equal(t, http.StatusForbidden, v.do("POST", town.bans()[0], url.Values{"key": {"the operator's key"}}, header...).StatusCode)
		require.Equal(t, http.StatusForbidden, v.do("POST", town.operator.URL+"/forget", url.Values{"name": {"alice"}}, header...).StatusCode)
	}
	require.Equal(t, http.StatusTooManyRequests, v.logIn("alice", "correct horse").StatusCode)
	require.Equal(t, http.StatusSeeOther, v.do("POST", town.site.URL+"/login", form, "Sec-Fetch-Site", "same-origin").StatusCode)
}

func TestPagesAreLockedDown(t *testing.T) {
	town := openTown(t)
	v := town.visitor("203.0.113.7")
	for _, a := range []answer{v.get("/login"), v.logIn("alice", "wrong"), v.get("/static/login.js")} {
		policy := a.Header.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'")
		require.Contains(t, policy, "frame-ancestors 'none'")
		require.NotContains(t, policy, "unsafe")
		require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
		require.NotRegexp(t, `(?i)<style|style=|\son[a-z]+=|<script>`, a.body, "nothing that the policy would stop")
	}
	require.Contains(t, v.get("/static/login.js").Header.Get("Content-Type"), "javascript")
	require.Equal(t, http.StatusNotFound, v.get("/static/").StatusCode)
	require.Equal(t, http.StatusMethodNotAllowed, v.do("PUT", town.site.URL+"/login", nil).StatusCode)
}

func TestFormsHaveLabels(t *testing.T) {
	v := openTown(t).visitor("203.0.113.7")
	for _, a := range []answer{v.get("/login"), v.logIn("alice", "wrong"), v.block("bob")} {
		for _, input := range regexp.MustCompile(`<input id="([a-z]+)"`).FindAllStringSubmatch(a.body, -1) {
			require.Contains(t, a.body, `<label for="`+input[1]+`">`)
		}
		require.Contains(t, a.body, `<html lang="en">`)
		for _, described := range regexp.MustCompile(`aria-describedby="([a-z]+)"`).FindAllStringSubmatch(a.body, -1) {
			require.Contains(t, a.body, `id="`+described[1]+`"`)
		}
	}
}

func TestTooLargeFormIsRefusedUncounted(t *testing.T) {
	v := openTown(t).visitor("203.0.113.7")
	for range 9 {
		require.Equal(t, http.StatusBadRequest, v.logIn("alice", strings.Repeat("x", maxForm)).StatusCode)
	}
	require.Equal(t, http.StatusSeeOther, v.logIn("alice", "correct horse").StatusCode)
}

// bans returns the pages that lift the bans that the operator sees.
func (town *town) bans() (pages []string) {
	page := town.visitor("").do("GET", town.operator.URL+"/", nil).body
	for _, link := range regexp.MustCompile(`href="(\?lift=[^"]+)"`).FindAllStringSubmatch(page, -1) {
		pages = append(pages, town.operator.URL+"/"+html.UnescapeString(link[1]))
	}
	return pages
}

// What is counted beside the ban would ban the next attempts again.
func TestTheOperatorLiftsABan(t *testing.T) {
	town := openTown(t)
	for i := range 51 {
		town.visitor("203.0.113.7").logIn(fmt.Sprint("victim", i), "wrong")
	}
	require.Equal(t, http.StatusTooManyRequests, town.visitor("203.0.113.7").logIn("alice", "correct horse").StatusCode)
	bans, operator := town.bans(), town.visitor("")
	require.Len(t, bans, 1)
	require.Equal(t, http.StatusForbidden, operator.do("POST", bans[0], url.Values{"key": {"another"}}).StatusCode)
	require.Equal(t, http.StatusSeeOther, operator.do("POST", bans[0], url.Values{"key": {"the operator's key"}}).StatusCode)
	require.Empty(t, town.bans())
	for range 60 {
		require.Equal(t, http.StatusSeeOther, town.visitor("203.0.113.7").logIn("alice", "correct horse").StatusCode)
	}
	require.Contains(t, operator.do("GET", town.operator.URL, nil).body, "Most failed: names")
}

func TestTheOperatorForgetsWhatANameHasFailed(t *testing.T) {
	town := openTown(t)
	v, operator := town.visitor("203.0.113.7"), town.visitor("")
	v.block("alice")
	forget := func(name, addr string) int {
		return operator.do("POST", town.operator.URL+"/forget", url.Values{"name": {name}, "address": {addr}}).StatusCode
	}
	require.Equal(t, http.StatusBadRequest, forget("alice", "nonsense"))
	require.Equal(t, http.StatusOK, forget("nobody", "198.51.100.1"))
	require.Equal(t, http.StatusTooManyRequests, v.logIn("alice", "correct horse").StatusCode)
	require.Equal(t, http.StatusOK, forget("Alice", "203.0.113.7"))
	require.Equal(t, http.StatusSeeOther, v.logIn("alice", "correct horse").StatusCode)
}

// A page of another site whose name is made to point to this machine.
func TestOperatorsPageAnswersToThisMachineAlone(t *testing.T) {
	town := openTown(t)
	for host, want := range map[string]int{
		"127.0.0.1:8081": 200, "localhost": 200, "[::1]:8081": 200,
		"evil.example:8081": 403, "10.0.0.1": 403, "": 403,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		town.operator.Config.Handler.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, host)
	}
}

func TestSitesShareTheirCountsInMemcached(t *testing.T) {
	server := servertest.NewMemcached(t)
	sitesShareTheirCounts(t, server.Kill, "-memcached", server.Addr)
}

func TestSitesShareTheirCountsInRedis(t *testing.T) {
	server := servertest.NewRedis(t)
	sitesShareTheirCounts(t, server.Kill, "-redis", "redis://"+server.Addr)
}

// sitesShareTheirCounts opens two sites with the same flags, and kills their server.
func sitesShareTheirCounts(t *testing.T, kill func(), args ...string) {
	open := func() *town {
		o, err := parse(args, io.Discard)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, o.close()) })
		return newTown(t, o.limits(), false)
	}
	one, other := open(), open()
	guesses := 0
	for guesser := one.visitor("203.0.113.7"); guesser.logIn("alice", "wrong").StatusCode != http.StatusTooManyRequests; guesses++ {
		require.Less(t, guesses, 10, "on a busy machine the fallback may count some")
	}
	v := other.visitor("203.0.113.7")
	require.Equal(t, http.StatusTooManyRequests, v.logIn("alice", "correct horse").StatusCode)

	other.visitor("").do("POST", other.operator.URL+"/forget", url.Values{"name": {"alice"}, "address": {"203.0.113.7"}})
	require.Equal(t, http.StatusSeeOther, v.logIn("alice", "correct horse").StatusCode)

	kill()
	one.visitor("198.51.100.9").block("bob") // by the fallback
	require.NotEmpty(t, one.log.String())
}

func TestWaitInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                    "1 second",
		time.Millisecond:                     "1 second",
		59*time.Second + time.Millisecond:    "1 minute",
		10*time.Minute + 50*time.Microsecond: "10 minutes",
		61 * time.Second:                     "1 minute 1 second",
		2*time.Hour + 5*time.Second:          "2 hours 5 seconds",
		time.Hour + 2*time.Minute + 3e9:      "1 hour 2 minutes 3 seconds",
	} {
		require.Equal(t, want, wait(d))
	}
}

func TestFlags(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-listen 0.0.0.0:80", "-listen is 0.0.0.0:80"},
		{"-listen :80", "-listen is :80"},
		{"-https -operator 10.0.0.1:81", "-operator is 10.0.0.1:81"},
		{"-proxy 10.0.0.0", "invalid value"},
		{"-memcached nowhere", "missing port"},
		{"-redis redis://%zz", "-redis: "},
		{"-redis redis://127.0.0.1:1 -memcached 127.0.0.1:1", "want one of them"},
		{"extra", `unexpected argument "extra"`},
		{"-nonsense", "not defined"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), io.Discard, &stderr, strings.Fields(test.args)...), test.args)
		require.Contains(t, stderr.String(), test.want)
	}
	o, err := parse(strings.Fields("-https -listen :80 -proxy 10.0.0.0/8"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, o.source.Trusted)
	require.Equal(t, 0, run(t.Context(), io.Discard, io.Discard, "-h"))
}

func TestProgramRunsUntilItIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	stdout, write := io.Pipe()
	status := make(chan int)
	go func() { status <- run(ctx, write, io.Discard, "-listen", "127.0.0.1:0", "-operator", "127.0.0.1:0") }()
	line := make([]byte, 200)
	n, err := stdout.Read(line)
	require.NoError(t, err)
	addresses := regexp.MustCompile(`http://\S+/`).FindAllString(string(line[:n]), -1)
	require.Len(t, addresses, 2)
	for _, address := range addresses {
		response, err := http.Get(address)
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	interrupt()
	require.Equal(t, 0, <-status)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	require.Equal(t, 1, run(t.Context(), io.Discard, io.Discard, "-listen", taken.Addr().String()))
	require.Equal(t, 1, run(t.Context(), io.Discard, io.Discard, "-listen", "127.0.0.1:0", "-operator", taken.Addr().String()))
	require.Equal(t, 2, run(t.Context(), io.Discard, io.Discard, "-memcached", "nowhere.invalid:1"))
}
