// Package routertest tests the site of the router examples: 20 requests a
// minute from each address, and 2 searches.
package routertest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Run tests the site over real connections.
func Run(t *testing.T, site func(*throttler.Throttler) http.Handler) {
	t.Run("searches are refused before the rest of the site is", func(t *testing.T) {
		get := serve(t, site)
		for _, step := range []struct {
			path   string
			status int
			body   string
		}{
			{"/search", 200, "Nothing found. You may come back 1 times this minute.\n"},
			{"/search", 200, "Nothing found. You may come back 0 times this minute.\n"},
			{"/search", 429, "Too Many Requests\nToo many requests from this address.\n"},
			{"/", 200, "Welcome. You may come back 16 times this minute.\n"},
		} {
			response, body := get(step.path)
			require.Equal(t, step.status, response.StatusCode)
			require.True(t, strings.HasPrefix(body, step.body), body)
		}
	})
	t.Run("a refusal says when to come back", func(t *testing.T) {
		get := serve(t, site)
		for range 2 {
			get("/search")
		}
		response, body := get("/search")
		require.Regexp(t, `^(60|[45]\d)$`, response.Header.Get("Retry-After"))
		require.Contains(t, body, "Try again in ")
		require.Equal(t, []string{`"address";q=20;w=60`, `"search/address";q=2;w=60`}, response.Header.Values("RateLimit-Policy"))
		require.NotContains(t, body, "Nothing found.", "the handler is not called")
	})
	t.Run("pages that are not there are limited too", func(t *testing.T) {
		get := serve(t, site)
		statuses := make(map[int]int)
		for range 25 {
			response, _ := get("/nowhere")
			statuses[response.StatusCode]++
		}
		require.Equal(t, map[int]int{http.StatusNotFound: 20, http.StatusTooManyRequests: 5}, statuses)
	})
}

// serve starts a server with the site and returns a client that keeps its
// connection alive.
func serve(t *testing.T, site func(*throttler.Throttler) http.Handler) func(path string) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(site(throttler.New(memstore.New())))
	t.Cleanup(server.Close)
	client := server.Client()
	client.Timeout = 20 * time.Second
	return func(path string) (*http.Response, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		request.Header.Set("Accept", "text/plain")
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response, string(body)
	}
}
