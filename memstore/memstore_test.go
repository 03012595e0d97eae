package memstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// client has the methods that a Store and the real client share.
type client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

var (
	_ client = (*memstore.Store)(nil)
	_ client = (*memcache.Client)(nil)
)

const month = 30 * 24 * 60 * 60 // seconds

// errOther stands for any error that is not one of the client's.
var errOther = errors.New("an error of another kind")

// kind returns err, or errOther for an error that callers must not match.
func kind(err error) error {
	switch err {
	case nil, memcache.ErrCacheMiss, memcache.ErrCASConflict, memcache.ErrNotStored, memcache.ErrMalformedKey:
		return err
	}
	return errOther
}

// item returns an item that does not expire.
func item(key, value string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte(value)}
}

// fetch returns the item at key, which must be there.
func fetch(t *testing.T, c client, key string) *memcache.Item {
	t.Helper()
	it, err := c.Get(key)
	require.NoError(t, err)
	return it
}

// valueLimit is the size of the largest value that memcached stores at key if Flags are
// 0.
func valueLimit(key string) int { return 1<<20 - 59 - len(key) }

// semantics are tests that a Store and a memcached server must pass.
var semantics = []struct {
	name string
	test func(t *testing.T, c client)
}{
	{"a nil value comes back empty", func(t *testing.T, c client) {
		require.NoError(t, c.Add(&memcache.Item{Key: "k"}))
		require.Equal(t, []byte{}, fetch(t, c, "k").Value)
	}},
	{"keys are checked", func(t *testing.T, c client) {
		long := strings.Repeat("k", 251)
		for _, key := range []string{long, "a b", "a\r\nb", "\x00", "\x7f", "\t", " "} {
			_, err := c.Get(key)
			require.Equal(t, memcache.ErrMalformedKey, err, "%q", key)
			require.Equal(t, memcache.ErrMalformedKey, c.Add(item(key, "v")), "%q", key)
			require.Equal(t, memcache.ErrMalformedKey, c.CompareAndSwap(item(key, "v")), "%q", key)
			require.Equal(t, memcache.ErrMalformedKey, c.Delete(key), "%q", key)
		}
		for _, key := range []string{long[1:], "!", "~", "#", "é", "\x80\xff"} {
			require.NoError(t, c.Add(item(key, "v")), "%q", key)
			require.Equal(t, key, fetch(t, c, key).Key)
		}
	}},
	{"the largest items", func(t *testing.T, c client) {
		for key, flags := range map[string]uint32{"k": 0, "key": 0, "f": 1} {
			n := valueLimit(key)
			if flags != 0 {
				n -= 4
			}
			require.NoError(t, c.Add(&memcache.Item{Key: key, Flags: flags, Value: make([]byte, n)}))
			require.Len(t, fetch(t, c, key).Value, n)
			require.NoError(t, c.Delete(key))
			require.Equal(t, errOther, kind(c.Add(&memcache.Item{Key: key, Flags: flags, Value: make([]byte, n+1)})))
			_, err := c.Get(key)
			require.Equal(t, memcache.ErrCacheMiss, err)
		}
	}},
	// Set would remove the old item, but Add and CompareAndSwap do not.
	{"an item too large leaves the old one", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "v")))
		old, large := fetch(t, c, "k"), fetch(t, c, "k")
		large.Value = make([]byte, 1<<20)
		require.Equal(t, errOther, kind(c.Add(large)))
		require.Equal(t, errOther, kind(c.CompareAndSwap(large)))
		large.CasID++
		require.Equal(t, errOther, kind(c.CompareAndSwap(large)))
		require.Equal(t, old, fetch(t, c, "k"))
	}},
	{"values are copied in and out", func(t *testing.T, c client) {
		in := item("k", "old")
		require.NoError(t, c.Add(in))
		in.Value[0] = 'X'
		out := fetch(t, c, "k")
		require.Equal(t, "old", string(out.Value))
		out.Value[0] = 'X'
		require.Equal(t, "old", string(fetch(t, c, "k").Value))
		out.Value = []byte("new")
		require.NoError(t, c.CompareAndSwap(out))
		out.Value[0] = 'X'
		many, err := c.GetMulti([]string{"k"})
		require.NoError(t, err)
		require.Equal(t, "new", string(many["k"].Value))
		many["k"].Value[0] = 'X'
		require.Equal(t, "new", string(fetch(t, c, "k").Value))
	}},
}

