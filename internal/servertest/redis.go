package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// A Redis is one redis-server, or redis-sentinel.
type Redis struct {
	Server

	// Dir is the server's working directory. It stays over Kill and Start, with
	// what the server has saved.
	Dir string

	login []string // AUTH and its arguments; nil: none
}

// NewRedis starts redis-server on a free port of 127.0.0.1. It ends with the test. args are
// added to its command line: "--maxmemory", "2mb". The test is skipped if redis-server is not
// installed.
func NewRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	return try(tb, func() (*Redis, error) {
		addr, port := freePort(tb, redisPorts)
		return startRedis(tb, addr, directory(tb),
			slices.Concat([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"}, args)...)
	})
}

// NewRedisSocket is [NewRedis] on a Unix domain socket: Addr is its path.
func NewRedisSocket(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	dir := directory(tb)
	addr := filepath.Join(dir, "sock")
	r, err := startRedis(tb, addr, dir, slices.Concat([]string{"--port", "0", "--unixsocket", addr, "--save", ""}, args)...)
	if err != nil {
		tb.Fatalf("servertest: %v", err)
	}
	return r
}

// startRedis starts redis-server in dir with args, which are to make it listen at addr. A
// server that loads its data is ready.
func startRedis(tb testing.TB, addr, dir string, args ...string) (*Redis, error) {
	tb.Helper()
	path := skiptest.Program(tb, "redis-server", "redis-server")
	s, err := RedisProcess(path, addr, append(args, "--dir", dir)...).server(tb, addr)
	return &Redis{Server: s, Dir: dir}, err
}

// RedisProcess returns the process of the redis-server at path. args are to make it listen at
// addr.
func RedisProcess(path, addr string, args ...string) *Process {
	return &Process{Path: path, Args: args, Answers: func(pid int, timeout time.Duration) (bool, error) {
		answer, err := RedisAt(addr).ask(timeout, "INFO", "server")
		return strings.Contains(answer, fmt.Sprintf("process_id:%d", pid)) || strings.HasPrefix(answer, "NOAUTH"), err
	}}
}

// RedisAt returns the Redis at addr, for Try.
func RedisAt(addr string) *Redis { return &Redis{Server: Server{Addr: addr}} }

// Login makes the test's own commands log in.
func (r *Redis) Login(user, password string) { r.login = []string{"AUTH", user, password} }

// Command sends a command over a new connection and returns the answer: a string, a
// number, or the elements of an array, one a line. An error is one of the test, too.
func (r *Redis) Command(args ...string) string {
	r.tb.Helper()
	answer, err := r.ask(patience, args...)
	if err != nil {
		r.tb.Fatalf("servertest: %q: %v", args, err)
	}
	return answer
}

// Try is Command, with the error for the caller.
func (r *Redis) Try(args ...string) (string, error) { return r.ask(patience, args...) }

func (r *Redis) ask(timeout time.Duration, args ...string) (string, error) {
	nc, err := net.DialTimeout(network(r.Addr), r.Addr, timeout)
	if err != nil {
		return "", err
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	answers := bufio.NewReader(nc)
	if r.login != nil {
		if _, err := askRedis(nc, answers, r.login); err != nil {
			return "", err
		}
	}
	return askRedis(nc, answers, args)
}

func askRedis(w io.Writer, r *bufio.Reader, args []string) (string, error) {
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(w, command.String()); err != nil {
		return "", err
	}
	return readRESP(r)
}

// readRESP reads an answer in RESP2.
func readRESP(r *bufio.Reader) (string, error) {
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
			element, err := readRESP(r)
			if err != nil {
				return "", err
			}
			all = append(all, element)
		}
		return strings.Join(all, "\n"), nil
	}
	return line[1:], nil
}
