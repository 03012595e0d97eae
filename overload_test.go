package throttler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What becomes of calls when this process asks more than its backend can carry.

// A counter is a server that takes a given time for each operation, and counts
// how many it serves at once.
type counter struct {
	*memstore.Store
	serves func(op string, keys ...string) time.Duration
	fails  func(op string) error // nil: nothing does

	underWay, most, served atomic.Int64
}

func (c *counter) serve(op string, keys ...string) error {
	n := c.underWay.Add(1)
	defer c.underWay.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); {
		most = c.most.Load()
	}
	time.Sleep(c.serves(op, keys...))
	c.served.Add(1)
	if c.fails == nil {
		return nil
	}
	return c.fails(op)
}

// plainly returns what client is to a throttler that knows the five methods only.
func plainly(client throttler.Client) throttler.Client { return struct{ throttler.Client }{client} }

func (c *counter) plainly() throttler.Client { return plainly(overCounter{c}) }

type overCounter struct{ c *counter }

func (o overCounter) Get(key string) (*memcache.Item, error) {
	if err := o.c.serve("get", key); err != nil {
		return nil, err
	}
	return o.c.Store.Get(key)
}

func (o overCounter) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if err := o.c.serve("get", keys...); err != nil {
		return nil, err
	}
	return o.c.Store.GetMulti(keys)
}

func (o overCounter) Add(item *memcache.Item) error {
	if err := o.c.serve("add", item.Key); err != nil {
		return err
	}
	return o.c.Store.Add(item)
}

func (o overCounter) CompareAndSwap(item *memcache.Item) error {
	if err := o.c.serve("cas", item.Key); err != nil {
		return err
	}
	return o.c.Store.CompareAndSwap(item)
}

func (o overCounter) Delete(key string) error {
	if err := o.c.serve("delete", key); err != nil {
		return err
	}
	return o.c.Store.Delete(key)
}

// always returns how long each operation takes, whichever it is.
func always(d time.Duration) func(string, ...string) time.Duration {
	return func(string, ...string) time.Duration { return d }
}

// valued returns a rule for a value that is not full.
func valued(value string) throttler.Rule {
	c := condition("a", 1000, time.Hour)
	c.Value = value
	return either(c)
}

func TestACallThatHasNoTurnInTimeIsOverloadedWhileOthersAreAnswered(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"a context that cannot end": func(*testing.T) context.Context { return context.Background() },
		"a context that can":        func(t *testing.T) context.Context { return t.Context() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &counter{Store: memstore.New(), serves: always(400 * time.Millisecond)}
				th := throttler.New(c.plainly())
				var answered, overloaded atomic.Int64
				var wg sync.WaitGroup
				for i := range 300 {
					wg.Go(func() {
						begin := time.Now()
						d, err := th.Authorize(ctx(t), valued(string(rune('a'+i))))
						assert.NoError(t, err)
						if d.Err == nil {
							answered.Add(1)
							return
						}
						overloaded.Add(1)
						assert.ErrorIs(t, d.Err, throttler.ErrOverloaded)
						assert.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
						assert.Equal(t, throttler.Authorized, d.Status)
						assert.Equal(t, throttler.DefaultQueueTimeout, time.Since(begin))
					})
				}
				wg.Wait()
				require.EqualValues(t, 2*64, answered.Load(), "two rounds of those who may be under way, a read and a write each")
				require.EqualValues(t, 300-2*64, overloaded.Load())
				require.EqualValues(t, 64, c.most.Load())
			})
		})
	}
}

func TestResetsWaitForTheirTurnToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{Store: memstore.New(), serves: always(10 * time.Millisecond)}
		th := throttler.New(c.plainly())
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() { assert.NoError(t, th.Reset(t.Context(), valued(string(rune('a'+i))))) })
		}
		wg.Wait()
		require.EqualValues(t, 500, c.served.Load())
		require.EqualValues(t, 64, c.most.Load())
	})
}
