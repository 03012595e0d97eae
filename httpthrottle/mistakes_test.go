package httpthrottle_test

import (
	"bytes"
	"context"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestLimitThatCannotBeIsFoundWhenTheProgramStarts(t *testing.T) {
	for _, test := range []struct {
		identifier string
		max        int
		ttl        time.Duration
		want       string // empty: it can be
	}{
		{"site", 1, time.Millisecond, ""},
		{"site", throttler.MaxHits, 1000 * time.Hour, ""},
		{"", 1, time.Second, `identifier is "", want a name`},
		{"site", 0, time.Second, "max is 0, want 1 to 1000000"},
		{"site", -1, time.Second, "max is -1, want 1 to 1000000"},
		{"site", throttler.MaxHits + 1, time.Second, "max is 1000001, want 1 to 1000000"},
		{"site", 1, 0, "ttl is 0s, want 1ms or more"},
		{"site", 1, time.Millisecond - 1, "ttl is 999.999µs, want 1ms or more"},
	} {
		build := func() func(*http.Request) throttler.Rule {
			return httpthrottle.Source{}.PerAddress(test.identifier, test.max, test.ttl)
		}
		if test.want == "" {
			require.NoError(t, build()(request("203.0.113.9:1")).Validate(), "%v", test)
			continue
		}
		require.PanicsWithValue(t, "httpthrottle: PerAddress: "+test.want, func() { build() })
	}
}

func TestCheckFindsMistakesWithoutCounting(t *testing.T) {
	rule := twoConditions("")
	bad := twoConditions("")
	bad.Either[1].Max = 0
	for _, test := range []struct {
		name string
		rule throttler.Rule
		want string // empty: nothing is wrong
	}{
		{"good", rule, ""},
		{"unlimited", httpthrottle.Unlimited(), ""},
		{"zero", throttler.Rule{}, `httpthrottle: throttler: invalid rule: Identifier is "", want a name`},
		{"Max", bad, `httpthrottle: throttler: invalid rule "test": condition "second": Either[1].Max is 0, want 1 to 1000000`},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := httpthrottle.New(throttler.New(failingStore{errors.New("asked")}), func(*http.Request) throttler.Rule { return test.rule })
			err := m.Check(request("203.0.113.9:1"))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, test.want)
		})
	}

	m := perMinute(1)
	for range 3 {
		require.NoError(t, m.Check(request("203.0.113.9:1")))
	}
	require.Equal(t, http.StatusOK, get(m.Handler(hello)).Code)
}

// logged has h answer a request from peer, and returns the answer and what was
// written to the server's log.
func logged(h http.Handler, peer string) (*httptest.ResponseRecorder, string) {
	var lines bytes.Buffer
	server := &http.Server{ErrorLog: log.New(&lines, "", 0)}
	r := request(peer)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server)))
	return w, lines.String()
}

func TestClientsOfAUnixSocketAreNotCountedAsOne(t *testing.T) {
	for _, peer := range []string{"@", "", "/run/site.sock"} {
		m := httpthrottle.New(throttler.New(memstore.New()), httpthrottle.Source{}.PerAddress("test", 1, time.Minute))
		w, log := logged(m.Handler(hello), peer)
		require.Equal(t, http.StatusInternalServerError, w.Code, "%q", peer)
		require.Contains(t, log, "the peer has no address; set TrustUnix")
		require.ErrorContains(t, m.Check(request(peer)), "the peer has no address; set TrustUnix")
		require.ErrorIs(t, m.Check(request(peer)), throttler.ErrInvalidRule)

		trusting := httpthrottle.New(throttler.New(memstore.New()), httpthrottle.Source{TrustUnix: true}.PerAddress("test", 1, time.Minute))
		h := trusting.Handler(hello)
		for _, client := range []string{"203.0.113.8", "203.0.113.9"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request(peer, "X-Forwarded-For: "+client))
			require.Equal(t, http.StatusOK, w.Code)
		}
		w = httptest.NewRecorder()
		h.ServeHTTP(w, request(peer, "X-Forwarded-For: 203.0.113.9"))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
	}
}
