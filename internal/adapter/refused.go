package adapter

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/turns"
	"github.com/bradfitz/gomemcache/memcache"
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
		!errors.Is(err, failure.ErrOverloaded) && !errors.Is(err, failure.ErrUnavailable)
}

// maxExcused is how many timeouts may be those of a process that was late itself.
const maxExcused = 8

// excuse reports whether a timeout may have passed only because this process is short of
// processor time.
func (w *connWait) excuse() bool {
	if w.excused == maxExcused || !turns.Short() {
		return false
	}
	w.excused++
	return true
}

// isConnectTimeout reports whether err is that no connection was made in time. Nothing was
// sent.
func isConnectTimeout(err error) bool {
	if err == nil {
		return false // the usual case, without an allocation
	}
	var dial *memcache.ConnectTimeoutError
	return errors.As(err, &dial)
}

// A connWait is how an exchange that has its place waits for a connection. The zero
// value has not waited yet.
type connWait struct {
	until   time.Time     // when it gives up
	pause   time.Duration // before the next try
	answers uint64        // turnstile.answers when it began
	over    bool          // it has given up
	excused int           // timeouts that may have passed for want of processor time
}

// tryRead is try for a do that reads, and so may be called again after a timeout.
func (w *connWait) tryRead(ts *turnstile, do func() error) error {
	for {
		err := w.try(ts, do)
		if !isTimeout(err) || !w.excuse() {
			return err
		}
	}
}

// try calls do until the server has a connection for it, with pauses, and returns its
// error. When it gives up, after ts.limit, the error matches failure.ErrOverloaded if others
// were answered meanwhile, and failure.ErrUnavailable otherwise.
func (w *connWait) try(ts *turnstile, do func() error) error {
	for {
		err := do()
		if isConnectTimeout(err) && w.excuse() {
			continue
		}
		if !isRefused(err) {
			return err
		}
		now := time.Now()
		if w.until.IsZero() {
			w.until, w.pause, w.answers = now.Add(ts.limit), firstPause, ts.answered()
		}
		left := w.until.Sub(now)
		if left <= 0 {
			why := failure.ErrUnavailable
			if ts.answered() != w.answers {
				why = failure.ErrOverloaded
			}
			w.over = true
			return fmt.Errorf("%w: no connection within %v (QueueTimeout): %w", why, ts.limit, err)
		}
		time.Sleep(min(w.pause, left))
		w.pause = min(2*w.pause, lastPause)
	}
}
