package childtest

import (
	"os/exec"
	"syscall"
)

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
