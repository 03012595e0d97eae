package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"log"
	"maps"
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
	t       *testing.T
	site    http.Handler
	devices devices
	mails   *mails
}

func newStreet(t *testing.T) street {
	o := &options{key: []byte(rand.Text()), source: httpthrottle.Source{
		Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Header:  "X-Forwarded-For",
	}}
	visitors, operators, m := pages(throttler.New(memstore.New()), o, log.New(new(bytes.Buffer), "", 0))
	require.NotNil(t, operators)
	return street{t, visitors, devices{key: o.key}, m}
}

// A walker has a browser's cookies, and an address.
type walker struct {
	street
	addr    string
	cookies map[string]string
}

func (s street) walker(addr string) *walker { return &walker{s, addr, map[string]string{}} }

// reads returns a walker at addr who has read the cookies of w but the session.
func (w *walker) reads(addr string) *walker {
	other := w.walker(addr)
	other.cookies = maps.Clone(w.cookies)
	delete(other.cookies, sessionCookie)
	return other
}

func (w *walker) posts(path string, form url.Values) *http.Response {
	return w.keeps(w.sends("POST", path, form))
}

// keeps has w keep the cookies of an answer.
func (w *walker) keeps(answer *http.Response) *http.Response {
	for _, c := range answer.Cookies() {
		w.cookies[c.Name] = c.Value
		if c.MaxAge < 0 {
			delete(w.cookies, c.Name)
		}
	}
	return answer
}

// sends returns the answer to a request of w, who does not keep its cookies yet.
func (w *walker) sends(method, path string, form url.Values) *http.Response {
	r := httptest.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(form.Encode()))
	r.RemoteAddr = "127.0.0.1:1234"
	r.Header.Set("X-Forwarded-For", w.addr)
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range w.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	recorder := httptest.NewRecorder()
	w.site.ServeHTTP(recorder, r)
	return recorder.Result()
}

// logIn returns the status: 303 right, 403 wrong, 429 not looked at. The browser
// then asks for the page that it is sent to.
func (w *walker) logIn(name, password string) int {
	status := w.posts("/login", url.Values{"name": {name}, "password": {password}}).StatusCode
	if status == http.StatusSeeOther {
		w.keeps(w.sends("GET", "/", nil))
	}
	return status
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

// token returns the device of name in the cookies of w, or "".
func (w *walker) token(name string) string { return w.cookies[w.devices.cookie(name)] }

// The answer to a login is lost: its cookie does not arrive.
func TestALostAnswerMakesNoStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		alice := street.walker("203.0.113.7")
		require.Equal(t, 303, alice.logIn("alice", "correct horse"))
		right := url.Values{"name": {"alice"}, "password": {"correct horse"}}
		for range 3 {
			require.Equal(t, 303, alice.sends("POST", "/login", right).StatusCode)
			time.Sleep(time.Hour)
		}
		street.siege("alice")
		alice.addr = "198.51.100.9"
		require.Equal(t, 303, alice.logIn("alice", "correct horse"))
	})
}

// Of 16 clicks the answers arrive in any order, also those of other names, wrong
// passwords and pages without a cookie that were asked for before.
func TestRapidSubmissionsSetNoOldCookieBack(t *testing.T) {
	for first := range 8 {
		synctest.Test(t, func(t *testing.T) {
			street := newStreet(t)
			browser := street.walker(library)
			slow := []*http.Response{browser.sends("GET", "/login", nil)}
			require.Equal(t, 303, browser.logIn("alice", "correct horse"))
			require.Equal(t, 303, browser.logIn("bob", "battery staple"))
			old := browser.reads("198.51.100.9")
			for i := range 16 {
				form := url.Values{"name": {"alice"}, "password": {"correct horse"}}
				switch i % 4 {
				case 1:
					form = url.Values{"name": {"bob"}, "password": {"battery staple"}}
				case 2:
					form.Set("password", "wrong")
				case 3:
					form = url.Values{"name": {"carol"}, "password": {"wrong"}}
				}
				slow = append(slow, browser.sends("POST", "/login", form))
			}
			for i := range slow {
				browser.keeps(slow[(first*3+i*5)%len(slow)])
			}
			require.NotEqual(t, old.token("alice"), browser.token("alice"))
			require.NotEqual(t, old.token("bob"), browser.token("bob"))
			browser.keeps(browser.sends("GET", "/", nil))
			time.Sleep(time.Hour)
			street.siege("alice")
			street.siege("bob")
			browser.addr = "198.51.100.10"
			require.Equal(t, 303, browser.logIn("alice", "correct horse"))
			require.Equal(t, 303, browser.logIn("bob", "battery staple"))
			time.Sleep(time.Minute)
			require.Equal(t, 429, old.logIn("alice", "correct horse"))
			require.Equal(t, 429, old.logIn("bob", "battery staple"))
		})
	}
}

