package serve_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// caddyWith is caddy with more directives for the site, before an application.
func caddyWith(t *testing.T, service, application, directives string) string {
	t.Helper()
	source, err := os.ReadFile("../../proxies/Caddyfile")
	require.NoError(t, err)
	text := strings.Replace(string(source), "	reverse_proxy", directives+"\n	reverse_proxy", 1)
	address := freeAddress(t)
	text = strings.NewReplacer("127.0.0.1:8080", address, "127.0.0.1:4180", service, "127.0.0.1:8000", application,
		"127.0.0.1:4189", freeAddress(t)).Replace(text)
	config := filepath.Join(t.TempDir(), "Caddyfile")
	require.NoError(t, os.WriteFile(config, []byte("{\n	admin off\n}\n"+text), 0o644))
	run(t, address, "caddy", "run", "--config", config, "--adapter", "caddyfile")
	return "http://" + address
}

// admin asks for a password in a part of the site: alice, "secret".
const adminDirectives = `	basicauth /admin {
		alice JDJhJDE0JEtwYjJ2ZXI0TEdJRjBDWFp4S1VJUE9JaC9IaUcyc1I3YXI4bENsS3N2V0dxTTZYWG9RRzZT
	}
	respond /forbidden 403`

func TestCaddyStillAsksForPasswordsAndForbids(t *testing.T) {
	s := startAt(t, freeAddress(t), limits)
	for _, stopped := range []bool{false, true} {
		site := caddyWith(t, s.listen, application(t), adminDirectives)
		if stopped {
			s.stop()
		}
		answer, body := request(t, http.DefaultClient, "GET", site+"/admin", "")
		assert.Equal(t, 401, answer.StatusCode, "stopped: %v", stopped)
		assert.NotContains(t, body, "GET /admin", "the application is not asked")
		answer, _ = request(t, http.DefaultClient, "GET", site+"/forbidden", "")
		assert.Equal(t, 403, answer.StatusCode, "stopped: %v", stopped)
		answer, _ = request(t, http.DefaultClient, "GET", site+"/page/1", "")
		assert.Equal(t, 200, answer.StatusCode, "stopped: %v", stopped)
	}
}

func TestCaddyDeliversARequestOnceIfTheApplicationDropsIt(t *testing.T) {
	var delivered atomic.Int64
	dropping := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		delivered.Add(1)
		conn, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			conn.Close()
		}
	}))
	t.Cleanup(dropping.Close)
	site := caddyWith(t, start(t, limits).listen, dropping.Listener.Addr().String(), "")
	answer, _ := request(t, http.DefaultClient, "POST", site+"/free?order=1", "")
	assert.Equal(t, 502, answer.StatusCode)
	assert.EqualValues(t, 1, delivered.Load())
}

func TestCaddyLetsPassWhileTheServiceHangs(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and answers none
	require.NoError(t, err)
	defer hung.Close()
	site := caddyWith(t, hung.Addr().String(), application(t), "")
	begin := time.Now()
	answer, body := request(t, http.DefaultClient, "POST", site+"/page/1", "a body")
	assert.Equal(t, 200, answer.StatusCode)
	assert.Equal(t, "POST /page/1 a body", body)
	assert.Less(t, time.Since(begin), 30*time.Second)
}
