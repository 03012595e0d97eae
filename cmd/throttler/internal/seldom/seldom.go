// Package seldom keeps what clients and servers do over and over from filling a log.
package seldom

import (
	"sync/atomic"
	"time"
)

// A Minute is due at most once a minute, of any number of goroutines. The zero Minute is due
// at once.
type Minute struct {
	last atomic.Int64 // when it was due, in nanoseconds since the Unix epoch
}

// Due reports whether m is due.
func (m *Minute) Due() bool {
	now, last := time.Now().UnixNano(), m.last.Load()
	return now-last >= int64(time.Minute) && m.last.CompareAndSwap(last, now)
}
