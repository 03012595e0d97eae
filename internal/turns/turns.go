// Package turns lets a process that is short of processor time catch up before it
// blames somebody else.
//
// If more goroutines compute than there are processors, each waits for its turn behind
// the others: with 160 of them on 2 processors for almost a second. Timers run at once
// all the same. So a timeout may pass before a goroutine has begun with what it bounds.
// Where no state shows that, turns are a better measure than time. They are a rough one:
// the scheduler serves processors, and is fair only in the long run.
package turns

import (
	"runtime"
	"time"
)

// backstop is for a process with many thousands of goroutines that compute.
const backstop = time.Minute

// Pass gives all other goroutines that can run n turns. In a process that has
// processors to spare it returns at once.
func Pass(n int) {
	for start := time.Now(); n > 0 && time.Since(start) < backstop; n-- {
		runtime.Gosched()
	}
}

// Short reports whether this process is short of processor time: ten turns take more
// than 50 milliseconds. It returns as soon as it knows.
func Short() bool {
	start := time.Now()
	for range 10 {
		runtime.Gosched()
		if time.Since(start) > 50*time.Millisecond {
			return true
		}
	}
	return false
}
