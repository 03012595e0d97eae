// Package docs_test holds the tests that docs/stores.md shows.
package docs_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestThePageShowsTheTestsOfThisFile(t *testing.T) {
	page, err := os.ReadFile("stores.md")
	require.NoError(t, err)
	_, shown, ok := strings.Cut(string(page), "\n## Testing your own code\n")
	require.True(t, ok)
	shown, _, ok = strings.Cut(shown, "\n## ")
	require.True(t, ok)
	file, err := os.ReadFile("testing_test.go")
	require.NoError(t, err)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(shown, -1)
	require.Len(t, snippets, 1)
	for _, s := range snippets {
		require.Contains(t, string(file), s[1])
	}
}

func TestAFourthReportInAMinuteIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttler.New(memstore.New())
		rule := throttler.Rule{
			Identifier: "reports",
			Either:     []throttler.Condition{{Name: "user", Value: "alice", Max: 3, TTL: time.Minute}},
		}
		ask := func() throttler.Decision {
			d, err := limits.Authorize(t.Context(), rule)
			require.NoError(t, err)
			return d
		}
		for range 3 {
			require.Equal(t, throttler.Authorized, ask().Status)
		}
		require.Equal(t, time.Minute, ask().RetryAfter)

		time.Sleep(time.Minute)
		require.Equal(t, throttler.Authorized, ask().Status)
	})
}

func TestALoginIsRefusedAfterFiveFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := login.New(throttler.New(memstore.New()))
		handler := func(w http.ResponseWriter, r *http.Request) { // yours
			attempt, err := guard.Begin(r.Context(), r.PostFormValue("name"), httpthrottle.Source{}.Addr(r))
			require.NoError(t, err)
			if attempt.Decision.Status == throttler.Blocked {
				httpthrottle.SetRetryAfter(w, attempt.Decision)
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			require.NoError(t, attempt.Fail(r.Context()))
			w.WriteHeader(http.StatusForbidden)
		}
		try := func(addr string) *httptest.ResponseRecorder {
			r := httptest.NewRequest("POST", "/login", strings.NewReader("name=alice&password=guess"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.RemoteAddr = addr + ":1234"
			w := httptest.NewRecorder()
			handler(w, r)
			return w
		}
		for range 5 {
			require.Equal(t, http.StatusForbidden, try("203.0.113.7").Code)
		}
		refused := try("203.0.113.7")
		require.Equal(t, http.StatusTooManyRequests, refused.Code)
		require.Equal(t, "600", refused.Header().Get("Retry-After"))
		require.Equal(t, http.StatusForbidden, try("198.51.100.1").Code) // another address

		time.Sleep(10 * time.Minute)
		require.Equal(t, http.StatusForbidden, try("203.0.113.7").Code)
	})
}

type down struct{ throttler.Client }

var errDown = errors.New("memcached is away")

func (down) Get(string) (*memcache.Item, error)                   { return nil, errDown }
func (down) GetMulti([]string) (map[string]*memcache.Item, error) { return nil, errDown }
func (down) Add(*memcache.Item) error                             { return errDown }
func (down) CompareAndSwap(*memcache.Item) error                  { return errDown }

func TestReportsAreWrittenDuringAnOutage(t *testing.T) {
	limits := throttler.New(down{})
	d, err := limits.Authorize(t.Context(), throttler.Rule{
		Identifier: "reports",
		Either:     []throttler.Condition{{Name: "user", Value: "alice", Max: 3, TTL: time.Minute}},
	})
	require.NoError(t, err)
	require.Equal(t, throttler.Authorized, d.Status)
	require.ErrorIs(t, d.Err, errDown)
}
