// Package skiptest skips tests for want of a program or a server, and lists
// them at the end, where "go test" without -v would say nothing.
//
//	func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }
//
//	func TestOverMemcached(t *testing.T) {
//		if _, err := exec.LookPath("memcached"); err != nil {
//			skiptest.Skip(t, "memcached is not installed: apt-get install memcached")
//		}
//	}
//
// Only tests may import this package.
package skiptest

import (
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A list counts skipped tests by reason.
type list struct {
	mu    sync.Mutex
	tests map[string]int
}

var skipped list

// Skip skips a test. why says in one line what is missing, and how to get it.
func Skip(tb testing.TB, why string) {
	tb.Helper()
	skipped.add(why)
	tb.Skip(why)
}

// Run runs the tests of a package, prints the number of skipped tests for each
// reason, and returns the exit status.
func Run(m *testing.M) int {
	status := m.Run()
	skipped.write(console(), packageName())
	return status
}

func (l *list) add(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tests == nil {
		l.tests = map[string]int{}
	}
	l.tests[why]++
}

// write writes all lines in one call, since other packages write at the same
// time.
func (l *list) write(out io.Writer, of string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines strings.Builder
	for _, why := range slices.Sorted(maps.Keys(l.tests)) {
		fmt.Fprintf(&lines, "skip\t%s\t%d of its tests: %s\n", of, l.tests[why], why)
	}
	io.WriteString(out, lines.String())
}

// packageName returns the path of the tested package, as the go command shows
// it.
func packageName() string {
	build, _ := debug.ReadBuildInfo()
	if build == nil {
		return os.Args[0]
	}
	return strings.TrimSuffix(build.Path, ".test")
}

// console returns a writer that the user sees. The go command drops the output
// of a test that passes, so this is the standard error of the go command, or
// else the terminal, or else the output.
func console() io.Writer {
	for _, name := range []string{fmt.Sprintf("/proc/%d/fd/2", os.Getppid()), "/dev/tty"} {
		if out, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0); err == nil {
			return out
		}
	}
	return os.Stdout
}
