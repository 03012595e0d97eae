package main

import (
	"context"
	"errors"
	"fmt"
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
	process          func(path string, s *server) *servertest.Process
}{
	onMemcached: {"memcached", "memcached", func(path string, s *server) *servertest.Process {
		where := map[string]string{"tcp": "-l", "unix": "-s"}[s.network]
		return servertest.MemcachedProcess(path, s.addr, where, s.addr, "-U", "0", "-m", "1024", "-c", "8192")
	}},
	onRedis: {"redis-server", "redis-server (macOS: redis)", func(path string, s *server) *servertest.Process {
		where := []string{"--port", "0", "--unixsocket", s.addr}
		if host, port, err := net.SplitHostPort(s.addr); err == nil {
			where = []string{"--bind", host, "--port", port}
		}
		return servertest.RedisProcess(path, s.addr, append(where, "--save", "", "--appendonly", "no", "--dir", s.dir)...)
	}},
}

// patience is the time that a server may take to answer.
const patience = 10 * time.Second

// A server is a memcached or Redis that this program has started, or a service for Envoy. It
// begins empty and keeps nothing on disk.
type server struct {
	*servertest.Process
	kind          backend
	network, addr string // as net.Dial takes them
	dir           string // of the socket, and the server's working directory
}

// errNotInstalled is the error of start if the program is not found.
var errNotInstalled = errors.New("not installed")

// start starts a server over network: "unix", or "tcp" on a free port of
// 127.0.0.1. It returns when the server answers.
func start(kind backend, network string) (s *server, err error) {
	k := kinds[kind]
	path, err := exec.LookPath(k.program)
	if err != nil {
		return nil, fmt.Errorf("%s is %w: install the package %s", k.program, errNotInstalled, k.install)
	}
	for range 5 { // another program may take the port first
		if s, err = launch(network, func(s *server) (*servertest.Process, error) { return k.process(path, s), nil }); err == nil {
			s.kind = kind
			return s, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", k.program, err)
}

// launch starts the process of a server that has a directory and an address.
func launch(network string, process func(*server) (*servertest.Process, error)) (*server, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	s := &server{network: network, addr: filepath.Join(dir, "sock"), dir: dir}
	if network == "tcp" {
		s.addr, err = servertest.FreeAddr(servertest.OtherPorts)
	}
	if err == nil {
		s.Process, err = process(s)
	}
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// has reports whether a Redis knows a command.
func (s *server) has(command string) bool {
	answer, err := servertest.RedisAt(s.addr).Try("COMMAND", "INFO", command)
	return err == nil && strings.Contains(strings.ToLower(answer), strings.ToLower(command))
}

// stop kills the server and waits for its end.
func (s *server) stop() {
	s.Kill()
	os.RemoveAll(s.dir)
}

// version returns the version that the program prints.
func (s *server) version() string {
	out, err := exec.Command(s.Path, "--version").Output()
	if err != nil {
		return filepath.Base(s.Path)
	}
	text := strings.TrimSpace(string(out))
	if _, rest, ok := strings.Cut(text, "v="); ok { // Redis server v=7.0.15 sha=…
		version, _, _ := strings.Cut(rest, " ")
		return "Redis " + version
	}
	return text
}

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
