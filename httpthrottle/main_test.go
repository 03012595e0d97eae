package httpthrottle_test

import (
	"os"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// TestMain says at the end what was skipped.
func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }
