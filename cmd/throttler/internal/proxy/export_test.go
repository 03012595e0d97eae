package proxy

import (
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
