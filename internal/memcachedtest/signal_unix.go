//go:build unix

package memcachedtest

import "syscall"

// The signals that pause and resume a process.
const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)
