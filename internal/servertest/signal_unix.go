//go:build unix

package servertest

import "syscall"

// The signals that pause and resume a process.
const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)
