package serve_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spellings are of the path /page/1, as far as a proxy or an application may take them
// for it.
var spellings = []string{
	"/page/1?" + strings.Repeat("a", 7000), "/page/" + strings.Repeat("a/", 3500), "/page/1?" + strings.Repeat("a", 12100),
	"/page/1%00", "/page/%", "/page/%zz", `/page/1\..\x`, "//page//1", "/./page/1", "/x/..%2fpage/1", "/page%2f1", "/page/1;x",
	"/%70age/1", "/page/1#x", "/page/1/../1", "/a/../page/1", "/page/%2e%2e/page/1", "/%2e/page/1", "/page/1?#", "/;x/page/1",
	"/page;x/1", "/page/..;/page/1", "/page/%u0031", "/page/x%2F..%2F..%2Ffree",
}

// said are fields that clients may send to be taken for somebody else, for another request,
// or to be too large for what the proxy asks.
var said = []string{
	"Accept", "Cookie", "User-Agent", "Authorization", "X-Forwarded-For", "X-Real-Ip", "Forwarded", "Via", "X-Forwarded-Uri", "X-Forwarded-Method",
	"X-Forwarded-Host", "X-Original-Uri", "X-Original-Method", "X-Throttler-Status", "Range", "If-None-Match", "Upgrade", "Expect",
}

func TestNoSpellingAndNoFieldEvadesALimit(t *testing.T) {
	for name, proxy := range proxies {
		t.Run(name, func(t *testing.T) {
			address := proxy(t, start(t, limits).listen, application(t), false)
			client := clientAt(t, "127.0.0.2")
			require.Equal(t, []int{200, 200, 200, 429}, statuses(t, client, 4, "http://"+address+"/page/1"))
			for _, spelling := range spellings {
				assert.True(t, refused(t, address, spelling, ""), "%.40q of %d bytes", spelling, len(spelling))
			}
			for _, field := range said {
				for _, value := range []string{"127.0.0.9", "/free", "GET", "*/*", strings.Repeat("a", 8100), strings.Repeat("a", 14000), strings.Repeat("a", 30000)} {
					assert.True(t, refused(t, address, "/page/1", field+": "+value+"\r\n"), "%s of %d bytes", field, len(value))
				}
			}
			assert.Equal(t, []int{429}, statuses(t, client, 1, "http://"+address+"/page/1"), "the service is not taken for dead")
			assert.Equal(t, []int{200}, statuses(t, clientAt(t, "127.0.0.3"), 1, "http://"+address+"/page/1"), "others pass")
		})
	}
}

// Applications read the first of two, or the last.
func TestASecondFieldOrCookieEvadesNoLimit(t *testing.T) {
	const keys = `
trust: [127.0.0.1]
rules:
  - name: keys
    either:
      - {name: key, value: "{header:X-Api-Key}", max: 3, per: 1h, missing: skip}
      - {name: session, value: "{cookie:session}", max: 3, per: 1h, missing: skip}
`
	for name, proxy := range proxies {
		t.Run(name, func(t *testing.T) {
			address := proxy(t, start(t, keys).listen, application(t), false)
			for _, fields := range [][2]string{
				{"X-Api-Key: key\r\nX-Api-Key: %d\r\n", "X-Api-Key: %d\r\nX-Api-Key: key\r\n"},
				{"Cookie: session=%d; session=s\r\n", "Cookie: session=s\r\nCookie: session=%d\r\n"},
			} {
				passed := 0
				for i := range 8 {
					if !refused(t, address, "/", fmt.Sprintf(fields[i%2], i)) {
						passed++
					}
				}
				assert.Equal(t, 3, passed, fields)
			}
		})
	}
}

// refused reports whether a request of 127.0.0.2 gets no answer of the application.
func refused(t *testing.T, address, target, fields string) bool {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 5 * time.Second}
	conn, err := d.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	// An error: the proxy has answered before it read it all.
	_, _ = conn.Write([]byte("GET " + target + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n" + fields + "\r\n"))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return err != nil || answer.StatusCode >= 400
}
