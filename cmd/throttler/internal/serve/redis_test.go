package serve_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/serve"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheServiceKeepsRecordsInRedis(t *testing.T) {
	server := servertest.NewRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	s := start(t, limits+"store: redis://"+server.Addr+"\n")
	other := startWith(t, limits, func(o *serve.Options) { o.Store = "redis://" + server.Addr })
	statuses := func(services ...*service) (statuses []int) {
		for _, s := range services {
			answer, _ := ask(t, s, "/auth", "203.0.113.7", "/page/1")
			statuses = append(statuses, answer.StatusCode)
		}
		return statuses
	}
	require.Equal(t, []int{200, 200, 200, 429, 429}, statuses(s, other, s, other, s), "they count together")
	metrics := func() string {
		_, metrics := request(t, http.DefaultClient, "GET", "http://"+s.admin+"/metrics", "")
		return metrics
	}
	_, port, _ := strings.Cut(server.Addr, ":")
	assert.Regexp(t, `throttler_server_up\{.*server_port="`+port+`".*\} 1`, metrics())
	assert.Regexp(t, `throttler_server_memory_usage_bytes\{`, metrics())
	status := func(path string) int {
		answer, _ := request(t, http.DefaultClient, "GET", "http://"+s.admin+path, "")
		return answer.StatusCode
	}
	require.Equal(t, 200, status("/readyz"))

	server.Kill()
	require.Eventually(t, func() bool { statuses(s); return status("/readyz") == 503 }, 30*time.Second, 10*time.Millisecond)
	assert.Regexp(t, `throttler_server_up\{.*server_port="`+port+`".*\} 0`, metrics())
	server.Start()
	require.Eventually(t, func() bool { return status("/readyz") == 200 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, []int{429}, statuses(s), "what was saved holds")

	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), "a server is back") }, 30*time.Second, 10*time.Millisecond)
	s.stop()
	assert.Contains(t, s.log.String(), "a server is down")
	assert.NotContains(t, s.log.String(), "a server has forgotten")
}
