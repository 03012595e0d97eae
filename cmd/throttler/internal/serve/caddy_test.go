package serve_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// admin asks for a password in a part of the site: alice, "secret".
const adminDirectives = `	basicauth /admin {
		alice JDJhJDE0JEtwYjJ2ZXI0TEdJRjBDWFp4S1VJUE9JaC9IaUcyc1I3YXI4bENsS3N2V0dxTTZYWG9RRzZT
	}
	respond /forbidden 403`

func TestCaddyStillAsksForPasswordsAndForbids(t *testing.T) {
	s := startAt(t, freeAddress(t), limits)
	for _, stopped := range []bool{false, true} {
		site := "http://" + edited("caddy", edit{"	reverse_proxy", adminDirectives + "\n	reverse_proxy"})(t, s.listen, application(t), false)
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
	site := "http://" + proxies["caddy"](t, start(t, limits).listen, dropping.Listener.Addr().String(), false)
	answer, _ := request(t, http.DefaultClient, "POST", site+"/free?order=1", "")
	assert.Equal(t, 502, answer.StatusCode)
	assert.EqualValues(t, 1, delivered.Load())
}

func TestCaddyLetsPassWhileTheServiceHangs(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and answers none
	require.NoError(t, err)
	defer hung.Close()
	site := "http://" + edited("caddy", edit{"response_header_timeout 10s", "response_header_timeout 1s"})(t, hung.Addr().String(), application(t), false)
	begin := time.Now()
	answer, body := request(t, http.DefaultClient, "POST", site+"/page/1", "a body")
	assert.Equal(t, 200, answer.StatusCode)
	assert.Equal(t, "POST /page/1 a body", body)
	assert.Less(t, time.Since(begin), 30*time.Second)
}
