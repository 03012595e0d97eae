package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// mails returns the links in the mails of the site, the last first.
func (town *town) mails() (links []string) {
	town.mu.Lock()
	defer town.mu.Unlock()
	for _, m := range town.sent {
		links = append(links, m.Link)
	}
	return links
}

// besiege has strangers use up what they have of name.
func (town *town) besiege(name string) {
	for i := range 6 {
		for range 4 {
			town.visitor(fmt.Sprintf("10.0.0.%d", i)).logIn(name, "wrong")
		}
	}
	require.Equal(town.t, http.StatusTooManyRequests, town.visitor("10.0.1.1").logIn(name, "wrong").StatusCode)
}

func TestTheLinkInTheMailLetsTheOwnerIn(t *testing.T) {
	town := openTown(t)
	require.Empty(t, town.mails())
	town.besiege("alice")
	owner := town.visitor("198.51.100.9")
	a := owner.logIn("Alice", "correct horse")
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
	require.Contains(t, a.body, "look into your mail")
	links := town.mails()
	require.Len(t, links, 1, "the second one came within the minute")
	text := town.sent[0].Text()
	require.Contains(t, text, "To: alice@library.example")
	require.Contains(t, text, "last from 10.0.1.1")
	require.Contains(t, text, links[0])
	require.True(t, strings.HasPrefix(links[0], town.site.URL+"/let-in?token="), links[0])

	// A program that looks through mails opens the link: nothing happens.
	require.Equal(t, http.StatusOK, town.visitor("192.0.2.1").do("GET", links[0], nil).StatusCode)
	require.Equal(t, http.StatusTooManyRequests, owner.logIn("alice", "correct horse").StatusCode)

	token := links[0][strings.Index(links[0], "=")+1:]
	a = owner.do("GET", links[0], nil)
	require.Contains(t, a.body, "This was me, let me in")
	a = owner.do("POST", town.site.URL+"/let-in", url.Values{"token": {token}})
	require.Equal(t, "/login?let-in", a.Header.Get("Location"))
	require.Contains(t, owner.get("/login?let-in").body, "You are let in here.")
	require.Equal(t, http.StatusForbidden, owner.logIn("alice", "wrong").StatusCode, "the password is still needed")
	require.Equal(t, http.StatusSeeOther, owner.logIn("alice", "correct horse").StatusCode)

	for _, method := range []string{"GET", "POST"} { // it was used
		thief := town.visitor("192.0.2.2")
		a = thief.do(method, links[0], url.Values{"token": {token}})
		if method == "POST" {
			require.Equal(t, http.StatusGone, a.StatusCode)
			require.Contains(t, a.body, "This link is too old")
			require.Empty(t, a.Cookies())
		}
	}
}

// From then on the owner is known by the browser too, wherever the name is tried.
func TestTheLinkMakesTheBrowserKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		street.siege("alice")
		owner := street.walker("198.51.100.9")
		token := street.mails.links.sign("alice", time.Now().Add(linkLasts))
		answer := owner.posts("/let-in", url.Values{"token": {token}})
		require.Equal(t, "/login?let-in", answer.Header.Get("Location"))
		require.Len(t, answer.Cookies(), 1)
		street.siege("alice")
		owner.addr = "198.51.100.10"
		require.Equal(t, 303, owner.logIn("alice", "correct horse"))
	})
}

func TestALinkHoldsForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := links{[]byte("key"), throttler.New(memstore.New())}
		token := l.sign("alice.b#c", time.Now().Add(linkLasts))
		name, id, err := l.read(token)
		require.NoError(t, err)
		require.Equal(t, "alice.b#c", name)
		require.Len(t, id, 26)
		failed := fmt.Errorf("down")
		require.ErrorIs(t, l.use(t.Context(), token, func(string) error { return failed }), failed)
		require.NoError(t, l.use(t.Context(), token, func(name string) error { require.Equal(t, "alice.b#c", name); return nil }))
		require.ErrorIs(t, l.use(t.Context(), token, func(string) error { panic("used") }), errLink)
		time.Sleep(linkLasts)
		_, _, err = l.read(token)
		require.ErrorIs(t, err, errLink)
		require.ErrorIs(t, l.use(t.Context(), token, func(string) error { panic("too old") }), errLink)
	})
}

