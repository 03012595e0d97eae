package exchange

import (
	"errors"

	"github.com/bradfitz/gomemcache/memcache"
)

// A Client stores records. It has five methods of [memcache.Client] of
// github.com/bradfitz/gomemcache, with the same meanings and errors. Package
// memstore has a Client in process memory, package pool one over memcached servers.
//
// The throttler calls the methods from several goroutines at once, always with
// legal keys. An item that the Client gets or returns belongs to the throttler, which
// does not change the Value of a returned item.
//
// A Client may implement [Exchanger]. Its errors may implement [KeyError] and
// [MaybeDoneError].
type Client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

// A KeyError is an error of GetMulti that returns the error of each key, or nil. A
// key without an error and without an item is not stored. After any other error, the
// throttler asks for each missing key by itself.
type KeyError interface {
	error
	KeyError(key string) error
}

// A MaybeDoneError is an error of Add or CompareAndSwap, from a Client that repeats a
// write whose answer was lost. The record had changed. MaybeDone reports whether the
// first try may have changed it.
type MaybeDoneError interface {
	error
	MaybeDone() bool
}

// ErrOverloaded matches, by errors.Is, the error of an exchange that was not made in time
// although the server answers: this process asks more than the server can carry.
var ErrOverloaded = errors.New("throttler: overloaded")

// ErrUnavailable matches, by errors.Is, the error of an exchange with a server that does
// not answer: it is down, cut off or hung, or has too many connections to take another
// one.
var ErrUnavailable = errors.New("throttler: server unavailable")

// ErrNoCAS matches, by errors.Is, the error of a record that came without a CAS token, so
// that nothing can be stored.
var ErrNoCAS = errors.New("throttler: the server gives no CAS tokens: run memcached without -C")
