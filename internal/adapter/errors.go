package adapter

import (
	"errors"
	"io"
	"net"
	"os"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/bradfitz/gomemcache/memcache"
)

// lostRace reports whether err, of Add or CompareAndSwap, means that the record has
// changed since it was read.
func lostRace(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) ||
		errors.Is(err, memcache.ErrNotStored) ||
		errors.Is(err, memcache.ErrCacheMiss)
}

// maybeDone reports whether the write that returned err may have changed the record
// itself.
func maybeDone(err error) bool {
	var lost exchange.MaybeDoneError
	return errors.As(err, &lost) && lost.MaybeDone()
}

// An unavailableError is the error of a client whose server does not answer.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error        { return e.error }
func (e unavailableError) Is(target error) bool { return target == failure.ErrUnavailable }

// Classified returns err. If err means that a server does not answer, the result
// matches [failure.ErrUnavailable].
func Classified(err error) error {
	if err == nil || errors.Is(err, failure.ErrUnavailable) || !(isTimeout(err) || isBroken(err)) {
		return err
	}
	return unavailableError{err}
}

// isTimeout reports whether err is a timeout. That of gomemcache for a dial does not say
// so by a method.
func isTimeout(err error) bool {
	if err == nil {
		return false // the usual case, without an allocation
	}
	var timeout interface{ Timeout() bool }
	var dial *memcache.ConnectTimeoutError
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() ||
		errors.As(err, &dial)
}

// isBroken reports whether err means that a connection is lost or cannot be made.
func isBroken(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, memcache.ErrNoServers) || errors.Is(err, net.ErrClosed)
}
