// Package fanout divides the requests of one call among servers, and waits for them.
package fanout

import (
	"context"
	"sync/atomic"
)

// By calls f for each server, with its requests. These are a part of requests, whose order
// changes.
func By[R any, S comparable](requests []R, server func(R) S, f func(S, []R)) {
	for len(requests) > 0 {
		s := server(requests[0])
		n := 1
		for i := 1; i < len(requests); i++ {
			if server(requests[i]) == s {
				requests[n], requests[i] = requests[i], requests[n]
				n++
			}
		}
		f(s, requests[:n:n])
		requests = requests[n:]
	}
}

// A Latch opens when all of its requests have ended. The zero Latch is open. One goroutine
// waits at a time.
type Latch struct {
	pending atomic.Int32
	ready   chan struct{} // receives once, when none is pending
}

// Hold closes l until n requests, at least one, have ended. If l was held before, that must
// have been waited for to its end.
func (l *Latch) Hold(n int) {
	if l.ready == nil {
		l.ready = make(chan struct{}, 1)
	}
	l.pending.Store(int32(n))
}

// Ended notes that one of the requests has ended. A nil Latch is for requests that nobody
// waits for.
func (l *Latch) Ended() {
	if l != nil && l.pending.Add(-1) == 0 {
		l.ready <- struct{}{}
	}
}

// Open reports whether all requests have ended. A nil Latch is never open.
func (l *Latch) Open() bool { return l != nil && l.pending.Load() == 0 }

// Wait returns when all requests have ended, or when ctx has. It reports which. After true,
// l may be held again.
func (l *Latch) Wait(ctx context.Context) (ended bool) {
	if ctx.Done() == nil {
		<-l.ready
		return true
	}
	select {
	case <-l.ready:
		return true
	case <-ctx.Done():
		return false
	}
}