func TestSemantics(t *testing.T) {
	for _, tt := range semantics {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, memstore.New()) })
	}
}

func TestSemanticsOfRealMemcached(t *testing.T) {
	c := realClient(t)
	for _, tt := range semantics {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, c.FlushAll())
			tt.test(t, c)
		})
	}
}

func TestZeroStoreWorks(t *testing.T) {
	var s memstore.Store
	require.Zero(t, s.Stats())
	require.Zero(t, s.Stats().Items)
	require.Equal(t, memcache.ErrCacheMiss, s.Delete("k"))
	require.NoError(t, s.Add(item("k", "v")))
	require.Equal(t, 1, s.Stats().Items)
}

func TestItemTooLargeSaysHowLarge(t *testing.T) {
	s := memstore.New()
	err := s.Add(&memcache.Item{Key: "k", Value: make([]byte, 1<<20)})
	require.EqualError(t, err, "memstore: item too large: 1048636 bytes with its header, at most 1048576")
	s = &memstore.Store{MaxBytes: 10}
	err = s.Add(item("key", "12345678"))
	require.EqualError(t, err, "memstore: item too large: key and value of 11 bytes, MaxBytes is 10")
	require.NoError(t, s.Add(item("key", "1234567")))
}

// has returns those of keys that are in s, and removes them. Only Delete tells whether
// there is an item without making it the most recently used.
func has(s *memstore.Store, keys ...string) string {
	var there []string
	for _, key := range keys {
		if s.Delete(key) == nil {
			there = append(there, key)
		}
	}
	return strings.Join(there, " ")
}

func TestAnAttackerCannotFillMemory(t *testing.T) {
	s := memstore.New()
	value := make([]byte, valueLimit("key00"))
	for i := range 80 {
		require.NoError(t, s.Add(item(fmt.Sprintf("key%02d", i), string(value))))
		require.LessOrEqual(t, s.Stats().Bytes, 64<<20)
	}
	require.Equal(t, 64, s.Stats().Items)
	for i := range 100_000 + 1000 {
		require.NoError(t, s.Add(item(strconv.Itoa(i), "")))
	}
	require.Equal(t, 100_000, s.Stats().Items)
}

// As many as it takes, if need be of all shards, and not itself.
func TestALargeItemEvictsManySmallOnes(t *testing.T) {
	const most = 16 << 20
	for range 3 { // shards are chosen at random
		s := &memstore.Store{MaxBytes: most}
		for i := range most >> 10 {
			require.NoError(t, s.Add(item(fmt.Sprintf("%04x", i), strings.Repeat("v", 1020))))
		}
		require.Equal(t, most, s.Stats().Bytes)
		for i := range 32 {
			key := "large" + strconv.Itoa(i)
			require.NoError(t, s.Add(&memcache.Item{Key: key, Value: make([]byte, valueLimit(key))}))
			require.LessOrEqual(t, s.Stats().Bytes, most)
			fetch(t, s, key)
		}
	}
}

func TestKeyCutFromALargeStringDoesNotKeepIt(t *testing.T) {
	s := memstore.New()
	before := heap()
	for i := range 64 {
		large := strconv.Itoa(i) + strings.Repeat("x", 1<<20)
		require.NoError(t, s.Add(item(large[:10], "")))
	}
	require.Less(t, heap(), before+8<<20)
	require.Equal(t, 64, s.Stats().Items)
}

