package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/servertest"
)

// start runs the program on a free port until the end of the test, and returns
// the site's URL.
func start(t *testing.T, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	stdout, printed := io.Pipe()
	exited := make(chan int, 1)
	var stderr strings.Builder
	go func() {
		exited <- run(ctx, printed, &stderr, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
		printed.Close()
	}()
	t.Cleanup(func() {
		stop()
		assert.Zero(t, <-exited)
		assert.Empty(t, stderr.String())
	})
	var url string
	_, err := fmt.Fscanf(stdout, "robots: listening on %s\n", &url)
	require.NoError(t, err)
	return url
}

// visit asks for a page from addr, behind the proxy, and returns what the site says.
func visit(t *testing.T, url, agent, addr string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Header.Set("User-Agent", agent)
	request.Header.Set("X-Forwarded-For", addr)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if response.StatusCode == http.StatusTooManyRequests {
		return response.StatusCode, response.Header.Get("Retry-After")
	}
	return response.StatusCode, strings.TrimSpace(string(body))
}

func TestEachKindHasItsBudget(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("66.249.64.0/27\n"), 0o600))
	for name, args := range map[string][]string{"memstore": nil, "memcached": {"-memcached", servertest.AnyMemcached(t).Addr}} {
		t.Run(name, func(t *testing.T) {
			url := start(t, append(args, "-proxy", "127.0.0.0/8", "-list", "Googlebot="+list)...)
			for _, c := range []struct {
				agent, addr, text string
				max               int
			}{
				{"Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0", "9.0.0.1", "Welcome, person", 300},
				{"Googlebot/2.1", "66.249.64.1", "Welcome, verified search Googlebot", 10},
				{"Googlebot/2.1", "9.0.0.1", "Welcome, impostor search Googlebot", 10},
				{"GPTBot/1.2", "9.0.0.1", "Welcome, claimed ai GPTBot", 30},
				{"curl/8.5.0", "9.0.0.1", "Welcome, unknown curl", 20},
			} {
				// Behind the limit requests are refused; a search engine's second may be over by then.
				refused := 0
				for n := range c.max + 1 {
					status, text := visit(t, url, c.agent, c.addr)
					switch status {
					case http.StatusOK:
						require.Equal(t, c.text, text)
					case http.StatusTooManyRequests:
						require.GreaterOrEqual(t, n, c.max, c.agent)
						require.NotEmpty(t, text, "Retry-After")
						refused++
					default:
						t.Fatal(status, text)
					}
				}
				if c.max != 10 || strings.Contains(c.text, "impostor") {
					require.Equal(t, 1, refused, c.agent)
				}
			}
			status, _ := visit(t, url+"robots.txt", "Googlebot/2.1", "9.0.0.1")
			require.Equal(t, http.StatusOK, status, "never refused")
		})
	}
}

func TestShadowRefusesNobody(t *testing.T) {
	url := start(t, "-shadow", "-site-max", "1")
	for range 50 {
		status, _ := visit(t, url, "curl/8", "")
		require.Equal(t, http.StatusOK, status)
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-site-max", "-1"}, {"-site-max", "1000001"}, {"-list", "Googlebot"}, {"-proxy", "10.0.0.1"}, {"-memcached", "localhost"}, {"-no-such-flag"}, {"argument"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, 2, run(t.Context(), &stdout, &stderr, args...), "%q", args)
		require.Contains(t, stderr.String(), "robots: ")
		require.Empty(t, stdout.String())
	}
	var stdout, stderr strings.Builder
	require.Equal(t, 0, run(t.Context(), &stdout, &stderr, "-h"))
	require.Contains(t, stderr.String(), "-memcached")
	for text, args := range map[string][]string{
		"256.0.0.1": {"-listen", "256.0.0.1:0"}, "no/such/file": {"-list", "GPTBot=no/such/file"}, "Nobody": {"-list", "Nobody=x"},
	} {
		stderr.Reset()
		require.Equal(t, 1, run(t.Context(), &stdout, &stderr, args...))
		require.Contains(t, stderr.String(), text)
	}
}
