//go:build unix

package main

import (
	"syscall"
	"time"
)

// processTime returns the processor time that this process has used, its own and
// what the kernel does for it.
func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
