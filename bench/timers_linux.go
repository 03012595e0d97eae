package main

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// fineTimers has timers of this process go off in time until stop is called. A process that waits
// waits by epoll_wait for milliseconds, but whoever yields looks for timers that are due.
func fineTimers() (stop func()) {
	var over atomic.Bool
	often := syscall.NsecToTimespec(int64(50 * time.Microsecond))
	go func() {
		for !over.Load() {
			_ = syscall.Nanosleep(&often, nil)
			runtime.Gosched()
		}
	}()
	return func() { over.Store(true) }
}
