//go:build !unix

package servertest

import "syscall"

// There are no signals that pause a process. Sending these is an error.
const (
	pauseSignal  = syscall.Signal(-1)
	resumeSignal = syscall.Signal(-1)
)
