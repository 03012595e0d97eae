package serve_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHAProxySurvivesARequestWithManyFields(t *testing.T) {
	s := start(t, limits)
	site := "http://" + proxies["haproxy"](t, s.listen, application(t), false)
	client := clientAt(t, "127.0.0.2")
	var fields strings.Builder
	for i := range 98 {
		fmt.Fprintf(&fields, "X-%d: a\r\n", i)
	}
	answer, _ := raw(t, "127.0.0.2", site, "GET /page/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+fields.String()+"\r\n")
	assert.Equal(t, 200, answer.StatusCode)
	cookies := strings.Repeat("Cookie: a=b\r\n", 95)
	answer, _ = raw(t, "127.0.0.2", site, "GET /page/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+cookies+"\r\n")
	assert.Equal(t, 200, answer.StatusCode)
	var statuses []int
	for range 2 {
		answer, _ := request(t, client, "GET", site+"/page/1", "")
		statuses = append(statuses, answer.StatusCode)
	}
	assert.Equal(t, []int{200, 429}, statuses, "it lives, and has counted")
}

func TestHAProxyRefusesFieldsThatItCannotPassOn(t *testing.T) {
	s := start(t, limits)
	site := "http://" + proxies["haproxy"](t, s.listen, application(t), false)
	client := clientAt(t, "127.0.0.2")
	for _, header := range []string{"Cookie", "X-Api-Key"} {
		answer, _ := request(t, client, "GET", site+"/page/1", "", header, strings.Repeat("x", 13000))
		assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode, header)
	}
	answer, _ := request(t, client, "GET", site+"/page/"+strings.Repeat("x", 13000), "")
	assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode, "a long path")
	for range 3 {
		answer, _ = request(t, client, "GET", site+"/page/"+strings.Repeat("x", 9000), "", "X-Other", strings.Repeat("x", 4000))
		assert.Equal(t, 200, answer.StatusCode, "a field that no rule reads")
	}
	answer, _ = request(t, client, "GET", site+"/page/1", "")
	assert.Equal(t, 429, answer.StatusCode, "throttler is not taken for dead")
}

func TestHAProxyWaitsForADeadServiceOnceOnly(t *testing.T) {
	s := startAt(t, freeAddress(t), limits)
	site := "http://" + proxies["haproxy"](t, s.listen, application(t), false)
	client := clientAt(t, "127.0.0.2")
	s.stop()
	took := func() time.Duration {
		begin := time.Now()
		answer, _ := request(t, client, "GET", site+"/page/1", "")
		require.Equal(t, 200, answer.StatusCode)
		return time.Since(begin)
	}
	noticed := took()
	waited, others := 0, time.Duration(0)
	for range 20 {
		if d := took(); d > noticed/2 {
			waited++
		} else {
			others += d
		}
	}
	// It tries again after a second or two, which a busy machine may take for the others.
	assert.LessOrEqual(t, waited, 2+int(others/time.Second), "the first took %v, those that did not wait %v", noticed, others)
}

func TestHAProxyComesBackToAServiceThatWasDead(t *testing.T) {
	t.Parallel()
	s := startAt(t, freeAddress(t), limits)
	site := "http://" + proxies["haproxy"](t, s.listen, application(t), false)
	client := clientAt(t, "127.0.0.2")
	s.stop()
	answer, _ := request(t, client, "GET", site+"/page/1", "")
	require.Equal(t, 200, answer.StatusCode)
	startAt(t, s.listen, limits)
	refused := func() bool {
		answer, _ := request(t, client, "GET", site+"/page/1", "")
		return answer.StatusCode == 429
	}
	require.Eventually(t, refused, time.Minute, 100*time.Millisecond)
}
