package throttler

import (
	"context"
	"errors"

	"github.com/bradfitz/gomemcache/memcache"
)

// ErrOverloaded matches, by errors.Is, the error of a condition that could not
// be asked about in time although its server answers: this process asks more
// than the server can carry, or too many others change the same record.
var ErrOverloaded = errors.New("throttler: overloaded")

// ErrUnavailable matches, by errors.Is, the error of a condition whose server
// does not answer: it is down, cut off or hung.
var ErrUnavailable = errors.New("throttler: server unavailable")

// An Exchanger is a Client that writes a record and reads it back in one round
// trip. It is optional: without it a Throttler reads first and writes then.
// Packages pool and memstore have it.
type Exchanger interface {
	Client

	// Exchange starts all xs, together, and returns when each is done, or
	// when ctx is, whichever comes first. They are started even if ctx has
	// ended already, and go on without the caller, for as long as the
	// Exchanger's own timeout allows. Each is done exactly once.
	Exchange(ctx context.Context, xs ...Exchange)

	// Start starts xs and returns without waiting for any server. It may be
	// called by Done.
	Start(xs ...Exchange)
}

// An Exchange is one record that is to be written if it is as the caller
// believes, and to be read back. Its methods are called by an Exchanger, on any
// goroutine, never two of them at once, and do not block.
type Exchange interface {
	// Key returns the key of the record, which is legal.
	Key() string

	// Propose is called when the turn of the exchange to be sent has come. It
	// returns the item to write: with a CasID by CompareAndSwap, without one
	// by Add; nil: the record is only read. The item then belongs to the
	// Exchanger. Propose is called again, with another Turn, if the answer was
	// lost with its connection and the exchange is sent anew.
	Propose(Turn) *memcache.Item

	// Done takes the result. It is the last call.
	Done(Result)
}

// A Turn is what an Exchanger knows when an exchange is about to be sent.
type Turn struct {
	// Conn identifies the connection, and is never used again for another.
	// CAS tokens that another connection gave must not be sent on this one:
	// tokens begin anew when a server restarts. 0: a token may be used by the
	// exchange that read it only.
	Conn uint64

	// Known says that the Exchanger has just read the record, and Found is
	// it; nil: there is none.
	Known bool
	Found *memcache.Item
}

// A Result is what became of an exchange.
type Result struct {
	// Conn is that of the last Turn.
	Conn uint64

	// Stored says that the item proposed last was written.
	Stored bool

	// Read says that the record was read after the write, and Found is what
	// it was then, nil if there was none. An item proposed may be stored and
	// its record not read back.
	Read  bool
	Found *memcache.Item

	// Unknown says that nobody knows whether an item that was proposed was
	// written, since the answer was lost.
	Unknown bool

	// Err is why the record could not be written or read, nil if all was
	// answered. To find another record than believed is not an error. It
	// matches ErrUnavailable if the server does not answer, ErrOverloaded if
	// the exchange was not sent in time.
	Err error
}
