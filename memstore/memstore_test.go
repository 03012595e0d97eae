package memstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
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
	{"an added item comes back", func(t *testing.T, c client) {
		require.NoError(t, c.Add(&memcache.Item{Key: "k", Value: []byte("v\r\n\x00"), Flags: math.MaxUint32, Expiration: 100, CasID: 7}))
		got := fetch(t, c, "k")
		require.NotZero(t, got.CasID)
		require.Equal(t, &memcache.Item{Key: "k", Value: []byte("v\r\n\x00"), Flags: math.MaxUint32, CasID: got.CasID}, got)
	}},
	{"a nil value comes back empty", func(t *testing.T, c client) {
		require.NoError(t, c.Add(&memcache.Item{Key: "k"}))
		require.Equal(t, []byte{}, fetch(t, c, "k").Value)
	}},
	{"what is absent is a miss", func(t *testing.T, c client) {
		_, err := c.Get("k")
		require.Equal(t, memcache.ErrCacheMiss, err)
		require.Equal(t, memcache.ErrCacheMiss, c.Delete("k"))
		require.Equal(t, memcache.ErrCacheMiss, c.CompareAndSwap(&memcache.Item{Key: "k", CasID: 1}))
	}},
	{"add leaves what is there", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "old")))
		old := fetch(t, c, "k")
		require.Equal(t, memcache.ErrNotStored, c.Add(item("k", "new")))
		require.Equal(t, old, fetch(t, c, "k"))
	}},
	{"of two swaps the first wins", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "0")))
		first, second := fetch(t, c, "k"), fetch(t, c, "k")
		first.Value, first.Flags = []byte("first"), 5
		second.Value = []byte("second")
		require.NoError(t, c.CompareAndSwap(first))
		require.Equal(t, memcache.ErrCASConflict, c.CompareAndSwap(second))
		got := fetch(t, c, "k")
		require.Equal(t, "first", string(got.Value))
		require.EqualValues(t, 5, got.Flags)
		require.NotEqual(t, first.CasID, got.CasID)
	}},
	{"an equal value takes a fresh token", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "v")))
		old := fetch(t, c, "k")
		require.NoError(t, c.CompareAndSwap(old))
		require.Equal(t, memcache.ErrCASConflict, c.CompareAndSwap(old))
	}},
	{"a deleted and added item takes a fresh token", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "v")))
		old := fetch(t, c, "k")
		require.NoError(t, c.Delete("k"))
		require.NoError(t, c.Add(item("k", "v")))
		require.Equal(t, memcache.ErrCASConflict, c.CompareAndSwap(old))
	}},
	{"token 0 never matches", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "v")))
		require.Equal(t, memcache.ErrCASConflict, c.CompareAndSwap(item("k", "w")))
	}},
	{"many items come back at once", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("a", "1")))
		require.NoError(t, c.Add(item("b", "2")))
		got, err := c.GetMulti([]string{"a", "b", "c", "a"})
		require.NoError(t, err)
		require.Equal(t, map[string]*memcache.Item{"a": fetch(t, c, "a"), "b": fetch(t, c, "b")}, got)
	}},
	{"no keys give an empty map", func(t *testing.T, c client) {
		got, err := c.GetMulti(nil)
		require.NoError(t, err)
		require.Equal(t, map[string]*memcache.Item{}, got)
	}},
	{"one illegal key spoils a multi-get", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("a", "1")))
		got, err := c.GetMulti([]string{"a", "b c"})
		require.Equal(t, memcache.ErrMalformedKey, err)
		require.Nil(t, got)
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
	{"expirations far from now", func(t *testing.T, c client) {
		now := int32(time.Now().Unix())
		for i, there := range map[int32]bool{
			0: true, 100: true, month: true, now + 100: true, math.MaxInt32: true,
			-1: false, math.MinInt32: false, month + 1: false, now - 100: false,
		} {
			key := strconv.Itoa(int(i))
			require.NoError(t, c.Add(&memcache.Item{Key: key, Expiration: i}))
			_, err := c.Get(key)
			require.Equal(t, there, err == nil, "expiration %d", i)
			require.Equal(t, there, kind(c.Add(item(key, ""))) == memcache.ErrNotStored, "expiration %d", i)
		}
	}},
	{"a swap can end an item", func(t *testing.T, c client) {
		require.NoError(t, c.Add(item("k", "v")))
		it := fetch(t, c, "k")
		it.Expiration = -1
		require.NoError(t, c.CompareAndSwap(it))
		require.Equal(t, memcache.ErrCacheMiss, c.CompareAndSwap(it))
		require.Equal(t, memcache.ErrCacheMiss, c.Delete("k"))
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
	require.Zero(t, s.Len())
	require.Equal(t, memcache.ErrCacheMiss, s.Delete("k"))
	require.NoError(t, s.Add(item("k", "v")))
	require.Equal(t, 1, s.Len())
}

func TestEmptyKeyIsMalformed(t *testing.T) {
	s := memstore.New()
	require.Equal(t, memcache.ErrMalformedKey, s.Add(item("", "v")))
	_, err := s.Get("")
	require.Equal(t, memcache.ErrMalformedKey, err)
	_, err = s.GetMulti([]string{"a", ""})
	require.Equal(t, memcache.ErrMalformedKey, err)
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

func TestItemsExpireToTheNanosecond(t *testing.T) {
	tests := []struct {
		name       string
		expiration func(now time.Time) int32
		want       time.Duration
	}{
		{"one second", func(time.Time) int32 { return 1 }, time.Second},
		{"30 days", func(time.Time) int32 { return month }, month * time.Second},
		{"date in 1 s", func(now time.Time) int32 { return int32(now.Unix()) + 1 }, time.Second - 300*time.Millisecond},
		{"date in 40 days", func(now time.Time) int32 { return int32(now.Unix()) + 40*24*60*60 },
			40*24*time.Hour - 300*time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(300 * time.Millisecond) // off the whole second that the bubble starts at
				s := memstore.New()
				require.NoError(t, s.Add(&memcache.Item{Key: "k", Expiration: tt.expiration(time.Now())}))
				time.Sleep(tt.want - time.Nanosecond)
				require.Equal(t, memcache.ErrNotStored, s.Add(item("k", "")))
				time.Sleep(time.Nanosecond)
				_, err := s.Get("k")
				require.Equal(t, memcache.ErrCacheMiss, err)
				require.Zero(t, s.Stats())
			})
		})
	}
}

