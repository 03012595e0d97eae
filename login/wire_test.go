package login_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/adaptivethrottler/throttler"
)

// A wire is a client that calls a function before each operation: "get", "add", "cas" or
// "delete" of keys, with blanks between. An error of it is the operation's.
type wire struct {
	throttler.Client
	before atomic.Pointer[func(operation, keys string) error]
}

// meets has do called from now on, if it is not nil.
func (w *wire) meets(do func(operation, keys string) error) {
	w.before.Store(&do)
}

var errDown = errors.New("the server is down")

// breaks has every operation fail from now on.
func (w *wire) breaks() { w.meets(func(string, string) error { return errDown }) }

// works has none fail any more.
func (w *wire) works() { w.meets(nil) }

// distant returns a client whose every operation takes a millisecond.
func distant(client throttler.Client) *wire {
	w := &wire{Client: client}
	w.meets(func(string, string) error { time.Sleep(time.Millisecond); return nil })
	return w
}

func (w *wire) do(operation string, keys ...string) error {
	if before := w.before.Load(); before != nil && *before != nil {
		return (*before)(operation, strings.Join(keys, " "))
	}
	return nil
}

func (w *wire) Get(key string) (*memcache.Item, error) {
	if err := w.do("get", key); err != nil {
		return nil, err
	}
	return w.Client.Get(key)
}

func (w *wire) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if err := w.do("get", keys...); err != nil {
		return nil, err
	}
	return w.Client.GetMulti(keys)
}

func (w *wire) Add(item *memcache.Item) error {
	if err := w.do("add", item.Key); err != nil {
		return err
	}
	return w.Client.Add(item)
}

func (w *wire) CompareAndSwap(item *memcache.Item) error {
	if err := w.do("cas", item.Key); err != nil {
		return err
	}
	return w.Client.CompareAndSwap(item)
}

func (w *wire) Delete(key string) error {
	if err := w.do("delete", key); err != nil {
		return err
	}
	return w.Client.Delete(key)
}
