package main

import "syscall"

// endWithParent has a server killed when this program dies without ending it.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
