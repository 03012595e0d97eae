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

// SetMaxHeld has proxies hold so many bytes of bodies, until the test ends: in all, and of one
// client.
func SetMaxHeld(t *testing.T, all, ofOne int) {
	allBefore, ofOneBefore := maxHeld, maxHeldOfOne
	maxHeld, maxHeldOfOne = all, ofOne
	t.Cleanup(func() { maxHeld, maxHeldOfOne = allBefore, ofOneBefore })
}

// SetTransport replaces what asks the server.
func (p *Proxy) SetTransport(t http.RoundTripper) { p.reverse.Transport = t }
