package servertest

import (
	"fmt"
	"net"
	"os/exec"
	"sync"
	"syscall"
)

var reserved struct {
	mu    sync.Mutex
	ports []net.Listener // so that none is closed as garbage
}

// reserve keeps port for this process until it ends. It returns false if another call has it.
// So a server that is stopped for a while finds its port free, and no other answers there.
func reserve(port int) bool {
	l, err := net.Listen("unix", fmt.Sprintf("@throttler-test-port-%d", port))
	if err != nil {
		return false
	}
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	reserved.ports = append(reserved.ports, l)
	return true
}

func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// awaitPause leaves it to others to wait for the pause again, and for the end of the process.
func awaitPause(cmd *exec.Cmd, _ func() bool) error {
	const byPID = 1 // P_PID
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(cmd.Process.Pid), 0, syscall.WSTOPPED|syscall.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return errno
		}
	}
}
