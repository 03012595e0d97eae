package login_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
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

func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, distant(memstore.New()))
		take := func(want int, what string, f func()) {
			t.Helper()
			start := time.Now()
			f()
			require.LessOrEqual(t, time.Since(start), time.Duration(want)*time.Millisecond, what)
		}
		begin := func() { g.begin("alice", home) }
		take(2, "an attempt", begin)
		take(2+3, "a success, the first from there", func() { g.succeeds("alice", home) })
		take(2+3, "the second", func() { g.succeeds("alice", home) })
		take(2+3, "any further success", func() { g.succeeds("alice", home) })
		g.fails(6, "alice", home)
		take(1, "a banned attempt", begin)
		g.fill("alice")
		take(2, "one that is blocked by its name, of somebody unknown", func() { g.begin("alice", addr(1)) })
		time.Sleep(10 * time.Minute)
		g.fill("alice")
		take(4, "and of somebody known", begin)

		var a *login.Attempt
		device := func(name string) { a = g.beginDevice("bob", home, name) }
		succeed := func(next string) { require.NoError(t, a.Succeed(login.WithDevice(t.Context(), next))) }
		take(2, "an attempt with a device", func() { device("of the browser") })
		take(3, "a success that replaces it", func() { succeed("first") })
		device("first")
		take(7, "a success that replaces a known one", func() { succeed("second") })
		take(7, "the first attempt with the new one", func() { device("second") })
		take(2, "any further attempt", func() { device("second") })
	})
}
