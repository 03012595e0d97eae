package main

import "syscall"

// endWithParent kills a server when this program dies without ending it.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
