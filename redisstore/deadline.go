package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler/internal/turns"
)

// What ends a wait is to be the server's silence, not this process' own lateness. If more
// goroutines compute than there are processors, each waits for its turn behind the others,
// and a timeout may pass although the answer has come. So a timeout that has passed in
// such a process is not believed at once.

// maxLate is how many timeouts in a row may be those of a process that was late itself.
const maxLate = 5

// turnsToRead is how many turns the goroutines that read an answer and hand it over have
// when its time is over.
const turnsToRead = 20

// A patience counts the timeouts of one thing that is asked.
type patience struct{ late int }

// wasLate reports whether a timeout may have passed for want of processor time.
func (p *patience) wasLate() bool {
	if p.late == maxLate || !turns.Short() {
		return false
	}
	p.late++
	return true
}

// A deadline is a context that ends when a time and some turns have passed. It makes a
// timer only if somebody waits for that: a client that sets the deadline of its connection
// does not, and is the fastest. But such a client takes its time to be over without a look
// at what has come. So one that is patient tells no time.
type deadline struct {
	timeout time.Duration
	patient bool

	mu    sync.Mutex
	at    time.Time // zero: it has not begun
	timer *time.Timer
	done  chan struct{} // nil until Done
	over  bool
}

func newDeadline(timeout time.Duration, patient bool) *deadline {
	return &deadline{timeout: timeout, patient: patient}
}

// release stops the timer.
func (d *deadline) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}

// beginLocked has the time begin when somebody asks for it first.
func (d *deadline) beginLocked() {
	if d.at.IsZero() {
		d.at = time.Now().Add(d.timeout)
	}
}

func (d *deadline) Deadline() (time.Time, bool) {
	if d.patient {
		return time.Time{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.beginLocked()
	return d.at, true
}

func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		d.beginLocked()
		d.done = make(chan struct{})
		d.timer = time.AfterFunc(time.Until(d.at), d.expire)
	}
	return d.done
}

// expire ends the context, once all goroutines have had their turns.
func (d *deadline) expire() {
	turns.Pass(turnsToRead)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	close(d.done)
}

func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over || d.done == nil && !d.at.IsZero() && !time.Now().Before(d.at) {
		return context.DeadlineExceeded
	}
	return nil
}

func (d *deadline) Value(any) any { return nil }
