package docs_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// What follows is shown in http.md.

func apiLimit(limits *throttler.Throttler, source httpthrottle.Source) *httpthrottle.Middleware {
	limit := httpthrottle.New(limits, func(r *http.Request) throttler.Rule {
		id, perMinute, ok := customerOf(r.Header.Get("X-Api-Key"))
		if !ok { // no key, or a wrong one: count the address
			return throttler.Rule{Identifier: "api-stranger", Either: []throttler.Condition{
				{Name: "minute", Value: source.Key(r), Max: 20, TTL: time.Minute},
			}}
		}
		return throttler.Rule{
			Identifier: "api",
			Either: []throttler.Condition{
				{Name: "minute", Value: id, Max: perMinute, TTL: time.Minute},
				{Name: "day", Value: id, Max: 500 * perMinute, TTL: 24 * time.Hour, Algorithm: throttler.LeakyBucket},
			},
			CountAuthorizedOnly: true, // a refused request uses up no budget
		}
	})
	limit.Public = []string{"minute", "day"} // what clients are told in RateLimit fields
	limit.XRateLimit = true
	return limit
}

// Up to here.

func TestThePageOnHTTPShowsTheLimitOfThisFile(t *testing.T) {
	requireShown(t, "http.md", "http_api_test.go")
}

func customerOf(key string) (id string, requestsPerMinute int, ok bool) {
	return "4711", 30, key == "right"
}

func TestTheLimitOfAnAPIPassesItsCheckWithAKeyAndWithout(t *testing.T) {
	limit := apiLimit(throttler.New(memstore.New()), httpthrottle.Source{})
	handler := limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for key, max := range map[string]int{"right": 30, "wrong": 20, "": 20} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "192.0.2.1:4711"
		r.Header.Set("X-Api-Key", key)
		require.NoError(t, limit.Check(r), "key %q", key)

		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Header().Get("RateLimit-Policy"), fmt.Sprintf(`"minute";q=%d;w=60`, max), "key %q", key)
	}
}
