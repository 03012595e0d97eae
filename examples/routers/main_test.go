package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSitesAreLimited(t *testing.T) {
	for name := range sites {
		t.Run(name, func(t *testing.T) { testSite(t, site(sites[name])) })
	}
}

// testSite tests a new site over real connections.
func testSite(t *testing.T, site http.Handler) {
	get := serve(t, site)
	for _, step := range []struct {
		path   string
		status int
		body   string
	}{
		{"/search", 200, "Nothing found. You may come back 1 times this minute.\n"},
		{"/search", 200, "Nothing found. You may come back 0 times this minute.\n"},
		{"/search", 429, "Too Many Requests\nToo many requests from this address.\nTry again in "},
		{"/", 200, "Welcome. You may come back 16 times this minute.\n"},
	} {
		response, body := get(step.path)
		require.Equal(t, step.status, response.StatusCode)
		require.True(t, strings.HasPrefix(body, step.body), body)
		if step.status == 429 {
			require.Regexp(t, `^(60|[45]\d)$`, response.Header.Get("Retry-After"))
			require.Equal(t, []string{`"address";q=20;w=60`, `"search/address";q=2;w=60`}, response.Header.Values("RateLimit-Policy"))
			require.NotContains(t, body, "Nothing found.", "the handler is not called")
		}
	}
	statuses := make(map[int]int)
	for range 20 { // pages that are not there are limited too
		response, _ := get("/nowhere")
		statuses[response.StatusCode]++
	}
	require.Equal(t, map[int]int{http.StatusNotFound: 16, http.StatusTooManyRequests: 4}, statuses)
}

// serve starts a server with the site and returns a client that keeps its
// connection alive.
func serve(t *testing.T, site http.Handler) func(path string) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(site)
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
