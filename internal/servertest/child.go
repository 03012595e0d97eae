package servertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"runtime"
	"syscall"
)

// Start starts cmd. exited is closed when it has ended. On Linux it is killed when this
// program dies without ending it, as after a panic or a test's timeout.
func Start(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = endWithParent()
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread counts as the parent
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(ended)
	}()
	return ended, <-started
}

// Ports are those from From to below To. All are below 32,768, so they are none of outgoing
// connections: none of these takes one while the server that it is for is stopped.
type Ports struct{ From, To int }

// The ports of each kind of server are its own, so that none takes one of another kind, which
// may not try again.
var (
	redisPorts     = Ports{10_000, 14_000} // and of a Cluster's bus, which is 10,000 higher
	OtherPorts     = Ports{14_000, 20_000}
	MemcachedPorts = Ports{24_000, 32_000}
)

// FreeAddr returns a free address of 127.0.0.1, at one of ports. On Linux it is returned once
// only, to all processes, until this one ends.
func FreeAddr(ports Ports) (addr string, err error) {
	from, to := ports.From, ports.To
	for range 100 {
		port := from + rand.IntN(to-from)
		if !reserve(port) {
			continue
		}
		addr = fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, Free(l)
		}
	}
	return "", fmt.Errorf("no free port from %d to %d in 100 tries", from, to-1)
}

// Free closes l, and waits until its port is free: a child that another test starts has it too
// until it runs its program.
func Free(l net.Listener) error {
	err := l.Close()
	syscall.ForkLock.RLock() // it is held for writing from a fork until then
	defer syscall.ForkLock.RUnlock()
	return err
}

// Pause makes the process of cmd hang: it accepts connections and never answers. It returns
// when all its threads have stopped, or, elsewhere than on Linux, when answers is false.
func Pause(cmd *exec.Cmd, answers func() bool) error {
	if err := cmd.Process.Signal(pauseSignal); err != nil {
		return err
	}
	return awaitPause(cmd, answers)
}

// Resume continues a process that was paused.
func Resume(cmd *exec.Cmd) error { return cmd.Process.Signal(resumeSignal) }
