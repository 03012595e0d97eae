package redisstore

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/fanout"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/rueidis"
)

// A request is one exchange on its way. It belongs to its node's queue, and then to the
// goroutine that carries it out.
type request struct {
	x      exchange.Exchange
	latch  *fanout.Latch // opens when it and others have ended; nil: nobody waits
	node   *node
	key    string // with the prefix
	queued time.Time

	item     *memcache.Item // to be written; nil: nothing is
	deletes  bool           // the record is to be deleted; then x proposes nothing
	proposed bool           // item is set
	number   uint64         // of the write
	lost     bool           // an answer was lost: the write may have been carried out
	doubted  bool           // so may one of an item before this one

	answer rueidis.RedisMessage
	stored bool  // the answer says that item was
	err    error // instead of an answer
}

// conn is the Turn's: a write number is good on any connection.
const conn = 1

// propose asks the exchange what is to be written, now that its turn has come.
func (r *request) propose(now time.Time) {
	if r.proposed || r.deletes {
		return
	}
	r.proposed = true
	r.setItem(r.x.Propose(exchange.Turn{Conn: conn, Now: now}))
}

// setItem sets the item that was proposed.
func (r *request) setItem(item *memcache.Item) {
	r.item = item
	if item == nil {
		return
	}
	r.number = newNumber(item.Flags)
}

// numberSize is that of a write number.
const numberSize = 8

// newNumber returns the number of a write: 4 random bytes, and the item's flags, which
// a throttler draws too. It is not zero.
func newNumber(flags uint32) uint64 {
	for {
		if n := uint64(rand.Uint32())<<32 | uint64(flags); n != 0 {
			return n
		}
	}
}

// isNew reports whether r is to write a record where none should be.
func (r *request) isNew() bool { return r.item != nil && r.item.CasID == 0 }

// writes reports whether r may change the record.
func (r *request) writes() bool { return r.item != nil || r.deletes }

const (
	maxRelative = 30 * 24 * 60 * 60              // seconds; what is more is a date, as in memcached
	forever     = 10 * 365 * 24 * 60 * 60 * 1000 // milliseconds, of an item without an expiry
)

// milliseconds returns the expiry of an item in milliseconds.
func milliseconds(expiration int32) int64 {
	switch {
	case expiration == 0:
		return forever
	case expiration <= 0:
		return 1
	case expiration <= maxRelative:
		return int64(expiration) * 1000
	}
	return max(time.Until(time.Unix(int64(expiration), 0)).Milliseconds(), 1)
}

// finish ends r, which has an answer that is no error, or is told again what to write.
// Then it reports true.
func (r *request) finish() (again bool) {
	result := exchange.Result{Conn: conn, Read: true}
	switch {
	case r.deletes:
		n, _ := r.answer.AsInt64()
		result.Read, result.Stored = false, n > 0
	case r.stored:
		result.Stored, result.Found = true, r.written()
	default:
		result.Found = r.found()
		result.Stored = r.item != nil && result.Found != nil && result.Found.CasID == r.number
	}
	if r.lost && !result.Stored && r.item != nil {
		// Whether the first try was carried out, only the exchange can tell.
		r.lost, r.doubted = false, true
		r.setItem(r.x.Propose(exchange.Turn{Conn: conn}))
		if r.item != nil {
			return true
		}
	}
	r.done(result)
	return false
}

// written returns the item as it is stored: the one that was proposed.
func (r *request) written() *memcache.Item {
	r.item.Key, r.item.CasID = r.x.Key(), r.number
	return r.item
}

// found returns the item in the answer, or nil. A value without a number counts as none.
func (r *request) found() *memcache.Item {
	value, err := r.answer.AsBytes()
	if err != nil || len(value) < numberSize {
		return nil
	}
	number := binary.LittleEndian.Uint64(value)
	if number == 0 {
		return nil
	}
	return &memcache.Item{Key: r.x.Key(), Value: value[numberSize:], Flags: uint32(number), CasID: number}
}

// fail ends r with an error.
func (r *request) fail(err error) {
	unknown := r.lost || r.doubted
	r.done(exchange.Result{Conn: conn, Err: err, Unknown: unknown, Refused: !unknown && isComplaint(err)})
}

func (r *request) done(result exchange.Result) {
	r.x.Done(result)
	r.latch.Ended()
}
