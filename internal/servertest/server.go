// Package servertest gives tests what they need around a program: real servers
// of memcached and Redis, with faults on the way to them, servers of the test's
// own, child processes, free addresses, and a processor that is busy. Package
// containertest has memcached in a container. A [Process] needs no test.
//
// A server lives as long as the test (or benchmark) that asked for it. It can
// be stopped, paused, killed and started again at the same address.
//
// # Environment
//
//   - THROTTLER_MEMCACHED_ADDR: "host:port" of a running memcached.
//     [AnyMemcached] returns it instead of starting one.
//   - THROTTLER_REQUIRE_MEMCACHED: if it is 1, a test fails instead of being
//     skipped for want of memcached, of Redis, of Docker or of an image.
//
// Only tests and bench may import this package.
package servertest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// patience is the time that a step of a server may take on a busy machine.
const patience = 10 * time.Second

// A Server is one server that answers at Addr: a process, a container, or the user's own.
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

// Stop ends the server and waits for that: its connections close and its port refuses. It
// stays stopped.
func (s *Server) Stop() {
	s.tb.Helper()
	s.do("stop", Lifecycle.Stop)
}

// Kill ends the server at once, also if it is paused.
func (s *Server) Kill() {
	s.tb.Helper()
	s.do("kill", Lifecycle.Kill)
}

// Start starts a stopped or killed server at the same Addr, and returns when it answers. It
// has what it had saved: memcached nothing.
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
		Unavailable(s.tb, "servertest: cannot %s the user's own server: unset THROTTLER_MEMCACHED_ADDR", what)
	}
	if err := step(s.life); err != nil {
		s.tb.Fatalf("servertest: %s %s: %v", what, s.Addr, err)
	}
}

// Unavailable skips the test, or fails it where servers are required. It does
// not return.
func Unavailable(tb testing.TB, format string, args ...any) {
	tb.Helper()
	skiptest.Missing(tb, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// freePort returns a free address of 127.0.0.1 at one of ports, and its port.
func freePort(tb testing.TB, ports Ports) (addr, port string) {
	tb.Helper()
	addr, err := FreeAddr(ports)
	if err != nil {
		tb.Fatalf("servertest: %v", err)
	}
	_, port, _ = net.SplitHostPort(addr)
	return addr, port
}

// directory returns one that is removed with the test. That of tb may be too long for
// a socket.
func directory(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "server")
	if err != nil {
		tb.Fatalf("servertest: %v", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// network returns "unix" for the path of a socket and "tcp" for "host:port", as
// gomemcache does.
func network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}

// A Process is the process of a server, started or not.
type Process struct {
	Path string
	Args []string
	Env  []string // beside that of this process

	// Answers asks the server at its address. own: the process pid has answered.
	Answers func(pid int, timeout time.Duration) (own bool, err error)

	cmd    *exec.Cmd       // nil until it is started
	exited <-chan struct{} // closed at its end
	output *bytes.Buffer   // to be read only after its end
}

// server starts p, which ends with the test, as the server at addr.
func (p *Process) server(tb testing.TB, addr string) (Server, error) {
	tb.Cleanup(func() { p.Kill() })
	return Server{Addr: addr, tb: tb, life: p}, p.Start()
}

// Start starts the process, and returns when it answers.
func (p *Process) Start() error {
	if p.running() {
		return errors.New("it is running")
	}
	p.output = new(bytes.Buffer)
	p.cmd = exec.Command(p.Path, p.Args...)
	p.cmd.Env = append(os.Environ(), p.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	var err error
	if p.exited, err = Start(p.cmd); err != nil {
		p.cmd = nil
		return err
	}
	if err := p.ready(); err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

// ready waits until this process answers, and not another one on its port.
func (p *Process) ready() error {
	for deadline := time.Now().Add(patience); ; {
		own, err := p.Answers(p.cmd.Process.Pid, patience)
		if own {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%v: %v: %s", p.cmd, p.cmd.ProcessState, p.output)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v does not answer: %v", p.cmd, err)
		}
	}
}

func (p *Process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *Process) Stop() error {
	if !p.running() {
		return nil
	}
	if err := Resume(p.cmd); err != nil { // a paused process ignores SIGTERM
		return err
	}
	return p.end(syscall.SIGTERM)
}

// PID returns the id of the process, which has been started.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output returns what the process has printed. Call it after its end.
func (p *Process) Output() string { return p.output.String() }

// Kill ends the process at once, if it is running.
func (p *Process) Kill() error {
	if !p.running() {
		return nil
	}
	return p.end(os.Kill)
}

// end sends sig and waits until the process has ended.
func (p *Process) end(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("it has not ended %v after %v", patience, sig)
	}
}

func (p *Process) Pause() error {
	if !p.running() {
		return errNotRunning
	}
	return Pause(p.cmd, func() bool {
		_, err := p.Answers(p.cmd.Process.Pid, 10*time.Millisecond)
		return err == nil
	})
}

func (p *Process) Resume() error {
	if !p.running() {
		return errNotRunning
	}
	if err := Resume(p.cmd); err != nil {
		return err
	}
	return p.ready()
}

var errNotRunning = errors.New("it is not running")

// try starts a server by start, which takes a new port each time: another program may take a
// port first.
func try[S any](tb testing.TB, start func() (S, error)) S {
	tb.Helper()
	var errs []error
	for range 5 {
		s, err := start()
		if err == nil {
			return s
		}
		errs = append(errs, err)
	}
	tb.Fatalf("servertest: %v", errors.Join(errs...))
	panic("unreachable")
}
