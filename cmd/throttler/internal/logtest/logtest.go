// Package logtest keeps what a program logs, for tests.
package logtest

import (
	"bytes"
	"sync"
)

// A Log is what has been written to it. It can be read while goroutines write.
type Log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write adds b to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
