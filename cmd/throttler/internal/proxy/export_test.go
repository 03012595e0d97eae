package proxy

import (
	"net/http"
	"testing"
	"time"
)

// SetFirstTimeout has proxies wait so long for the first bytes of a body, until the test
// ends.
func SetFirstTimeout(t *testing.T, d time.Duration) {
	before := firstTimeout
	firstTimeout = d
	t.Cleanup(func() { firstTimeout = before })
}

// SetTransport replaces what asks the server.
func (p *Proxy) SetTransport(t http.RoundTripper) { p.reverse.Transport = t }
