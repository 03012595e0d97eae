package throttler

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// While a server has too many connections, an operation is tried again after
// firstPause, and then after twice the pause before, up to lastPause.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// isRefused reports whether err is the answer of a memcached that has as many
// connections as it may have (its option -c). It has read nothing of the operation.
// A plain client has only the text.
func isRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ERROR Too many open connections") &&
		!errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrUnavailable)
}

// A connWait is how an exchange that has its place waits for a connection. The zero
// value has not waited yet.
type connWait struct {
	until   time.Time     // when it gives up
	pause   time.Duration // before the next try
	answers uint64        // gate.answers when it began
	over    bool          // it has given up
}

// try calls do until the server has a connection for it, with pauses, and returns its
// error. When it gives up, after g.limit, the error matches ErrOverloaded if others
// were answered meanwhile, and ErrUnavailable otherwise.
func (w *connWait) try(g *gate, do func() error) error {
	for {
		err := do()
		if !isRefused(err) {
			return err
		}
		now := time.Now()
		if w.until.IsZero() {
			w.until, w.pause, w.answers = now.Add(g.limit), firstPause, g.answered()
		}
		left := w.until.Sub(now)
		if left <= 0 {
			why := ErrUnavailable
			if g.answered() != w.answers {
				why = ErrOverloaded
			}
			w.over = true
			return fmt.Errorf("%w: no connection within %v (QueueTimeout): %w", why, g.limit, err)
		}
		time.Sleep(min(w.pause, left))
		w.pause = min(2*w.pause, lastPause)
	}
}
