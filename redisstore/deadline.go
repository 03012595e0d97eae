package redisstore

import (
	"context"
	"sync"
	"time"
)

// A deadline is a context that ends at a time. It makes a timer only if somebody waits
// for that: a client that sets the deadline of its connection does not.
type deadline struct {
	at time.Time

	mu    sync.Mutex
	timer context.Context // nil until Done
	stop  context.CancelFunc
}

func newDeadline(after time.Duration) *deadline { return &deadline{at: time.Now().Add(after)} }

// release stops the timer.
func (d *deadline) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
}

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		d.timer, d.stop = context.WithDeadline(context.Background(), d.at)
	}
	return d.timer.Done()
}

func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.timer != nil:
		return d.timer.Err()
	case time.Now().Before(d.at):
		return nil
	}
	return context.DeadlineExceeded
}

func (d *deadline) Value(any) any { return nil }
