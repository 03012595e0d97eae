// Package exchange has the interfaces between a throttler and the store of its records.
//
// A store of your own needs the methods of a throttler.Client only: five of a memcached client.
// It may be an [Exchanger] too, which writes a record and reads it back in one round trip.
// docs/stores.md says how to write and test one.
//
// A program that only uses a store does not import this package.
package exchange

import (
	"context"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// An Exchanger is a throttler.Client that also writes a record and reads it back in one round
// trip. Over any other Client, a Throttler reads first and then writes. Packages pool,
// memstore and redisstore have Exchangers.
type Exchanger interface {
	// Exchange starts all xs together, and returns when each is done or ctx
	// ends. It starts them even if ctx has ended. When ctx ends they go on, for
	// as long as the Exchanger's own timeout allows. It calls Done exactly once
	// for each, which it does not use afterwards. It does not keep xs.
	Exchange(ctx context.Context, xs ...Exchange)

	// Start starts xs and returns without waiting for a server. Done may call
	// it.
	Start(xs ...Exchange)
}

// An Exchange writes one record if it is still as expected, and reads it back. An
// Exchanger calls its methods, on any goroutine, one at a time. They do not block.
type Exchange interface {
	// Key returns the key of the record. It is legal.
	Key() string

	// Propose returns the item to write: with a CasID by CompareAndSwap,
	// without one by Add. Nil means that the record is only read. The Exchanger
	// must not change the item before it is stored. Then it may make it the Result's
	// Found. Its Flags have the bit [BanFlag] if it holds a ban, and are of no other
	// use to the Exchanger.
	//
	// The Exchanger calls it when it is about to send the exchange. It calls it
	// again, with another Turn, if the connection was lost before the answer and
	// it sends the exchange again.
	Propose(Turn) *memcache.Item

	// Done takes the result. The Exchanger calls it last.
	Done(Result)
}

// BanFlag is the bit of an item's Flags that says that its record holds a ban. A store
// that evicts items lets these go last.
const BanFlag uint32 = 1 << 31

// A Turn is what an Exchanger knows when an exchange is about to be sent.
type Turn struct {
	// Conn identifies the connection. The number is never used for another
	// connection. A CAS token must be sent only on the connection that gave it,
	// because tokens begin anew when a server restarts. 0 means that only the
	// exchange that read a token may use it.
	Conn uint64

	// Known is true if the Exchanger has just read the record. Found is that
	// record, or nil if there is none.
	Known bool
	Found *memcache.Item

	// NotStored is true if the item that was proposed before, on another turn, was
	// not written and cannot be any more: it was not sent, or was refused. False
	// says nothing.
	NotStored bool

	// Now is when the turn came, if the Exchanger has just read the clock.
	// Zero: it has not.
	Now time.Time
}

// A Result is the end of an exchange.
type Result struct {
	// Conn is that of the last Turn.
	Conn uint64

	// Stored is true if the item that was proposed last was written.
	Stored bool

	// Read is true if the record was read after the write. Found is that record,
	// or nil if there was none. Stored may be true and Read false.
	Read  bool
	Found *memcache.Item

	// Unknown is true if it is not known whether a proposed item was written, or
	// will be: the answer was lost, or a proxy gave the write up.
	Unknown bool

	// Refused is true if the server has refused the item that was proposed last, which it
	// will not write either. False says nothing.
	Refused bool

	// Err is why the record could not be written or read, or nil. It matches
	// throttler.ErrUnavailable if the server does not answer, and throttler.ErrOverloaded if
	// the exchange was not sent in time. A conflict with another write is not an
	// error.
	Err error
}
