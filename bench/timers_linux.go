package main

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// fineTimers has the timers of this process go off in time until stop is called. While it has
// nothing to do, Go sleeps in epoll_wait, which takes whole milliseconds. A goroutine that yields
// often has it look for timers that are due.
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