// Nobody else can make a link, or change one.
func TestForgedLinksLetNobodyIn(t *testing.T) {
	l, other := links{key: []byte("key")}, links{key: []byte("another key")}
	until := time.Now().Add(time.Hour)
	good := l.sign("alice", until)
	text, mac, _ := strings.Cut(good, ".")
	payload, err := base64.RawURLEncoding.DecodeString(text)
	require.NoError(t, err)
	bob := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), "alice", "bob", 1)))
	for _, token := range []string{
		"", ".", text, text + ".", "." + mac, bob + "." + mac, other.sign("alice", until),
		l.sign("alice", until.Add(-time.Hour)), good[:len(good)-1], "%%." + mac,
		base64.RawURLEncoding.EncodeToString([]byte("x")) + "." + base64.RawURLEncoding.EncodeToString(l.mac("y")),
	} {
		_, _, err := l.read(token)
		require.ErrorIs(t, err, errLink, token)
	}
	town := openTown(t)
	require.Equal(t, http.StatusGone, town.visitor("192.0.2.1").get("/let-in?token="+good).StatusCode)
	require.Equal(t, http.StatusGone, town.visitor("192.0.2.1").get("/let-in").StatusCode)
	a := town.visitor("192.0.2.1").do("POST", town.site.URL+"/let-in", url.Values{"token": {good}}, "Origin", "https://evil.example")
	require.Equal(t, http.StatusForbidden, a.StatusCode)
}

// A link leads to the site as its operator has named it, not as the request does.
func TestLinksDoNotFollowTheHostOfTheRequest(t *testing.T) {
	town := openTown(t)
	town.besiege("alice")
	for _, link := range town.mails() {
		require.True(t, strings.HasPrefix(link, town.site.URL+"/"))
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", town.site.URL+"/login", strings.NewReader("name=bob&password=wrong"))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Host = "evil.example"
	for range 6 {
		r.Body, _ = r.GetBody()
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		response.Body.Close()
	}
	links := town.mails()
	require.Len(t, links, 2)
	require.True(t, strings.HasPrefix(links[0], town.site.URL+"/"), links[0])
}

// Whoever tries a name from many addresses has its owner get five mails a day, and
// names without an account none.
func TestMailsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		var sent post
		street.mails.send = sent.keep
		for hour := range 24 {
			for i := range 40 {
				v := street.walker(fmt.Sprintf("10.%d.0.%d", hour, i))
				v.posts("/login", url.Values{"name": {"alice"}, "password": {"wrong"}})
				v.posts("/login", url.Values{"name": {"nobody"}, "password": {"wrong"}})
			}
			time.Sleep(time.Hour)
		}
		require.Len(t, sent.sent, 5)
		for _, m := range sent.sent {
			require.Equal(t, "alice@library.example", m.To)
		}
	})
}

// After a hundred failures in a year only the mail lets strangers in, and the page
// says so of every name alike.
func TestThePageSendsStrangersToTheirMailAfterAHundredFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		street := newStreet(t)
		for day := range 5 {
			for i := range 25 {
				v := street.walker(fmt.Sprintf("10.0.%d.%d", day, i))
				v.posts("/login", url.Values{"name": {"alice"}, "password": {"wrong"}})
				v.posts("/login", url.Values{"name": {"nobody"}, "password": {"wrong"}})
			}
			time.Sleep(24 * time.Hour)
		}
		read := func(name string) string {
			a := street.walker("198.51.100.9").posts("/login", url.Values{"name": {name}, "password": {"correct horse"}})
			require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
			require.Empty(t, a.Header.Get("Retry-After"))
			var body strings.Builder
			require.NoError(t, a.Write(&body))
			return strings.ReplaceAll(body.String(), `value="`+name+`"`, "")
		}
		page := read("alice")
		require.NotContains(t, page, "countdown")
		require.Contains(t, page, "look into your mail")
		other := read("nobody")
		length := regexp.MustCompile(`Content-Length: \d+`)
		require.Equal(t, length.ReplaceAllString(page, ""), length.ReplaceAllString(other, ""))
	})
}

func TestKeyOfTheSite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	_, err := readKey(file)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, make([]byte, 31), 0o600))
	_, err = readKey(file)
	require.ErrorContains(t, err, "has 31 bytes, want at least 32")
	require.NoError(t, os.WriteFile(file, make([]byte, 32), 0o600))
	key, err := readKey(file)
	require.NoError(t, err)
	require.Len(t, key, 32)
	one, err := readKey("")
	require.NoError(t, err)
	other, err := readKey("")
	require.NoError(t, err)
	require.NotEqual(t, one, other)
}
