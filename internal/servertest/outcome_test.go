package servertest_test

import (
	"fmt"
	"runtime"
	"testing"
)

// recorder stands in for a test and keeps how it ended.
type recorder struct {
	testing.TB
	failed, skipped bool
	message         string
}

// outcome runs f as a test of its own would and returns how it ended.
func outcome(t *testing.T, f func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Fatal(fmt.Sprintf(format, args...))
}

func (r *recorder) Fatal(args ...any) {
	r.failed, r.message = true, fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.skipped, r.message = true, fmt.Sprint(args...)
	runtime.Goexit()
}
