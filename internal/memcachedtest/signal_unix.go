//go:build unix

package memcachedtest

import "syscall"

// What makes a process hang and go on.
const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)