// A cookie is set when it changes, and with no other answer.
func TestTheCookieIsSetWhenItChanges(t *testing.T) {
	street := newStreet(t)
	v := street.walker("203.0.113.7")
	require.Empty(t, v.posts("/login", url.Values{"name": {"alice"}, "password": {"wrong"}}).Cookies())
	require.Len(t, v.keeps(v.sends("GET", "/login", nil)).Cookies(), 1)
	require.Empty(t, v.sends("GET", "/login", nil).Cookies())
	right := url.Values{"name": {"alice"}, "password": {"correct horse"}}
	require.Len(t, v.posts("/login", right).Cookies(), 2, "the device and the session")
	require.Empty(t, v.sends("GET", "/", nil).Cookies())
	street.siege("alice")
	stranger := street.walker("203.0.113.8")
	require.Empty(t, stranger.posts("/login", right).Cookies())
}

// Who has stolen the cookies cannot find out whose they are: neither their names
// nor their values are made of the account alone.
func TestCookiesDoNotTellWhoseTheyAre(t *testing.T) {
	here, there := newStreet(t), newStreet(t) // with keys of their own
	browser := here.walker(library)
	require.Equal(t, 303, browser.logIn("alice", "correct horse"))
	own := here.devices.cookie("alice")
	require.Contains(t, browser.cookies, own)
	require.Regexp(t, `^device-[0-9a-f]{24}$`, own)
	require.NotEqual(t, own, there.devices.cookie("alice"), "it takes the key")
	require.NotEqual(t, own, devices{}.cookie("alice"))
	again := here.walker(library)
	require.Equal(t, 303, again.logIn("alice", "correct horse"))
	require.NotEqual(t, browser.token("alice"), again.token("alice"), "a value is random")
	for name, value := range browser.cookies {
		require.NotContains(t, strings.ToLower(name+value), "alice")
		require.True(t, isToken(value), name)
	}
}

// A browser keeps 16 names, and drops the oldest.
func TestABrowserKeepsSixteenDevices(t *testing.T) {
	for _, https := range []bool{false, true} {
		d := devices{jar{https}, []byte("key")}
		r := httptest.NewRequest("GET", "/", nil)
		for i := range 20 {
			w := httptest.NewRecorder()
			token := rand.Text()
			d.set(w, r, fmt.Sprint("user", i), token)
			dropped := 0
			for _, c := range w.Result().Cookies() {
				if c.MaxAge < 0 {
					require.Equal(t, d.jar.name(d.cookie(fmt.Sprint("user", i-maxDevices))), c.Name)
					dropped++
				}
			}
			require.Equal(t, i >= maxDevices, dropped == 1, "%d", i)
			kept := r.Cookies()
			r = httptest.NewRequest("GET", "/", nil)
			for _, c := range kept[dropped:] {
				r.AddCookie(c)
			}
			r.AddCookie(&http.Cookie{Name: d.jar.name(d.cookie(fmt.Sprint("user", i))), Value: token})
			require.Equal(t, token, d.of(r, fmt.Sprint("user", i)))
		}
		size := 0
		for _, c := range r.Cookies() {
			size += len(c.String())
		}
		require.Less(t, size, 2048)
	}
}

func TestNonsenseInACookieIsNoDevice(t *testing.T) {
	d := devices{key: []byte("key")}
	browser := rand.Text()
	for _, value := range []string{"x", browser[1:], strings.ToLower(browser), browser + "A", "." + browser} {
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(&http.Cookie{Name: d.cookie("alice"), Value: value})
		require.Empty(t, d.of(r, "alice"), value)
		r.AddCookie(&http.Cookie{Name: browserCookie, Value: browser})
		require.Equal(t, browser, d.of(r, "alice"), value)
		require.False(t, d.has(r, "alice"))
	}
}
