//go:build !unix

package memcachedtest

import "syscall"

// There is no signal to make a process hang: sending one of these is an error.
const (
	pauseSignal  = syscall.Signal(-1)
	resumeSignal = syscall.Signal(-1)
)
