package servertest

import (
	"bufio"
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

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// A Memcached is one memcached.
type Memcached struct{ Server }

// MemcachedAt returns the Memcached at addr of the test tb.
func MemcachedAt(tb testing.TB, addr string, life Lifecycle) *Memcached {
	return &Memcached{Server{Addr: addr, tb: tb, life: life}}
}

// NewMemcached starts memcached on a free port of 127.0.0.1. It ends with the test.
// args are added to its command line: "-m", "2" for a small memory, "-C" for
// one without CAS. The test is skipped if memcached is not installed.
func NewMemcached(tb testing.TB, args ...string) *Memcached {
	tb.Helper()
	path := skiptest.Program(tb, "memcached", "memcached")
	return try(tb, func() (*Memcached, error) {
		addr, port := freePort(tb, MemcachedPorts)
		return startMemcached(tb, path, addr, slices.Concat([]string{"-l", "127.0.0.1", "-p", port, "-U", "0"}, args))
	})
}

// NewMemcachedSocket is [NewMemcached] on a Unix domain socket: Addr is its path.
func NewMemcachedSocket(tb testing.TB, args ...string) *Memcached {
	tb.Helper()
	path := skiptest.Program(tb, "memcached", "memcached")
	addr := filepath.Join(directory(tb), "sock")
	m, err := startMemcached(tb, path, addr, slices.Concat([]string{"-s", addr}, args))
	if err != nil {
		tb.Fatalf("servertest: %v", err)
	}
	return m
}

func startMemcached(tb testing.TB, path, addr string, args []string) (*Memcached, error) {
	s, err := MemcachedProcess(path, addr, args...).server(tb, addr)
	return &Memcached{s}, err
}

// MemcachedProcess returns the process of the memcached at path. args are to make it listen at
// addr.
func MemcachedProcess(path, addr string, args ...string) *Process {
	if os.Geteuid() == 0 { // memcached refuses to run as root unless told to
		args = append(args, "-u", "root")
	}
	return &Process{Path: path, Args: args, Answers: func(pid int, timeout time.Duration) (bool, error) {
		answer, err := askMemcached(addr, "stats", timeout)
		return slices.Contains(answer, fmt.Sprintf("STAT pid %d", pid)) ||
			slices.Contains(answer, "CLIENT_ERROR unauthenticated"), err // with -Y it says no more without a login
	}}
}

// Container is set by package containertest, in those test binaries that import
// it. The error says why there can be no container.
var Container func(tb testing.TB, args ...string) (*Memcached, error)

// AnyMemcached returns a memcached. It is the one at THROTTLER_MEMCACHED_ADDR if that is
// set and there are no args; otherwise [NewMemcached] if it is installed;
// otherwise a [Container]. If none is possible the test is skipped.
//
// The user's own server is shared and may hold other items. A test that stops
// or pauses it is skipped; such a test should ask for [NewMemcached].
func AnyMemcached(tb testing.TB, args ...string) *Memcached {
	tb.Helper()
	if addr := os.Getenv("THROTTLER_MEMCACHED_ADDR"); addr != "" && len(args) == 0 {
		return usersMemcached(tb, addr)
	}
	if _, err := exec.LookPath("memcached"); err == nil {
		return NewMemcached(tb, args...)
	}
	if Container != nil {
		m, err := Container(tb, args...)
		if err == nil {
			return m
		}
		tb.Logf("no container either: %v", err)
	}
	Unavailable(tb, "memcached is not installed: apt-get install memcached, or set THROTTLER_MEMCACHED_ADDR")
	return nil
}

// usersMemcached returns the user's own server at addr.
func usersMemcached(tb testing.TB, addr string) *Memcached {
	tb.Helper()
	m := MemcachedAt(tb, addr, nil)
	if err := m.Ping(patience); err != nil {
		tb.Fatalf("servertest: THROTTLER_MEMCACHED_ADDR: %v", err)
	}
	return m
}

// Ping returns nil if the server answers within timeout.
func (m *Memcached) Ping(timeout time.Duration) error {
	_, err := askMemcached(m.Addr, "version", timeout)
	return err
}

// Command sends line and CR LF over a new connection and returns the lines of
// the answer. The END of a list is left out; another last line (OK, STORED,
// ERROR, "SERVER_ERROR …") is not. After "VALUE" comes the item's data as one
// element.
//
// For a command with data, line holds both: "set key 0 60 2\r\nhi".
func (m *Memcached) Command(tb testing.TB, line string) []string {
	tb.Helper()
	answer, err := askMemcached(m.Addr, line, patience)
	if err != nil {
		tb.Fatalf("servertest: %q: %v", line, err)
	}
	return answer
}

// askMemcached sends line to the server at addr and returns its answer as
// [Memcached.Command] does.
func askMemcached(addr, line string, timeout time.Duration) ([]string, error) {
	conn, err := net.DialTimeout(network(addr), addr, timeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
		return nil, err
	}
	return readAnswer(bufio.NewReader(conn))
}

func readAnswer(r *bufio.Reader) ([]string, error) {
	var answer []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("after %d lines: %w", len(answer), err)
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "END" {
			return answer, nil
		}
		answer = append(answer, line)
		if !inList(line) {
			return answer, nil
		}
		if strings.HasPrefix(line, "VALUE ") {
			data, err := readData(r, line)
			if err != nil {
				return nil, fmt.Errorf("data of %q: %w", line, err)
			}
			answer = append(answer, data)
		}
	}
}

// inList reports whether more lines follow line.
func inList(line string) bool {
	for _, prefix := range []string{"STAT ", "VALUE ", "ITEM ", "PREFIX ", "key="} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// readData reads the data block that follows "VALUE <key> <flags> <bytes> [<cas>]".
func readData(r *bufio.Reader, line string) (string, error) {
	fields := strings.Fields(line)
	if len(fields) < 4 {
		return "", fmt.Errorf("%d fields", len(fields))
	}
	size, err := strconv.ParseUint(fields[3], 10, 31)
	if err != nil {
		return "", err
	}
	data := make([]byte, size+2)
	if _, err := io.ReadFull(r, data); err != nil {
		return "", err
	}
	return string(data[:size]), nil
}
