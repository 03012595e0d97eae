// Package memcachedtest gives tests a real memcached: a process, or a running
// server that the user names. Package containertest has the same in a container.
//
// A [Server] lives as long as the test (or benchmark) that asked for it. It can
// be stopped, paused, killed and started again at the same address.
//
// # Environment
//
//   - THROTTLER_MEMCACHED_ADDR: "host:port" of a running server. [Any] returns
//     it instead of starting one.
//   - THROTTLER_REQUIRE_MEMCACHED: if it is 1, a test fails instead of being
//     skipped for want of memcached, of Docker or of an image.
//
// Only tests may import this package.
package memcachedtest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// A Server is one memcached that answers at Addr.
//
// If a method fails, it ends the test that started the Server (tb.Fatal). So
// call them on that test's goroutine, one at a time.
type Server struct {
	// Addr is "host:port", or the path of a socket. It never changes.
	Addr string

	tb   testing.TB
	life Lifecycle
}

// A Lifecycle is the part that differs between a process and a container. Each
// method returns when its effect is visible at the server's address.
type Lifecycle interface {
	Start() error
	Stop() error // does nothing if it is not running
	Kill() error // does nothing if it is not running
	Pause() error
	Resume() error
}

// New returns the Server at addr of the test tb.
func New(tb testing.TB, addr string, life Lifecycle) *Server {
	return &Server{Addr: addr, tb: tb, life: life}
}

// Container is set by package containertest, in those test binaries that import
// it. The error says why there can be no container.
var Container func(tb testing.TB, args ...string) (*Server, error)

// Any returns a server. It is the one at THROTTLER_MEMCACHED_ADDR if that is
// set and there are no args; otherwise a [Process] if memcached is installed;
// otherwise a [Container]. If none is possible the test is skipped.
//
// The user's own server is shared and may hold other items. A test that stops
// or pauses it is skipped; such a test should ask for a [Process].
func Any(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if addr := os.Getenv("THROTTLER_MEMCACHED_ADDR"); addr != "" && len(args) == 0 {
		return users(tb, addr)
	}
	if _, err := exec.LookPath("memcached"); err == nil {
		return Process(tb, args...)
	}
	if Container != nil {
		s, err := Container(tb, args...)
		if err == nil {
			return s
		}
		tb.Logf("no container either: %v", err)
	}
	Unavailable(tb, "memcached is not installed: apt-get install memcached, or set THROTTLER_MEMCACHED_ADDR")
	return nil
}

// users returns the user's own server at addr.
func users(tb testing.TB, addr string) *Server {
	tb.Helper()
	s := &Server{Addr: addr, tb: tb}
	if err := s.Ping(patience); err != nil {
		tb.Fatalf("memcachedtest: THROTTLER_MEMCACHED_ADDR: %v", err)
	}
	return s
}

// Unavailable skips the test, or fails it where memcached is required. It does
// not return.
func Unavailable(tb testing.TB, format string, args ...any) {
	tb.Helper()
	skiptest.Missing(tb, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// Stop ends the server and waits for that: its connections close, its items are
// gone, and its port refuses. It stays stopped.
func (s *Server) Stop() {
	s.tb.Helper()
	s.do("stop", Lifecycle.Stop)
}

// Kill ends the server at once, also if it is paused.
func (s *Server) Kill() {
	s.tb.Helper()
	s.do("kill", Lifecycle.Kill)
}

// Start starts a stopped or killed server, empty, at the same Addr, and returns
// when it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.do("start", Lifecycle.Start)
}

// Pause makes the server hang: it accepts connections and never answers.
func (s *Server) Pause() {
	s.tb.Helper()
	s.do("pause", Lifecycle.Pause)
}

// Resume continues a paused server, with its items, its connections, and what
// was sent to it meanwhile.
func (s *Server) Resume() {
	s.tb.Helper()
	s.do("resume", Lifecycle.Resume)
}

func (s *Server) do(what string, step func(Lifecycle) error) {
	s.tb.Helper()
	if s.life == nil {
		Unavailable(s.tb, "memcachedtest: cannot %s the user's own server: unset THROTTLER_MEMCACHED_ADDR", what)
	}
	if err := step(s.life); err != nil {
		s.tb.Fatalf("memcachedtest: %s %s: %v", what, s.Addr, err)
	}
}

// Ping returns nil if the server answers within timeout.
func (s *Server) Ping(timeout time.Duration) error {
	_, err := ask(s.Addr, "version", timeout)
	return err
}

// Command sends line and CR LF over a new connection and returns the lines of
// the answer. The END of a list is left out; another last line (OK, STORED,
// ERROR, "SERVER_ERROR …") is not. After "VALUE" comes the item's data as one
// element.
//
// For a command with data, line holds both: "set key 0 60 2\r\nhi".
func (s *Server) Command(tb testing.TB, line string) []string {
	tb.Helper()
	answer, err := ask(s.Addr, line, patience)
	if err != nil {
		tb.Fatalf("memcachedtest: %q: %v", line, err)
	}
	return answer
}
