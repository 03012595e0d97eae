package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/upstream"
)

var (
	// ErrClosed is the error of a call after Close, or during it.
	ErrClosed = errors.New("pool: closed")

	// ErrDown is wrapped in the error of a call that was not sent, or was ended
	// early, because its server failed again and again. It comes within a
	// [ServerError], whose text contains the last failure.
	ErrDown = upstream.ErrDown
)

// A ServerError is a failure of one server, or of the way to it. Ordinary
// answers (a miss, a conflict) are no failures and come as memcache.Client
// returns them: memcache.ErrCacheMiss and so on.
//
// A ServerError matches throttler.ErrUnavailable if the server does not answer,
// and throttler.ErrOverloaded if it answers, but could not be asked in time. It
// matches neither if the server reported an error.
type ServerError struct {
	Server string // as it was given to New
	Err    error
}

func (e *ServerError) Error() string { return "pool: server " + e.Server + ": " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *ServerError) Unwrap() error { return e.Err }

// Is reports whether target is throttler.ErrUnavailable and the server does not
// answer.
func (e *ServerError) Is(target error) bool {
	return target == exchange.ErrUnavailable && !isComplaint(e.Err) &&
		!errors.Is(e.Err, exchange.ErrNoCAS) && !errors.Is(e.Err, exchange.ErrOverloaded)
}

// A LostAnswerError is the answer to a write that was sent a second time because
// the first answer was lost: Err is memcache.ErrNotStored, ErrCASConflict or
// ErrCacheMiss. The reason may be that the server had carried out the first write.
type LostAnswerError struct {
	Err error
}

func (e *LostAnswerError) Error() string {
	return e.Err.Error() + ", or done already: an answer was lost"
}

// Unwrap returns e.Err.
func (e *LostAnswerError) Unwrap() error { return e.Err }

// MaybeDone returns true. A package that does not import this one can recognize
// the error by this method, with errors.As.
func (e *LostAnswerError) MaybeDone() bool { return true }

// A complaint is an error that the server reported: its line.
type complaint string

func (c complaint) Error() string { return string(c) }

// isComplaint reports whether err is an answer in memcached's language. The
// breaker does not count it: a value that is too large, or a full memory, is no reason
// to leave the server alone. A proxy also reports in this way that one of the servers
// behind it failed, while the others answer.
func isComplaint(err error) bool {
	var c complaint
	return errors.As(err, &c)
}

// A lostError says that the connection was lost before the answer had been read.
// The same request may fare better on another one.
type lostError struct {
	error
}

func (e lostError) Error() string { return "connection lost: " + e.error.Error() }
func (e lostError) Unwrap() error { return e.error }

func isLost(err error) bool {
	_, lost := err.(lostError)
	return lost
}

// Why a call was not answered.
var (
	errTimeout    = fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
	errOverloaded = fmt.Errorf("%w: not sent and answered in time", exchange.ErrOverloaded)
	errTooMany    = errors.New("too many open connections: raise memcached's -c")
	errCut        = errors.New("the call was ended early") // the breaker has opened
	errUnasked    = errors.New("an answer without a request")
	errOtherKey   = errors.New("an item that was not asked for")
)

// isExcluded reports whether err says nothing about the server.
func isExcluded(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, exchange.ErrOverloaded) || errors.Is(err, context.Canceled)
}
