// Package skiptest skips tests for want of a program or a server, and lists
// them at the end, where "go test" without -v would say nothing. It says so each
// time: the go command keeps no result of a package with such a test.
//
// Slow tests run in full if THROTTLER_SLOW is set, and not to 0.
//
//	func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }
//
//	func TestOverMemcached(t *testing.T) {
//		path := skiptest.Program(t, "memcached", "memcached")
//		…
//	}
//
// Only tests may import this package.
package skiptest

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A list counts skipped tests by reason.
type list struct {
	mu      sync.Mutex
	tests   map[string]int
	missing bool // something was: not all of them are only slow
}

var skipped list

// Skip skips a test. why says in one line what is missing, and how to get it.
func Skip(tb testing.TB, why string) {
	tb.Helper()
	skip(tb, why, true)
}

// Missing skips a test, or fails it if THROTTLER_REQUIRE_MEMCACHED is 1, as in CI. why says in
// one line what is missing, and how to get it.
func Missing(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("THROTTLER_REQUIRE_MEMCACHED") == "1" {
		tb.Fatal(why)
	}
	Skip(tb, why)
}

// Program returns the path of a program. If there is none, it calls [Missing] with the package
// of Debian that has it.
func Program(tb testing.TB, program, pkg string) (path string) {
	tb.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		Missing(tb, program+" is not installed: apt-get install "+pkg)
	}
	return path
}

// Slow skips a test that takes long, unless tests are to run in full.
func Slow(tb testing.TB) {
	tb.Helper()
	if !InFull() {
		skip(tb, "slow: set THROTTLER_SLOW=1", false)
	}
}

// InFull reports whether slow tests are to run in full.
func InFull() bool { return !slices.Contains([]string{"", "0"}, os.Getenv("THROTTLER_SLOW")) }

func skip(tb testing.TB, why string, missing bool) {
	tb.Helper()
	tb.Cleanup(func() {
		if tb.Skipped() { // not if tb only stands in for a test
			skipped.add(why, missing)
		}
	})
	tb.Skip(why)
}

// Run runs the tests of a package, prints the number of skipped tests for each
// reason, and returns the exit status.
func Run(m *testing.M) int {
	status := m.Run()
	skipped.write(console(), packageName())
	if skipped.missing {
		spoil()
	}
	return status
}

// spoil has the go command keep no result of this run, since it would show that
// next time and no list. A line that it does not understand, in the log of what
// the tests have looked at, does that.
func spoil() {
	log := flag.Lookup("test.testlogfile")
	if log == nil || log.Value.String() == "" {
		return
	}
	if file, err := os.OpenFile(log.Value.String(), os.O_WRONLY|os.O_APPEND, 0); err == nil {
		file.WriteString("skipped\n")
		file.Close()
	}
}

func (l *list) add(why string, missing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tests == nil {
		l.tests = map[string]int{}
	}
	l.tests[why]++
	l.missing = l.missing || missing
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
