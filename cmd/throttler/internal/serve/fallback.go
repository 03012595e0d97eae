package serve

import (
	"errors"
	"sync/atomic"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
)

// errClosed is the error of a fallback that is off.
var errClosed = errors.New("the rule file says failure: closed")

// A fallback decides in the process while the servers fail. A rule file with
// failure: closed switches it off: then each operation fails.
type fallback struct {
	client throttler.Client
	off    *atomic.Bool
}

func (f *fallback) Get(key string) (*memcache.Item, error) {
	if f.off.Load() {
		return nil, errClosed
	}
	return f.client.Get(key)
}

func (f *fallback) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if f.off.Load() {
		return nil, errClosed
	}
	return f.client.GetMulti(keys)
}

func (f *fallback) Add(item *memcache.Item) error {
	if f.off.Load() {
		return errClosed
	}
	return f.client.Add(item)
}

func (f *fallback) CompareAndSwap(item *memcache.Item) error {
	if f.off.Load() {
		return errClosed
	}
	return f.client.CompareAndSwap(item)
}

func (f *fallback) Delete(key string) error {
	if f.off.Load() {
		return errClosed
	}
	return f.client.Delete(key)
}

// Unwrap returns what f is around, for the metrics.
func (f *fallback) Unwrap() throttler.Client { return f.client }
