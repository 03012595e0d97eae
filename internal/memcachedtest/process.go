package memcachedtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/childtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// Process starts memcached on a free port of 127.0.0.1. It ends with the test.
// args are added to its command line: "-m", "2" for a small memory, "-C" for
// one without CAS. The test is skipped if memcached is not installed.
func Process(tb testing.TB, args ...string) *Server {
	tb.Helper()
	path := skiptest.Program(tb, "memcached", "memcached")
	var err error
	for range 5 { // another program may take the port first
		addr := FreeAddr(tb)
		_, port, _ := net.SplitHostPort(addr)
		p := newProcess(path, addr, slices.Concat([]string{"-l", "127.0.0.1", "-p", port, "-U", "0"}, args))
		if err = p.Start(); err == nil {
			return p.server(tb)
		}
	}
	tb.Fatalf("memcachedtest: %v", err)
	return nil
}

// Socket is [Process] on a Unix domain socket: Addr is its path.
func Socket(tb testing.TB, args ...string) *Server {
	tb.Helper()
	path := skiptest.Program(tb, "memcached", "memcached")
	dir, err := os.MkdirTemp("", "memcached") // tb.TempDir may be too long for a socket
	if err != nil {
		tb.Fatalf("memcachedtest: %v", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	addr := filepath.Join(dir, "sock")
	p := newProcess(path, addr, slices.Concat([]string{"-s", addr}, args))
	if err := p.Start(); err != nil {
		tb.Fatalf("memcachedtest: %v", err)
	}
	return p.server(tb)
}

// FreeAddr returns a free address of 127.0.0.1. Its port is below those of
// outgoing connections, so none of these takes it while the server is stopped.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addr, err := childtest.FreeAddr(childtest.Memcached)
	if err != nil {
		tb.Fatalf("memcachedtest: %v", err)
	}
	return addr
}

// process is a memcached process, started or not.
type process struct {
	path, addr string
	args       []string

	cmd    *exec.Cmd       // nil until it is started
	exited <-chan struct{} // closed at its end
	output *bytes.Buffer   // to be read only after its end
}

func newProcess(path, addr string, args []string) *process {
	if os.Geteuid() == 0 { // memcached refuses to run as root unless told to
		args = append(args, "-u", "root")
	}
	return &process{path: path, addr: addr, args: args}
}

func (p *process) server(tb testing.TB) *Server {
	tb.Cleanup(func() { p.Kill() })
	return New(tb, p.addr, p)
}

func (p *process) Start() error {
	if p.running() {
		return errors.New("it is running")
	}
	p.output = new(bytes.Buffer)
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	var err error
	if p.exited, err = childtest.Start(p.cmd); err != nil {
		p.cmd = nil
		return err
	}
	if err := p.ready(); err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

// ready waits until this process answers, and not another one on its port.
func (p *process) ready() error {
	pid := fmt.Sprintf("STAT pid %d", p.cmd.Process.Pid)
	for deadline := time.Now().Add(2 * patience); ; {
		answer, err := ask(p.addr, "stats", patience)
		if slices.Contains(answer, pid) || slices.Contains(answer, "CLIENT_ERROR unauthenticated") {
			return nil // with -Y it says no more without a login
		}
		select {
		case <-p.exited:
			return fmt.Errorf("memcached %s: %v: %s", strings.Join(p.args, " "), p.cmd.ProcessState, p.output)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("memcached %s does not answer: %v", strings.Join(p.args, " "), err)
		}
	}
}

func (p *process) running() bool {
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

func (p *process) Stop() error {
	if !p.running() {
		return nil
	}
	if err := childtest.Resume(p.cmd); err != nil { // a paused process ignores SIGTERM
		return err
	}
	return p.end(syscall.SIGTERM)
}

func (p *process) Kill() error {
	if !p.running() {
		return nil
	}
	return p.end(os.Kill)
}

// end sends sig and waits until the process has ended.
func (p *process) end(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(2 * patience):
		return fmt.Errorf("it has not ended %v after %v", 2*patience, sig)
	}
}

func (p *process) Pause() error {
	if !p.running() {
		return errNotRunning
	}
	return childtest.Pause(p.cmd, func() bool {
		_, err := ask(p.addr, "version", 10*time.Millisecond)
		return err == nil
	})
}

func (p *process) Resume() error {
	if !p.running() {
		return errNotRunning
	}
	if err := childtest.Resume(p.cmd); err != nil {
		return err
	}
	return p.ready()
}

var errNotRunning = errors.New("it is not running")