// A large item may find nothing to remove in its own shard.
func TestExpiredItemsMakeRoomForItemsOfOtherShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var evictions uint64
		for range 30 { // keys are divided in another way each time
			s := &memstore.Store{MaxBytes: 16 << 20}
			large := strings.Repeat("x", 1<<20-100)
			require.NoError(t, s.Add(item("lives", large)))
			for i := range 15 {
				require.NoError(t, s.Add(&memcache.Item{Key: strconv.Itoa(i), Value: []byte(large), Expiration: 1}))
			}
			time.Sleep(time.Second)
			require.NoError(t, s.Add(item("new", large)))
			_, err := s.Get("new")
			require.NoError(t, err)
			_, err = s.Get("lives")
			require.Equal(t, err != nil, s.Stats().Evictions > 0)
			evictions += s.Stats().Evictions
		}
		require.LessOrEqual(t, evictions, uint64(10), "only if new has lives beside it, and nothing that has expired")
	})
}

// Calls every method at once, on few keys and a Store that is too small for them. It is
// for the race detector. Each value that is read must be whole.
func TestConcurrentUseOfAllMethods(t *testing.T) {
	s := &memstore.Store{MaxItems: 5, MaxBytes: 2000}
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				key := keys[(g*7+i)%len(keys)]
				value := bytes.Repeat([]byte{byte(g)}, 100+i)
				err := s.Add(&memcache.Item{Key: key, Value: value, Expiration: int32(i%3) - 1})
				assert.NotEqual(t, errOther, kind(err))
				if it, err := s.Get(key); err == nil {
					assert.Len(t, bytes.Trim(it.Value, string(it.Value[:1])), 0)
					it.Value[0]++
					it.Value = value
					assert.NotEqual(t, errOther, kind(s.CompareAndSwap(it)))
				}
				_, err = s.GetMulti(keys)
				assert.NoError(t, err)
				assert.LessOrEqual(t, s.Stats().Bytes, 2000)
				if i%5 == 0 {
					assert.NotEqual(t, errOther, kind(s.Delete(key)))
				}
			}
		})
	}
	wg.Wait()
	has(s, keys...)
	require.Zero(t, s.Stats().Items)
	require.Zero(t, s.Stats().Bytes)
}

// heap returns the bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Short-lived items must not evict older ones that have not expired.
func TestExpiredItemsMakeRoomBeforeOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memstore.Store{MaxItems: 100}
		for i := range 50 {
			require.NoError(t, s.Add(&memcache.Item{Key: fmt.Sprint("old", i), Expiration: 1 << 20}))
			require.NoError(t, s.Add(&memcache.Item{Key: fmt.Sprint("changed", i), Expiration: 1}))
		}
		for i := range 50 { // these live on
			item, err := s.Get(fmt.Sprint("changed", i))
			require.NoError(t, err)
			item.Expiration = 1 << 20
			require.NoError(t, s.CompareAndSwap(item))
			require.NoError(t, s.Delete(fmt.Sprint("old", i)))
		}
		for i := range 10_000 {
			require.NoError(t, s.Add(&memcache.Item{Key: fmt.Sprint("junk", i), Expiration: 1}))
			if i%50 == 49 {
				time.Sleep(time.Second)
			}
		}
		require.Zero(t, s.Stats().Evictions)
		for i := range 50 {
			_, err := s.Get(fmt.Sprint("changed", i))
			require.NoError(t, err)
		}
		for i := range 100 {
			require.NoError(t, s.Add(&memcache.Item{Key: fmt.Sprint("more", i), Expiration: 1}))
		}
		require.NotZero(t, s.Stats().Evictions, "now they must")
		require.LessOrEqual(t, s.Stats().Items, 100)
	})
}

// An item may be looked up by another clock than it was stored by, as in a test.
func TestWhatNeverExpiresDoesNotBeforeTheStoreBegan(t *testing.T) {
	s := memstore.New()
	require.NoError(t, s.Add(item("before", "v")))
	synctest.Test(t, func(t *testing.T) { // begins in the year 2000
		require.NoError(t, s.Add(item("k", "v")))
		require.NoError(t, s.Add(&memcache.Item{Key: "minute", Expiration: 60}))
		time.Sleep(time.Minute - time.Nanosecond)
		fetch(t, s, "k")
		fetch(t, s, "minute")
		fetch(t, s, "before")
		time.Sleep(time.Nanosecond)
		_, err := s.Get("minute")
		require.Equal(t, memcache.ErrCacheMiss, err)
		fetch(t, s, "k")
	})
	fetch(t, s, "k")
}
