package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A street is a site without a network, so that its time can be held.
type street struct {
	t    *testing.T
	site http.Handler
}

func newStreet(t *testing.T) street {
	o := &options{source: httpthrottle.Source{
		Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Header:  "X-Forwarded-For",
	}}
	visitors, _ := pages(throttler.New(memstore.New()), o, log.New(new(bytes.Buffer), "", 0))
	return street{t, visitors}
}

// A walker has a browser's cookies, and an address.
type walker struct {
	street
	addr    string
	cookies map[string]string
}

func (s street) walker(addr string) *walker { return &walker{s, addr, map[string]string{}} }

// reads returns a walker at addr who has read the device cookie of w.
func (w *walker) reads(addr string) *walker {
	other := w.walker(addr)
	other.cookies[deviceCookie] = w.cookies[deviceCookie]
	return other
}

func (w *walker) posts(path string, form url.Values) *http.Response {
	r := httptest.NewRequestWithContext(w.t.Context(), "POST", path, strings.NewReader(form.Encode()))
	r.RemoteAddr = "127.0.0.1:1234"
	r.Header.Set("X-Forwarded-For", w.addr)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for name, value := range w.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	recorder := httptest.NewRecorder()
	w.site.ServeHTTP(recorder, r)
	answer := recorder.Result()
	for _, c := range answer.Cookies() {
		w.cookies[c.Name] = c.Value
	}
	return answer
}

// logIn returns the status: 303 right, 403 wrong, 429 not looked at.
func (w *walker) logIn(name, password string) int {
	return w.posts("/login", url.Values{"name": {name}, "password": {password}}).StatusCode
}

// siege has strangers use up what they have of name.
func (s street) siege(name string) {
	for i := range 30 {
		s.walker(fmt.Sprintf("10.0.0.%d", i)).logIn(name, "wrong")
	}
	require.Equal(s.t, 429, s.walker("10.0.1.1").logIn(name, "wrong"))
}

const library = "203.0.113.7" // the address of a shared computer

func TestReaderOfTheCookieIsAStrangerAfterTheNextLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		shared := street.walker(library)
		require.Equal(t, 303, shared.logIn("alice", "correct horse"))
		require.Equal(t, 303, shared.logIn("bob", "battery staple"))
		reader := shared.reads("198.51.100.9")
		require.Equal(t, 303, shared.logIn(" ALICE", "correct horse"), "another spelling of the same account")
		time.Sleep(31 * time.Second)

		street.siege("alice")
		require.Equal(t, 429, reader.logIn("alice", "correct horse"))
		elsewhere := shared.reads("198.51.100.10")
		require.Equal(t, 303, elsewhere.logIn("Alice", "correct horse"))
		street.siege("bob")
		require.Equal(t, 303, elsewhere.logIn("bob", "battery staple"), "who has not logged in since")
	})
}

func TestReaderOfTheCookieMakesStrangersOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		shared := street.walker(library)
		require.Equal(t, 303, shared.logIn("alice", "correct horse"))
		reader := shared.reads("198.51.100.9")
		require.Equal(t, "/login", reader.posts("/forget", nil).Header.Get("Location"), "it takes a session")
		require.Equal(t, 303, reader.logIn("bob", "battery staple"), "an account of their own")
		require.Equal(t, "/login?forgotten", reader.posts("/forget", nil).Header.Get("Location"))
		time.Sleep(time.Minute)
		street.siege("alice")
		require.Equal(t, 303, shared.reads("198.51.100.10").logIn("alice", "correct horse"))
	})
}

func TestForgottenBrowserStaysKnownToTheOthersWhoUseIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		shared := street.walker(library)
		require.Equal(t, 303, shared.logIn("bob", "battery staple"))
		require.Equal(t, 303, shared.logIn("alice", "correct horse"))
		before := shared.reads("198.51.100.9")
		require.Equal(t, "/login?forgotten", shared.posts("/forget", nil).Header.Get("Location"))
		require.Empty(t, shared.cookies[sessionCookie])
		street.siege("alice")
		street.siege("bob")
		require.Equal(t, 429, before.logIn("alice", "correct horse"))
		require.Equal(t, 429, shared.reads("198.51.100.10").logIn("alice", "correct horse"))
		require.Equal(t, 303, shared.reads("198.51.100.11").logIn("bob", "battery staple"))
	})
}

func TestDevicesSurviveTheCookie(t *testing.T) {
	d := parseDevices("")
	require.Equal(t, d.browser, d.of("alice"))
	alice, bob := rand.Text(), rand.Text()
	d = d.with("alice", rand.Text()).with("bob", bob).with("alice", alice)
	d = parseDevices(d.String())
	require.Equal(t, alice, d.of("alice"))
	require.Equal(t, bob, d.of("bob"))
	require.Equal(t, d.browser, d.of("carol"))
	require.Equal(t, d.browser, d.without("alice").of("alice"))
	require.Equal(t, bob, d.without("alice").of("bob"))
	require.NotEqual(t, d.tag("alice"), parseDevices("").tag("alice"), "another browser's")
	require.NotContains(t, d.String(), "alice")

	for i := range 2 * maxOwned {
		d = d.with(fmt.Sprint("user", i), rand.Text())
	}
	require.Len(t, d.owned, maxOwned)
	require.NotEqual(t, d.browser, d.of(fmt.Sprint("user", 2*maxOwned-1)))
	require.Less(t, len(d.String()), 1024)
	require.Len(t, parseDevices(d.String()+"."+d.owned[0].tag+"-"+alice).owned, maxOwned)
}

func TestNonsenseInTheCookieIsNoDevice(t *testing.T) {
	browser := rand.Text()
	for _, cookie := range []string{
		"x", "." + browser, browser[1:], strings.ToLower(browser), browser + "A",
		browser + ".", browser + ".tag", browser + ".tag-", browser + ".-" + browser, browser + ".tag-short",
	} {
		d := parseDevices(cookie)
		require.Empty(t, d.owned, cookie)
		require.Len(t, d.browser, 26, cookie)
		require.Equal(t, strings.HasPrefix(cookie, browser+"."), d.browser == browser, cookie)
	}
}
