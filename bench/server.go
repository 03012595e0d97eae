package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
)

// A backend is the kind of store for a limiter's records.
type backend int

const (
	inProcess backend = iota
	onMemcached
	onRedis
	onIncrex // the same server, if it has that command
)

// kinds are the servers that this program starts.
var kinds = map[backend]struct {
	program, install string
	args             func(s *server) []string
	hello, answer    string // a request, and the text before the process id in its answer
}{
	onMemcached: {
		program: "memcached", install: "memcached",
		args: func(s *server) []string {
			args := []string{"-U", "0", "-m", "1024", "-c", "8192"}
			if s.network == "unix" {
				args = append(args, "-s", s.addr)
			} else {
				args = append(args, "-l", s.addr)
			}
			if os.Geteuid() == 0 { // it refuses to run as root unless told to
				args = append(args, "-u", "root")
			}
			return args
		},
		hello: "stats\r\n", answer: "STAT pid ",
	},
	onRedis: {
		program: "redis-server", install: "redis-server (macOS: redis)",
		args: func(s *server) []string {
			args := []string{"--save", "", "--appendonly", "no", "--dir", s.dir, "--daemonize", "no"}
			if s.network == "unix" {
				return append(args, "--port", "0", "--unixsocket", s.addr)
			}
			return append(args, "--bind", s.host(), "--port", s.port())
		},
		hello: "INFO server\r\n", answer: "process_id:",
	},
}

// patience is the time that a server may take to start.
const patience = 10 * time.Second

// A server is a memcached or Redis that this program has started. It begins
// empty and keeps nothing on disk.
type server struct {
	kind          backend
	network, addr string // as net.Dial takes them
	dir           string // of the socket, and the server's working directory
	cmd           *exec.Cmd
	output        bytes.Buffer
	exited        <-chan struct{}
}

// errNotInstalled is the error of start if the program is not found.
var errNotInstalled = errors.New("not installed")

// start starts a server over network: "unix", or "tcp" on a free port of
// 127.0.0.1. It returns when the server answers.
func start(ctx context.Context, kind backend, network string) (*server, error) {
	k := kinds[kind]
	path, err := exec.LookPath(k.program)
	if err != nil {
		return nil, fmt.Errorf("%s is %w: install the package %s", k.program, errNotInstalled, k.install)
	}
	for range 5 { // another program may take the port first
		var s *server
		if s, err = launch(ctx, path, kind, network); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("%s: %w", k.program, err)
}

func launch(ctx context.Context, path string, kind backend, network string) (*server, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	s := &server{kind: kind, network: network, addr: filepath.Join(dir, "sock"), dir: dir}
	if network == "tcp" {
		if s.addr, err = servertest.FreeAddr(servertest.MemcachedPorts); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	s.cmd = exec.Command(path, kinds[kind].args(s)...)
	if err := s.launch(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.ready(ctx); err != nil {
		s.stop()
		return nil, fmt.Errorf("%w\n%s", err, s.output.String())
	}
	return s, nil
}

// launch starts the program.
func (s *server) launch() (err error) {
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.exited, err = servertest.Start(s.cmd)
	return err
}

// ready returns when the server answers.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := s.greet()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("it ended: %v", s.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// greet checks that this server answers, and not another one on its port.
func (s *server) greet() error {
	conn, err := net.DialTimeout(s.network, s.addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(kinds[s.kind].hello)); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if want := fmt.Sprint(kinds[s.kind].answer, s.cmd.Process.Pid); !strings.Contains(string(answer[:n]), want) {
		return errors.New("another program answers")
	}
	return nil
}

// has reports whether a Redis knows a command.
func (s *server) has(command string) bool {
	conn, err := net.DialTimeout(s.network, s.addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(conn, "COMMAND INFO %s\r\n", command)
	answer := make([]byte, 4096)
	n, err := io.ReadAtLeast(conn, answer, len("*1\r\n*-1\r\n")-1)
	return err == nil && strings.Contains(strings.ToLower(string(answer[:n])), strings.ToLower(command))
}

// stop kills the server and waits for its end.
func (s *server) stop() {
	s.cmd.Process.Kill()
	<-s.exited
	os.RemoveAll(s.dir)
}

// version returns the version that the program prints.
func (s *server) version() string {
	out, err := exec.Command(s.cmd.Path, "--version").Output()
	if err != nil {
		return filepath.Base(s.cmd.Path)
	}
	text := strings.TrimSpace(string(out))
	if _, rest, ok := strings.Cut(text, "v="); ok { // Redis server v=7.0.15 sha=…
		version, _, _ := strings.Cut(rest, " ")
		return "Redis " + version
	}
	return text
}

func (s *server) host() string { host, _, _ := net.SplitHostPort(s.addr); return host }
func (s *server) port() string { _, port, _ := net.SplitHostPort(s.addr); return port }

// dialer returns a function that connects to s. trips, unless it is nil, counts
// round trips.
func (s *server) dialer(trips *counter) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, s.network, s.addr)
		if err != nil || trips == nil {
			return conn, err
		}
		return &countedConn{Conn: conn, trips: trips}, nil
	}
}
