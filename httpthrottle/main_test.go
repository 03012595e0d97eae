package httpthrottle_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// TestMain lets a test start its own binary as a process that sends requests. It says at the
// end what was skipped.
func TestMain(m *testing.M) {
	if j := os.Getenv(jobVariable); j != "" {
		if err := work(j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(skiptest.Run(m))
}
