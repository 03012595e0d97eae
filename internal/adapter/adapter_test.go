package adapter

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// errTooMany is the error of gomemcache for a server without a connection to give.
var errTooMany = errors.New("memcache: unexpected line in get response: \"ERROR Too many open connections\\r\\n\"")

// A client is a memstore whose operations may be replaced.
type client struct {
	*memstore.Store
	get      func(key string) (*memcache.Item, error)
	getMulti func(keys []string) (map[string]*memcache.Item, error)
	add      func(item *memcache.Item) error
}

func (c *client) Get(key string) (*memcache.Item, error) {
	if c.get != nil {
		return c.get(key)
	}
	return c.Store.Get(key)
}

func (c *client) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if c.getMulti != nil {
		return c.getMulti(keys)
	}
	return c.Store.GetMulti(keys)
}

func (c *client) Add(item *memcache.Item) error {
	if c.add != nil {
		return c.add(item)
	}
	return c.Store.Add(item)
}

// A write is an exchange that adds an item where there is none.
type write struct {
	key    string
	result exchange.Result
}

func (w *write) Key() string { return w.key }

func (w *write) Propose(turn exchange.Turn) *memcache.Item {
	if turn.Found != nil {
		return nil
	}
	return &memcache.Item{Key: w.key, Value: []byte("mine")}
}

func (w *write) Done(r exchange.Result) { w.result = r }

// inTime runs test in time that is held, over a client.
func inTime(t *testing.T, test func(t *testing.T, c *client, x *Exchanger)) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{Store: memstore.New()}
		test(t, c, New(c, time.Second))
	})
}

func TestAKeyWhoseServerHasNoConnectionIsReadByItself(t *testing.T) {
	inTime(t, func(t *testing.T, c *client, x *Exchanger) {
		c.getMulti = func([]string) (map[string]*memcache.Item, error) {
			return nil, perKey{"a": errTooMany}
		}
		a, b := &write{key: "a"}, &write{key: "b"}
		x.Exchange(t.Context(), a, b)
		require.Equal(t, exchange.Result{Stored: true}, a.result)
		require.Equal(t, exchange.Result{Stored: true}, b.result)
	})
}

// The answer to a write is lost. If it cannot be found out whether it was carried out, the
// result says so.
func TestAWriteWhoseAnswerWasLostIsFoundOut(t *testing.T) {
	for name, c := range map[string]struct {
		carriedOut bool
		again      error // of the read that finds out
		want       exchange.Result
	}{
		"carried out":     {carriedOut: true, want: exchange.Result{Read: true}},
		"not carried out": {want: exchange.Result{Stored: true}},
		"not known":       {carriedOut: true, again: io.ErrUnexpectedEOF, want: exchange.Result{Unknown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, client *client, x *Exchanger) {
				client.add = func(item *memcache.Item) error {
					client.add = nil
					client.get = func(key string) (*memcache.Item, error) {
						if c.again != nil {
							return nil, c.again
						}
						return client.Store.Get(key)
					}
					if c.carriedOut {
						require.NoError(t, client.Store.Add(item))
					}
					return io.EOF
				}
				w := &write{key: "k"}
				x.Exchange(context.Background(), w)
				got := w.result
				require.ErrorIs(t, got.Err, c.again)
				require.Equal(t, c.want.Read, got.Found != nil)
				got.Found, got.Err = nil, nil
				require.Equal(t, c.want, got)
			})
		})
	}
}

// One that was read by itself, and given up, is not read a second time.
func TestAServerThatRefusesEveryConnectionIsGivenUpOnce(t *testing.T) {
	inTime(t, func(t *testing.T, c *client, x *Exchanger) {
		c.getMulti = func([]string) (map[string]*memcache.Item, error) {
			time.Sleep(time.Hour)
			return nil, errTooMany
		}
		c.get = func(string) (*memcache.Item, error) { return nil, errTooMany }
		a, b := &write{key: "a"}, &write{key: "b"}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := time.Now()
		x.Exchange(ctx, a, b)
		require.Equal(t, hedge+time.Second, time.Since(begin))
		require.ErrorIs(t, a.result.Err, failure.ErrUnavailable)
		require.ErrorIs(t, b.result.Err, failure.ErrUnavailable)
		time.Sleep(time.Hour) // until the client gives up
	})
}