func TestExpiredItemIsAbsentForEveryMethod(t *testing.T) {
	do := map[string]func(s *memstore.Store, old *memcache.Item) error{
		"Add":            func(s *memstore.Store, _ *memcache.Item) error { return s.Add(item("k", "")) },
		"CompareAndSwap": func(s *memstore.Store, old *memcache.Item) error { return s.CompareAndSwap(old) },
		"Delete":         func(s *memstore.Store, _ *memcache.Item) error { return s.Delete("k") },
		"GetMulti": func(s *memstore.Store, _ *memcache.Item) error {
			if m, err := s.GetMulti([]string{"k"}); err != nil || len(m) > 0 {
				return fmt.Errorf("%v, %v", m, err)
			}
			return memcache.ErrCacheMiss
		},
	}
	for name, method := range do {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				require.NoError(t, s.Add(&memcache.Item{Key: "k", Expiration: 1}))
				old := fetch(t, s, "k")
				time.Sleep(time.Second)
				want := memcache.ErrCacheMiss
				if name == "Add" {
					want = nil
				}
				require.Equal(t, want, method(s, old))
			})
		})
	}
}

func TestSwapRenewsTheExpiration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		require.NoError(t, s.Add(&memcache.Item{Key: "k", Expiration: 1}))
		it := fetch(t, s, "k")
		it.Expiration = 0
		require.NoError(t, s.CompareAndSwap(it))
		time.Sleep(time.Hour)
		fetch(t, s, "k")
	})
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

func TestLeastRecentlyUsedItemIsEvicted(t *testing.T) {
	uses := []struct {
		name string
		use  func(t *testing.T, s *memstore.Store)
		want string
	}{
		{"nothing", func(*testing.T, *memstore.Store) {}, "b c d"},
		{"Get", func(t *testing.T, s *memstore.Store) { fetch(t, s, "a") }, "a c d"},
		{"GetMulti", func(t *testing.T, s *memstore.Store) {
			_, err := s.GetMulti([]string{"b", "a"})
			require.NoError(t, err)
		}, "a b d"},
		{"Add that stores nothing", func(t *testing.T, s *memstore.Store) {
			require.Equal(t, memcache.ErrNotStored, s.Add(item("a", "")))
		}, "a c d"},
		{"CompareAndSwap", func(t *testing.T, s *memstore.Store) {
			require.Equal(t, memcache.ErrCASConflict, s.CompareAndSwap(item("a", "")))
		}, "a c d"},
	}
	for _, tt := range uses {
		t.Run(tt.name, func(t *testing.T) {
			s := &memstore.Store{MaxItems: 3}
			for _, key := range []string{"a", "b", "c"} {
				require.NoError(t, s.Add(item(key, "v")))
			}
			tt.use(t, s)
			require.NoError(t, s.Add(item("d", "v")))
			require.Equal(t, memstore.Stats{Items: 3, Bytes: 6, Evictions: 1}, s.Stats())
			require.Equal(t, tt.want, has(s, "a", "b", "c", "d"))
			require.Equal(t, memstore.Stats{Evictions: 1}, s.Stats())
		})
	}
}

