//go:build unix

package childtest

import "syscall"

// The signals that pause and resume a process.
const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)
