package serve_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rewrite puts text in the place of the rule file of the service of this test.
func rewrite(t *testing.T, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(t.TempDir()), "*", "rules.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, os.WriteFile(files[0]+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(files[0]+".new", files[0]))
}

// inUse reports whether the service tells that its rule file is in use.
func inUse(t *testing.T, s *service) bool {
	t.Helper()
	_, metrics := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
	return strings.Contains(metrics, "\nthrottler_rules_current 1\n") // not its help, which is "1 if …"
}

func TestAProxyThatAReloadAddsNeedsARestart(t *testing.T) {
	s := start(t, limits)
	rewrite(t, limits+`
proxy:
  server: http://127.0.0.1:1
  logins: [{for: {path: [/login]}, name: {basic: true}, right: {status: [200]}}]
`)
	require.Eventually(t, func() bool { return !inUse(t, s) }, 30*time.Second, 50*time.Millisecond)
	rewrite(t, limits)
	require.Eventually(t, func() bool { return inUse(t, s) }, 30*time.Second, 50*time.Millisecond)
	s.stop()
	assert.Contains(t, s.log.String(), "restart the service to begin with the proxy")
}

func TestServersOfTheRuleFileComeAndGoWithoutARestart(t *testing.T) {
	t.Parallel()
	first, second := servertest.NewMemcached(t), servertest.NewMemcached(t)
	s := start(t, limits+"servers: ["+first.Addr+"]\n")
	statuses := func() (statuses []int) {
		for range 4 {
			answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
			statuses = append(statuses, answer.StatusCode)
		}
		return statuses
	}
	require.Equal(t, []int{200, 200, 200, 429}, statuses())
	_, port, err := net.SplitHostPort(second.Addr)
	require.NoError(t, err)
	knows := func() bool {
		_, metrics := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
		return strings.Contains(metrics, `server_port="`+port+`"`)
	}
	require.False(t, knows())
	rewrite(t, limits+"servers: ["+second.Addr+"]\n")
	require.Eventually(t, knows, 30*time.Second, 50*time.Millisecond)
	first.Kill()
	require.Equal(t, []int{200, 200, 200, 429}, statuses(), "it begins anew on the other server")

	// A file with a list that cannot be used changes its rules, and no server.
	for _, more := range []struct {
		servers, max string
		left         []int // after the first request that passes
	}{
		{"servers: [nonsense..invalid:1]\n", "max: 5", []int{200, 429, 429, 429}},
		{"", "max: 8", []int{200, 200, 429, 429}},
	} {
		rewrite(t, limits+more.servers)
		rewrite(t, strings.Replace(limits, "max: 3", more.max, 1)+more.servers)
		require.Eventually(t, func() bool {
			answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
			return answer.StatusCode == 200
		}, 30*time.Second, 50*time.Millisecond)
		assert.Equal(t, more.left, statuses(), "beside those that it held")
		assert.True(t, knows())
		require.Eventually(t, func() bool { return !inUse(t, s) }, 30*time.Second, 50*time.Millisecond, "%q", more.servers)
		rewrite(t, limits+"servers: ["+second.Addr+"]\n")
		require.Eventually(t, func() bool { return inUse(t, s) }, 30*time.Second, 50*time.Millisecond)
	}
	s.stop()
	log := s.log.String()
	assert.Contains(t, log, "servers have changed")
	assert.Contains(t, log, "the list stays as it is")
	assert.Contains(t, log, "restart the service")
}
