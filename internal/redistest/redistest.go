// Package redistest gives tests real Redis servers: a process, a primary with a
// replica that Sentinel watches, or a Cluster. A [Server] lives as long as the test
// that asked for it.
//
// A test is skipped if redis-server is not installed. With
// THROTTLER_REQUIRE_MEMCACHED=1 it fails instead.
//
// Only tests may import this package.
package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/childtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// patience is the time that a step of a server may take.
const patience = 10 * time.Second

// A Server is one redis-server, or redis-sentinel. If a method fails, it ends the test
// that started the Server. Call them on that test's goroutine, one at a time.
type Server struct {
	// Addr is "host:port", or the path of a socket. It never changes.
	Addr string

	// Dir is the server's working directory. It stays over Kill and Start, with
	// what the server has saved.
	Dir string

	tb      testing.TB
	program string
	args    []string
	login   []string // AUTH and its arguments; nil: none

	cmd    *exec.Cmd
	exited <-chan struct{}
	output *bytes.Buffer // to be read only after the end
}

// Process starts redis-server on a free port of 127.0.0.1. args are added to its
// command line: "--maxmemory", "2mb".
func Process(tb testing.TB, args ...string) *Server {
	tb.Helper()
	path := installed(tb)
	var err error
	for range 5 { // another program may take the port first
		s := &Server{Addr: FreeAddr(tb), Dir: directory(tb), tb: tb, program: path}
		_, port, _ := net.SplitHostPort(s.Addr)
		s.args = slices.Concat([]string{"--bind", "127.0.0.1", "--port", port, "--dir", s.Dir, "--save", "", "--appendonly", "no"}, args)
		if err = s.start(); err == nil {
			return s
		}
	}
	tb.Fatalf("redistest: %v", err)
	return nil
}

// Socket is [Process] on a Unix domain socket: Addr is its path.
func Socket(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{Dir: directory(tb), tb: tb, program: installed(tb)}
	s.Addr = filepath.Join(s.Dir, "sock")
	s.args = slices.Concat([]string{"--port", "0", "--unixsocket", s.Addr, "--dir", s.Dir, "--save", ""}, args)
	if err := s.start(); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return s
}

// Login makes the test's own commands log in.
func (s *Server) Login(user, password string) { s.login = []string{"AUTH", user, password} }

// installed returns the path of redis-server, or skips the test.
func installed(tb testing.TB) string {
	tb.Helper()
	return skiptest.Program(tb, "redis-server", "redis-server")
}

// directory returns one that is removed with the test. That of tb may be too long for
// a socket.
func directory(tb testing.TB) string {
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// FreeAddr returns a free address of 127.0.0.1. Its port is below those of outgoing
// connections, and so is that of a Cluster's bus, which is 10,000 higher.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addr, err := childtest.FreeAddr(childtest.Redis)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return addr
}

func (s *Server) start() error {
	s.output = new(bytes.Buffer)
	s.cmd = exec.Command(s.program, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	var err error
	if s.exited, err = childtest.Start(s.cmd); err != nil {
		s.cmd = nil
		return err
	}
	s.tb.Cleanup(s.end)
	return s.ready()
}

// ready waits until this process answers, and not another one on its port. A server
// that loads its data answers, too.
func (s *Server) ready() error {
	pid := fmt.Sprintf("process_id:%d", s.cmd.Process.Pid)
	for deadline := time.Now().Add(patience); ; {
		answer, err := s.try(patience, "INFO", "server")
		if strings.Contains(answer, pid) || strings.HasPrefix(answer, "NOAUTH") {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("%s: %v: %s", strings.Join(s.args, " "), s.cmd.ProcessState, s.output)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %v", s.Addr, err)
		}
	}
}

// end kills the process, if it runs, and waits for its end.
func (s *Server) end() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
	}
}

// Kill ends the server at once, also if it is paused.
func (s *Server) Kill() { s.end() }

// Start starts a killed server again, with what it had saved.
func (s *Server) Start() {
	s.tb.Helper()
	if err := s.start(); err != nil {
		s.tb.Fatalf("redistest: start %s: %v", s.Addr, err)
	}
}

// Pause makes the server hang: it accepts connections and never answers.
func (s *Server) Pause() {
	s.tb.Helper()
	err := childtest.Pause(s.cmd, func() bool {
		_, err := s.try(10*time.Millisecond, "PING")
		return err == nil
	})
	if err != nil {
		s.tb.Fatalf("redistest: pause: %v", err)
	}
}

// Resume continues a paused server.
func (s *Server) Resume() {
	s.tb.Helper()
	if err := childtest.Resume(s.cmd); err != nil {
		s.tb.Fatalf("redistest: resume: %v", err)
	}
}

// Command sends a command over a new connection and returns the answer: a string, a
// number, or the elements of an array, one a line. An error is one of the test, too.
func (s *Server) Command(args ...string) string {
	s.tb.Helper()
	answer, err := s.try(patience, args...)
	if err != nil {
		s.tb.Fatalf("redistest: %q: %v", args, err)
	}
	return answer
}

// Try is Command, with the error for the caller.
func (s *Server) Try(args ...string) (string, error) { return s.try(patience, args...) }

func (s *Server) try(timeout time.Duration, args ...string) (string, error) {
	network := "tcp"
	if strings.HasPrefix(s.Addr, "/") {
		network = "unix"
	}
	nc, err := net.DialTimeout(network, s.Addr, timeout)
	if err != nil {
		return "", err
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	r := bufio.NewReader(nc)
	if s.login != nil {
		if _, err := ask(nc, r, s.login); err != nil {
			return "", err
		}
	}
	return ask(nc, r, args)
}

func ask(w io.Writer, r *bufio.Reader, args []string) (string, error) {
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(w, command.String()); err != nil {
		return "", err
	}
	return read(r)
}

// read reads an answer in RESP2.
func read(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch line[0] {
	case '-':
		return line[1:], errors.New(line[1:])
	case '$':
		size, _ := strconv.Atoi(line[1:])
		if size < 0 {
			return "", nil
		}
		text := make([]byte, size+2)
		_, err := io.ReadFull(r, text)
		return string(text[:size]), err
	case '*':
		count, _ := strconv.Atoi(line[1:])
		var all []string
		for range count {
			element, err := read(r)
			if err != nil {
				return "", err
			}
			all = append(all, element)
		}
		return strings.Join(all, "\n"), nil
	}
	return line[1:], nil
}
