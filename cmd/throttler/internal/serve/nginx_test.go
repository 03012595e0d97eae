package serve_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nginxWith is nginx with more directives for location /, and more locations.
func nginxWith(t *testing.T, application, directives, locations string) string {
	t.Helper()
	nginx := edited("nginx", edit{"auth_request /throttler;", "auth_request /throttler;\n" + directives}, edit{"    location / {", locations + "\n    location / {"})
	return "http://" + nginx(t, start(t, limits).listen, application, false)
}

// statuses are those of as many requests for a path.
func statuses(t *testing.T, client *http.Client, n int, url string) (all []int) {
	t.Helper()
	for range n {
		answer, _ := request(t, client, "GET", url, "")
		all = append(all, answer.StatusCode)
	}
	return all
}

func TestNginxStillForbidsWhatItForbids(t *testing.T) {
	site := nginxWith(t, application(t), "deny 127.0.0.9;", "")
	assert.Equal(t, []int{403, 403, 403, 403, 403}, statuses(t, clientAt(t, "127.0.0.9"), 5, site+"/page/1"))
	assert.Equal(t, []int{200, 200, 200, 429}, statuses(t, clientAt(t, "127.0.0.2"), 4, site+"/page/1"))
}

func TestNginxCountsARequestOnceThatItRedirectsInternally(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "page"), 0o755))
	require.NoError(t, os.Chmod(root, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "page", "index.html"), []byte("index"), 0o644))
	site := nginxWith(t, application(t), "rewrite ^/page/again$ /page/ last; error_page 404 /page/none;", fmt.Sprintf(`
    location = /page/index.html { root %[1]s; auth_request /throttler; error_page 403 = @limited; }
    location = /page/ { root %[1]s; auth_request /throttler; error_page 403 = @limited;
        auth_request_set $throttler_status $upstream_http_x_throttler_status; index index.html; }`, root))
	client := clientAt(t, "127.0.0.2")
	answer, body := request(t, client, "GET", site+"/page/", "")
	require.Equal(t, 200, answer.StatusCode)
	require.Equal(t, "index", body)
	assert.Equal(t, []int{200, 200, 429, 429}, statuses(t, client, 4, site+"/page/"))
}

func TestNginxTellsWhatIsLeftAfterAnInternalRedirectToo(t *testing.T) {
	conf, err := os.ReadFile("../../proxies/nginx.conf")
	require.NoError(t, err)
	_, lines, _ := strings.Cut(string(conf), "location / {")
	lines, _, _ = strings.Cut(lines, "proxy_pass")
	site := nginxWith(t, application(t), "", fmt.Sprintf("location ~ ^/page/[ab]$ { root %s; try_files /none /page/other; %s }", t.TempDir(), lines))
	client := clientAt(t, "127.0.0.2")
	for i, path := range []string{"/page/a", "/page/1", "/page/b"} {
		answer, _ := request(t, client, "GET", site+path, "")
		require.Equal(t, 200, answer.StatusCode)
		assert.Equal(t, []string{`"address";q=3;w=3600`}, answer.Header.Values("RateLimit-Policy"), path)
		require.Len(t, answer.Header.Values("RateLimit"), 1)
		assert.Contains(t, answer.Header.Get("RateLimit"), fmt.Sprintf(`"address";r=%d;t=`, 2-i), path)
	}
	answer, _ := request(t, client, "GET", site+"/page/a", "")
	assert.Equal(t, 429, answer.StatusCode)
	assert.Contains(t, answer.Header.Get("RateLimit"), `"address";r=0;t=`)
	assert.NotEmpty(t, answer.Header.Get("Retry-After"))
}

func TestNginxAnswersAFieldThatHTTPDoesNotAllow(t *testing.T) {
	site := nginxWith(t, application(t), "", "")
	answer, _ := raw(t, "127.0.0.2", site, "GET /page/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: a\x01b\r\n\r\n")
	assert.Equal(t, 400, answer.StatusCode)
	assert.Equal(t, []int{200, 200, 200, 429}, statuses(t, clientAt(t, "127.0.0.2"), 4, site+"/page/1"))
}

// manyPublic is a rule with so many public conditions that its policy is larger
// than a buffer of a proxy.
func manyPublic() string {
	var rules strings.Builder
	rules.WriteString("trust: [127.0.0.1]\nrules:\n  - name: pages\n    either:\n")
	for i := range 500 {
		fmt.Fprintf(&rules, "      - {name: \"a condition with a long name, number %d\", value: \"{address}\", max: 3, per: 1h, public: true}\n", i)
	}
	return rules.String()
}

func TestALargePublicPolicyLetsNothingPass(t *testing.T) {
	for name, proxy := range proxies {
		t.Run(name, func(t *testing.T) {
			site := "http://" + proxy(t, start(t, manyPublic()).listen, application(t), false)
			assert.Equal(t, []int{200, 200, 200, 429, 429}, statuses(t, clientAt(t, "127.0.0.2"), 5, site+"/page/1"))
		})
	}
}
