package redistest

import "syscall"

// endWithParent kills a child when the program dies without ending it.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// awaitPause returns when all threads of the process have stopped. It leaves that to be
// waited for again, and the end of the process to others.
func (s *Server) awaitPause() error {
	const byPID = 1 // P_PID
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(s.cmd.Process.Pid), 0, syscall.WSTOPPED|syscall.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return errno
		}
	}
}
