package login_test

import (
	"os"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// TestMain says at the end what was skipped.
func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

// takesLong skips a test with -short. The race detector makes it five times as long, and
// would find little: at any time hardly more than one of its goroutines runs.
func takesLong(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a while; run it without -short")
	}
}
