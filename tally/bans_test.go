package tally_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const operatorKey = "the key of an operator"

// lifting returns a tally that may lift the bans of limits.
func lifting() (*throttler.Throttler, *tally.Tally) {
	limits, counts := observed(memstore.New())
	counts.Look, counts.Lift, counts.LiftKeys = limits.Peek, limits.Reset, []string{"another key", operatorKey}
	return limits, counts
}

// ban bans values of rule r for an hour.
func ban(t *testing.T, limits *throttler.Throttler, values ...string) {
	t.Helper()
	for _, value := range values {
		authorize(t, limits, banning(value), 2)
	}
}

func banning(value string) throttler.Rule {
	return throttler.Rule{Identifier: "r", Lockout: time.Hour, Either: []throttler.Condition{{Name: "c", Value: value, Max: 1, TTL: time.Minute}}}
}

// bannedNow returns the rows of the page's table of bans.
func bannedNow(t *testing.T, counts *tally.Tally) (rows []string) {
	t.Helper()
	page := parse(t, get(counts, "/", ""))
	for n := range page.Descendants() {
		for _, a := range n.Attr {
			if a.Key == "class" && a.Val == "bans" {
				return text(n, "tr")[1:]
			}
		}
	}
	return nil
}

// liftLinks returns what the buttons of the page lead to.
func liftLinks(t *testing.T, counts *tally.Tally) (all []string) {
	t.Helper()
	for _, link := range links(parse(t, get(counts, "/", ""))) {
		if strings.HasPrefix(link, "?lift=") {
			all = append(all, link)
		}
	}
	return all
}

// post sends the form of a page, with these header fields.
func post(counts *tally.Tally, target, key string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "http://127.0.0.1/"+target, strings.NewReader(url.Values{"key": {key}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	counts.ServeHTTP(w, r)
	return w
}

func blocked(t *testing.T, limits *throttler.Throttler, value string) bool {
	t.Helper()
	d, err := limits.Peek(t.Context(), banning(value))
	require.NoError(t, err)
	return d.Status == throttler.Blocked
}

func TestThePageShowsWhatIsBannedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits, counts := lifting()
		ban(t, limits, "a")
		time.Sleep(10 * time.Minute)
		ban(t, limits, "b")
		authorize(t, limits, banning("passes"), 1)
		assert.Equal(t, []string{"b r, c1h0m0sLift", "a r, c50m0sLift"}, bannedNow(t, counts))

		require.NoError(t, limits.Reset(t.Context(), banning("b")), "another process lifts one")
		require.NoError(t, limits.Ban(t.Context(), banning("a"), 2*time.Hour), "and lengthens another")
		assert.Equal(t, []string{"a r, c2h0m0sLift"}, bannedNow(t, counts))
		time.Sleep(2 * time.Hour)
		assert.Empty(t, bannedNow(t, counts))
	})
}

func TestABanIsLiftedWithAKey(t *testing.T) {
	limits, counts := lifting()
	ban(t, limits, "b", "a")
	to := liftLinks(t, counts)
	require.Len(t, to, 2)
	w := get(counts, "/"+to[0], "text/html")
	form := parse(t, w)
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "form-action 'self'")
	assert.Contains(t, text(form, "p")[0], "a is banned by r, c, for 1h0m0s more.")
	assert.Equal(t, []string{"Lift the ban"}, text(form, "button"))
	assert.True(t, blocked(t, limits, "a"), "looking lifts nothing")

	for _, key := range []string{"", "wrong", operatorKey + " ", strings.Repeat("x", 10_000)} {
		w := post(counts, to[0], key)
		assert.Equal(t, http.StatusForbidden, w.Code)
		assert.Contains(t, w.Body.String(), "That is not the key.")
		assert.True(t, blocked(t, limits, "a"))
	}
	w = post(counts, to[0], operatorKey, "Sec-Fetch-Site", "same-origin")
	assert.Equal(t, http.StatusSeeOther, w.Code)
	assert.Equal(t, "/?", w.Header().Get("Location"))
	assert.False(t, blocked(t, limits, "a"))
	assert.True(t, blocked(t, limits, "b"))
	assert.Equal(t, to[1:], liftLinks(t, counts))
	assert.Equal(t, http.StatusNotFound, post(counts, to[0], operatorKey).Code, "once")
}

