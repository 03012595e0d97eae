package memcachedtest

import "syscall"

// endWithParent kills a child when the program dies without ending it, as after
// a panic or a test's timeout.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
