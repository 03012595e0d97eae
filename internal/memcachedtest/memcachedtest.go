// Package memcachedtest gives tests a real memcached: a process of its own, a
// container, or a server that the user names.
//
// A [Server] lives as long as the test (or benchmark) that asked for it, and it
// can be stopped, paused, killed and started again at the same address, so that
// a test can see what its client makes of that.
//
// # Environment
//
//   - THROTTLER_MEMCACHED_ADDR: "host:port" of a running server that [Any] hands
//     out instead of starting one.
//   - THROTTLER_MEMCACHED_IMAGE: the image of [Container], by default
//     memcached:1.6-alpine. Its command must be found as "memcached".
//   - THROTTLER_REQUIRE_MEMCACHED: set to 1, a test fails where it would be
//     skipped for want of memcached, of Docker or of an image.
//
// The variables of testcontainers-go hold for containers, above all
// TESTCONTAINERS_RYUK_DISABLED=true, which does without its reaper's image:
// containers are removed by the test itself, unless it is killed.
//
// Only tests may import this package.
package memcachedtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// A Server is one memcached that answers at Addr.
//
// Its methods end the test that started it (tb.Fatal) when they fail, so they
// belong on that test's goroutine, one at a time.
type Server struct {
	// Addr is "host:port", or the path of a socket. It stays the same for the
	// life of the Server.
	Addr string

	tb   testing.TB
	life lifecycle
}

// lifecycle is what a process and a container do differently. Each method
// returns when its effect can be seen at the server's address.
type lifecycle interface {
	start() error
	stop() error // does nothing if it is not running
	kill() error // does nothing if it is not running
	pause() error
	resume() error
}

// Any returns the server at THROTTLER_MEMCACHED_ADDR if that is set and there
// are no args; else a [Process] where memcached is installed; else a
// [Container]. If none of them can be had the test is skipped.
//
// The user's own server is shared: it may hold other items, and a test that
// stops or pauses it is skipped. Such a test asks for a [Process].
func Any(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if addr := os.Getenv("THROTTLER_MEMCACHED_ADDR"); addr != "" && len(args) == 0 {
		return users(tb, addr)
	}
	if _, err := binary(); err == nil {
		return Process(tb, args...)
	}
	if err := containers(); err != nil {
		tb.Logf("no container either: %v", err)
		unavailable(tb, "memcached is not installed: apt-get install memcached, or set THROTTLER_MEMCACHED_ADDR")
	}
	return Container(tb, args...)
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

// unavailable skips the test with one line, or fails it where memcached is
// required. It does not return.
func unavailable(tb testing.TB, format string, args ...any) {
	tb.Helper()
	why := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	if os.Getenv("THROTTLER_REQUIRE_MEMCACHED") == "1" {
		tb.Fatal(why)
	}
	skiptest.Skip(tb, why)
}

// Stop asks the server to end and waits for that: its connections close, its
// items are gone, and its port refuses. A stopped server stays stopped.
func (s *Server) Stop() {
	s.tb.Helper()
	s.do("stop", lifecycle.stop)
}

// Kill ends the server at once, running or paused.
func (s *Server) Kill() {
	s.tb.Helper()
	s.do("kill", lifecycle.kill)
}

// Start starts a server that was stopped or killed, empty, at the same Addr,
// and returns when it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.do("start", lifecycle.start)
}

// Pause makes the server hang: it still accepts connections and never answers.
func (s *Server) Pause() {
	s.tb.Helper()
	s.do("pause", lifecycle.pause)
}

// Resume lets a paused server go on, with its items and its connections, and
// with what was sent to it meanwhile.
func (s *Server) Resume() {
	s.tb.Helper()
	s.do("resume", lifecycle.resume)
}

func (s *Server) do(what string, step func(lifecycle) error) {
	s.tb.Helper()
	if s.life == nil {
		unavailable(s.tb, "memcachedtest: cannot %s the user's own server: unset THROTTLER_MEMCACHED_ADDR", what)
	}
	if err := step(s.life); err != nil {
		s.tb.Fatalf("memcachedtest: %s %s: %v", what, s.Addr, err)
	}
}

// Ping asks the server for its version and returns nil if it answers within
// timeout.
func (s *Server) Ping(timeout time.Duration) error {
	_, err := ask(s.Addr, "version", timeout)
	return err
}

// Command sends line, ended by CR LF, over a connection of its own and returns
// the lines of the answer without their ends. The END of a list is left out;
// any other last line (OK, STORED, ERROR, "SERVER_ERROR …") is part of the
// answer. After "VALUE" comes the item's data as one element, whatever it holds.
//
// A command with data is one line to Command: "set key 0 60 2\r\nhi".
func (s *Server) Command(tb testing.TB, line string) []string {
	tb.Helper()
	answer, err := ask(s.Addr, line, patience)
	if err != nil {
		tb.Fatalf("memcachedtest: %q: %v", line, err)
	}
	return answer
}
