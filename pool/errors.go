package pool

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/adaptivethrottler/throttler/internal/failure"
)

// ErrClosed is the error of a call after Close, or during it, of a redisstore too.
var ErrClosed = failure.ErrClosed

// serverError returns err as the failure of a server, or of the way to it. Ordinary answers
// (a miss, a conflict) are no failures and come as memcache.Client returns them.
func serverError(server string, err error) error {
	return &failure.ServerError{
		Store: "pool", Server: server, Err: err,
		Answered: isComplaint(err) || errors.Is(err, failure.ErrNoCAS) || errors.Is(err, failure.ErrOverloaded),
	}
}

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
	errOverloaded = fmt.Errorf("%w: not sent and answered in time", failure.ErrOverloaded)
	errTooMany    = errors.New("too many open connections: raise memcached's -c")
	errCut        = errors.New("the call was ended early") // the breaker has opened
	errUnasked    = errors.New("an answer without a request")
	errOtherKey   = errors.New("an item that was not asked for")
)

// isExcluded reports whether err says nothing about the server.
func isExcluded(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, failure.ErrOverloaded) || errors.Is(err, context.Canceled)
}
