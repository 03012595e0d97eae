package storetest_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/storetest"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// TestMain says at the end what was skipped.
func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

func TestMemstore(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	storetest.Run(t, func(*testing.T) throttler.Client { return store })
}

func TestStoresThatShareNothing(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) throttler.Client { return memstore.New() })
}

func TestPool(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	storetest.Run(t, func(t *testing.T) throttler.Client {
		p, err := pool.New(server.Addr)
		require.NoError(t, err)
		p.Timeout, p.DialTimeout, p.QueueTimeout = memcachedTimeout, memcachedTimeout, memcachedTimeout
		t.Cleanup(func() { p.Close() })
		return p
	})
}

func TestGomemcache(t *testing.T) {
	t.Parallel()
	server := servertest.AnyMemcached(t)
	storetest.Run(t, func(t *testing.T) throttler.Client {
		client := memcache.New(server.Addr)
		client.MaxIdleConns, client.Timeout = 64, memcachedTimeout
		t.Cleanup(func() { client.Close() })
		return client
	})
}

// broken are stores with a mistake each.
var broken = map[string]func(*memstore.Store) throttler.Client{
	"swaps without looking": func(s *memstore.Store) throttler.Client { return blind{s} },
	"adds without looking":  func(s *memstore.Store) throttler.Client { return eager{s} },
	"forgets flags":         func(s *memstore.Store) throttler.Client { return plainItems{s} },
	"never expires":         func(s *memstore.Store) throttler.Client { return lasting{s} },
	"compares values":       func(s *memstore.Store) throttler.Client { return comparing{s} },
	"cuts keys":             func(s *memstore.Store) throttler.Client { return short{s} },
}

// TestBroken runs the suite over a broken store, for TestABrokenStoreFails.
func TestBroken(t *testing.T) {
	make := broken[os.Getenv("STORETEST_BROKEN")]
	if make == nil {
		t.Skip("it is run by TestABrokenStoreFails")
	}
	store := memstore.New()
	storetest.Run(t, func(*testing.T) throttler.Client { return make(store) })
}

func TestABrokenStoreFails(t *testing.T) {
	t.Parallel()
	for name := range broken {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBroken$")
		cmd.Env = append(os.Environ(), "STORETEST_BROKEN="+name)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, "a store that %s passes:\n%s", name, out)
		require.Contains(t, string(out), "--- FAIL: TestBroken", "it ends by itself")
	}
}

// A blind store swaps whatever is there, as get and set do.
type blind struct{ throttler.Client }

func (b blind) CompareAndSwap(item *memcache.Item) error {
	now, err := b.Get(item.Key)
	if err != nil {
		return err
	}
	next := *item
	next.CasID = now.CasID
	return b.Client.CompareAndSwap(&next)
}

// An eager store adds where there is an item.
type eager struct{ throttler.Client }

func (e eager) Add(item *memcache.Item) error {
	_ = e.Delete(item.Key)
	return e.Client.Add(item)
}

// A plainItems store forgets flags.
type plainItems struct{ throttler.Client }

func (p plainItems) Add(item *memcache.Item) error {
	next := *item
	next.Flags = 0
	return p.Client.Add(&next)
}

// A lasting store keeps everything.
type lasting struct{ throttler.Client }

func (l lasting) Add(item *memcache.Item) error {
	next := *item
	next.Expiration = 0
	return l.Client.Add(&next)
}

// A comparing store takes an equal value for an unchanged one.
type comparing struct{ throttler.Client }

func (c comparing) CompareAndSwap(item *memcache.Item) error {
	now, err := c.Get(item.Key)
	if err != nil {
		return err
	}
	next := *item
	if string(now.Value) == "one" {
		next.CasID = now.CasID
	}
	return c.Client.CompareAndSwap(&next)
}

// A short store keeps 40 bytes of a key.
type short struct{ throttler.Client }

func (s short) cut(key string) string { return key[:min(len(key), 40)] }

func (s short) Add(item *memcache.Item) error {
	next := *item
	next.Key = s.cut(item.Key)
	return s.Client.Add(&next)
}

func (s short) CompareAndSwap(item *memcache.Item) error {
	next := *item
	next.Key = s.cut(item.Key)
	return s.Client.CompareAndSwap(&next)
}

func (s short) Get(key string) (*memcache.Item, error) {
	item, err := s.Client.Get(s.cut(key))
	if err != nil {
		return nil, err
	}
	whole := *item
	whole.Key = key
	return &whole, nil
}

// memcachedTimeout is long: a busy machine must not count as an outage.
const memcachedTimeout = 5 * time.Second