func TestNoOtherSiteLiftsABan(t *testing.T) {
	limits, counts := lifting()
	ban(t, limits, "a")
	to := liftLinks(t, counts)[0]
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"},
	} {
		assert.Equal(t, http.StatusForbidden, post(counts, to, operatorKey, header...).Code, header)
		assert.True(t, blocked(t, limits, "a"))
	}
}

func TestWhatCannotBeLiftedHasNoButton(t *testing.T) {
	for name, change := range map[string]func(*tally.Tally){
		"no key":  func(t *tally.Tally) { t.LiftKeys = nil },
		"no Lift": func(t *tally.Tally) { t.Lift = nil },
	} {
		limits, counts := lifting()
		ban(t, limits, "a")
		to := liftLinks(t, counts)[0]
		change(counts)
		assert.Empty(t, liftLinks(t, counts), name)
		assert.Len(t, bannedNow(t, counts), 1, name)
		assert.Equal(t, http.StatusMethodNotAllowed, post(counts, to, "").Code, name)
		assert.True(t, blocked(t, limits, "a"), name)
	}
}

func TestABanThatCannotBeLiftedStaysOnThePage(t *testing.T) {
	limits, counts := lifting()
	ban(t, limits, "a")
	to := liftLinks(t, counts)[0]
	counts.Lift = func(context.Context, throttler.Rule) error { return errors.New("memcached is away") }
	counts.Look = func(context.Context, throttler.Rule) (throttler.Decision, error) {
		return throttler.Decision{Err: errors.New("memcached is away"), Outcomes: make([]throttler.Outcome, 1)}, nil
	}
	w := post(counts, to, operatorKey)
	assert.Equal(t, http.StatusBadGateway, w.Code)
	assert.Contains(t, w.Body.String(), "memcached is away")
	assert.Len(t, bannedNow(t, counts), 1)
}

func TestBansOfAThrottlerThatIsNotCounted(t *testing.T) {
	limits, counts := throttler.New(memstore.New()), tally.New()
	limits.Observe = counts.ObserveBans
	ban(t, limits, "a")
	assert.Empty(t, snapshotOf(counts).Rules)
	assert.Len(t, bannedNow(t, counts), 1)
}

func TestBansAreKeptWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits, counts := lifting()
		counts.MaxValues = 120
		for i := range 200 {
			ban(t, limits, strconv.Itoa(i))
		}
		ban(t, limits, strings.Repeat("x", 257))
		assert.Len(t, bannedNow(t, counts), 100)
		assert.Contains(t, text(parse(t, get(counts, "/", "")), "caption")[0], "The first 100 of 120 that this process has met.")
		time.Sleep(2 * time.Hour)
		ban(t, limits, "later")
		assert.Len(t, bannedNow(t, counts), 1, "those that have ended make room")
	})
}

func TestValuesThatAreNotRecordedHaveNoBans(t *testing.T) {
	for _, change := range []func(*tally.Tally){
		func(t *tally.Tally) { t.HashKey = []byte("key") },
		func(t *tally.Tally) { t.MaxValues = -1 },
	} {
		limits, counts := lifting()
		change(counts)
		ban(t, limits, "alice")
		assert.NotContains(t, get(counts, "/", "").Body.String(), "alice")
	}
}

func TestThePageLoadsItselfAgain(t *testing.T) {
	assert.Contains(t, get(tally.New(), "/", "").Body.String(), `<meta http-equiv="refresh" content="10">`)
	assert.NotContains(t, get(tally.New(), "/?refresh=off", "").Body.String(), "http-equiv")
	limits, counts := lifting()
	ban(t, limits, "a")
	assert.NotContains(t, get(counts, "/"+liftLinks(t, counts)[0], "").Body.String(), "http-equiv", "not while a key is typed")
}
