package coalesce

import (
	"errors"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// A Change is what its caller wants of one record. Its methods are called one at a time,
// on any goroutine, and do not block.
type Change interface {
	// Apply decides on r at now, in place, and reports whether r is to be stored. It is
	// called again, on another r, whenever the record turns out to be another one. The
	// last call counts.
	Apply(now record.Instant, r *record.Record) (store bool)

	// Stands reports whether the call is blocked by what Apply has decided last, which
	// holds though r was not stored.
	Stands() bool

	// Doubt says that an earlier write of this change may have been carried out, and be
	// in what Apply finds from now on. It reports whether to go on trying, and whether
	// the change may then be stored twice: not if Apply knows it again.
	Doubt() (again, twice bool)
}

var (
	// ErrStalled is the error of a change that the backend does not store, though the
	// record stays as it is.
	ErrStalled = errors.New("throttler: the backend keeps refusing a write: a proxy may read one copy of the record and write another")

	// ErrLostAnswer is the error, or the note, of a change that may have been stored
	// twice.
	ErrLostAnswer = errors.New("throttler: the answer to a write was lost, the hit may be counted twice")
)
