package redistest

import "syscall"

// endWithParent kills a child when the program dies without ending it.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
