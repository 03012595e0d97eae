// Package failure has the errors of stores.
package failure

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	// ErrUnavailable is throttler.ErrUnavailable.
	ErrUnavailable = errors.New("throttler: server unavailable")

	// ErrOverloaded is throttler.ErrOverloaded.
	ErrOverloaded = errors.New("throttler: overloaded")

	// ErrClosed is pool.ErrClosed.
	ErrClosed = errors.New("throttler: the store is closed")

	// ErrNoCAS is throttler.ErrNoCAS.
	ErrNoCAS = errors.New("throttler: the server gives no CAS tokens: run memcached without -C")
)

// A ServerError is a failure of one server, or of the way to it. Ordinary answers (a miss, a
// conflict) are none.
type ServerError struct {
	Store    string // "pool"
	Server   string // its name
	Err      error
	Answered bool // Err is what the server says, or of this process, and not of the way to it
}

func (e *ServerError) Error() string { return e.Store + ": server " + e.Server + ": " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *ServerError) Unwrap() error { return e.Err }

// Is reports whether target is [ErrUnavailable] and the server does not answer.
func (e *ServerError) Is(target error) bool { return target == ErrUnavailable && !e.Answered }

// A LostAnswerError is the answer to a write that was sent a second time because
// the first answer was lost: Err is memcache.ErrNotStored, ErrCASConflict or
// ErrCacheMiss. The reason may be that the server had carried out the first write. It is an
// exchange.MaybeDoneError.
type LostAnswerError struct {
	Err error
}

func (e *LostAnswerError) Error() string {
	return e.Err.Error() + ", or done already: an answer was lost"
}

// Unwrap returns e.Err.
func (e *LostAnswerError) Unwrap() error { return e.Err }

// MaybeDone returns true.
func (e *LostAnswerError) MaybeDone() bool { return true }

// A MultiError is the error of GetMulti if it failed for any of the keys. It is an
// exchange.KeyError.
type MultiError struct {
	Keys  map[string]error // the errors of those that failed, at least one
	Asked int              // how many keys were asked for
}

// KeyError returns the error of key, or nil if its server answered: then a key that is
// not among the items is a miss.
func (e *MultiError) KeyError(key string) error { return e.Keys[key] }

// Unwrap returns the errors of the keys, but only one of several that say the same.
func (e *MultiError) Unwrap() []error {
	var causes []error
	said := make(map[string]bool)
	for _, key := range slices.Sorted(maps.Keys(e.Keys)) {
		if err := e.Keys[key]; !said[err.Error()] {
			said[err.Error()] = true
			causes = append(causes, err)
		}
	}
	return causes
}

func (e *MultiError) Error() string {
	var texts []string
	for _, err := range e.Unwrap() {
		texts = append(texts, err.Error())
	}
	return fmt.Sprintf("%d of %d keys: %s", len(e.Keys), e.Asked, strings.Join(texts, "; "))
}