func TestBytesAreBounded(t *testing.T) {
	s := &memstore.Store{MaxBytes: 12}
	for _, key := range []string{"a", "b", "c"} {
		require.NoError(t, s.Add(item(key, "123")))
	}
	require.Equal(t, memstore.Stats{Items: 3, Bytes: 12}, s.Stats())
	it := fetch(t, s, "a")
	it.Value = []byte("1234567")
	require.NoError(t, s.CompareAndSwap(it))
	require.Equal(t, memstore.Stats{Items: 2, Bytes: 12, Evictions: 1}, s.Stats())
	require.NoError(t, s.Add(item("d", "12345678901")))
	require.Equal(t, memstore.Stats{Items: 1, Bytes: 12, Evictions: 3}, s.Stats())
	require.Equal(t, "d", has(s, "a", "b", "c", "d"))
}

func TestAnAttackerCannotFillMemory(t *testing.T) {
	s := memstore.New()
	value := make([]byte, valueLimit("key00"))
	for i := range 80 {
		require.NoError(t, s.Add(item(fmt.Sprintf("key%02d", i), string(value))))
		require.LessOrEqual(t, s.Stats().Bytes, 64<<20)
	}
	require.Equal(t, 64, s.Len())
	for i := range 100_000 + 1000 {
		require.NoError(t, s.Add(item(strconv.Itoa(i), "")))
	}
	require.Equal(t, 100_000, s.Len())
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
	require.Equal(t, 64, s.Len())
}

func TestExpiredItemsMakeRoomFirstAndAreNoEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memstore.Store{MaxItems: 100}
		for i := range 100 {
			require.NoError(t, s.Add(&memcache.Item{Key: strconv.Itoa(i), Expiration: 1}))
		}
		time.Sleep(time.Second)
		for i := range 50 {
			require.NoError(t, s.Add(item("new"+strconv.Itoa(i), "")))
		}
		require.Equal(t, 50, s.Len(), "each Add is to take two expired items away")
		require.Zero(t, s.Stats().Evictions)
	})
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

func TestConcurrentSwapsCountExactly(t *testing.T) {
	const goroutines, increments = 16, 200
	s := memstore.New()
	require.NoError(t, s.Add(item("n", "0")))
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range increments {
				assert.NoError(t, increment(s, "n"))
			}
		})
	}
	wg.Wait()
	require.Equal(t, strconv.Itoa(goroutines*increments), string(fetch(t, s, "n").Value))
}

// increment adds 1 to the decimal number at key, and repeats that after conflicts.
func increment(c client, key string) error {
	for {
		it, err := c.Get(key)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(it.Value))
		if err != nil {
			return err
		}
		it.Value = strconv.AppendInt(it.Value[:0], int64(n+1), 10)
		if err = c.CompareAndSwap(it); err != memcache.ErrCASConflict {
			return err
		}
	}
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
	require.Zero(t, s.Len())
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
		require.LessOrEqual(t, s.Len(), 100)
	})
}

// An item whose expiration was changed makes room when it has expired, and keeps no
// other one from that.
func TestAChangedExpirationIsThatWhichMakesRoom(t *testing.T) {
	for name, after := range map[string]int32{"shorter": 1, "never": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &memstore.Store{MaxItems: 4}
				require.NoError(t, s.Add(item("old", "")))
				require.NoError(t, s.Add(&memcache.Item{Key: "other", Expiration: 5}))
				require.NoError(t, s.Add(&memcache.Item{Key: "changed", Expiration: 3}))
				changed := fetch(t, s, "changed")
				changed.Expiration = after
				require.NoError(t, s.CompareAndSwap(changed))
				require.NoError(t, s.Add(item("last", "")))
				wait := time.Second
				if after == 0 {
					wait = 4 * time.Second
					time.Sleep(wait)
					require.NoError(t, s.Delete("last"))
					require.NoError(t, s.Add(item("last", ""))) // looks for what has expired
				}
				time.Sleep(wait)
				require.NoError(t, s.Add(item("new", "")))
				require.Zero(t, s.Stats().Evictions)
				fetch(t, s, "old")
			})
		})
	}
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
