// Package slots has the records that this process deals with now, or did lately.
//
// Each record has a slot. All changes of the record that are asked for while an exchange
// is under way wait for the next one: they are decided one after the other on one read of
// the record, and stored by one write. A slot also remembers the record as it was last
// seen, to propose the next write on it at once.
//
// The package knows no condition and no rule, but the [Change] that somebody wants of a
// record. To follow one read [Table.Ask], [Table.lead], [slot.Propose], [slot.Done] and
// [slot.conclude], in this order.
package slots

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

	// Stands reports whether what Apply has decided last holds though r was not stored:
	// the call is blocked.
	Stands() bool

	// Doubt says that an earlier write of this change may have been carried out, and be
	// in what Apply finds from now on. It reports whether to go on trying.
	Doubt() bool
}

var (
	// ErrStalled is the error of a change that the backend does not store, though the
	// record stays as it is.
	ErrStalled = errors.New("throttler: the backend keeps refusing a write: a proxy may read one copy of the record and write another")

	// ErrLostAnswer is the error, or the note, of a change that may have been stored
	// twice.
	ErrLostAnswer = errors.New("throttler: the answer to a write was lost, the hit may be counted twice")
)
