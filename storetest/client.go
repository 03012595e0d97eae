package storetest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// isConflict reports whether err is one of the three answers to a write that came too
// late, which a throttler treats alike.
func isConflict(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) || errors.Is(err, memcache.ErrNotStored) || errors.Is(err, memcache.ErrCacheMiss)
}

// client checks the five methods.
func (s *suite) client() {
	key := s.key("item")
	_, err := s.a.Get(key)
	require.ErrorIs(s, err, memcache.ErrCacheMiss, "Get of no record")
	require.ErrorIs(s, s.a.Delete(key), memcache.ErrCacheMiss, "Delete of no record")

	require.NoError(s, s.a.Add(&memcache.Item{Key: key, Value: []byte("one"), Flags: 1<<31 | 5, Expiration: 60}))
	require.ErrorIs(s, s.b.Add(&memcache.Item{Key: key, Value: []byte("two"), Expiration: 60}), memcache.ErrNotStored, "Add where there is a record")
	first, err := s.b.Get(key)
	require.NoError(s, err)
	require.Equal(s, key, first.Key)
	require.Equal(s, "one", string(first.Value))
	require.Equal(s, uint32(1<<31|5), first.Flags, "Flags are stored: they tell one write from another")
	require.NotZero(s, first.CasID, "an item that was read has a token")

	s.swap(key, first)
	s.getMulti(key)

	require.NoError(s, s.a.Delete(key))
	_, err = s.b.Get(key)
	require.ErrorIs(s, err, memcache.ErrCacheMiss, "Get of what was deleted")
}

// swap checks CompareAndSwap of first, as it is stored.
func (s *suite) swap(key string, first *memcache.Item) {
	second := *first
	second.Value, second.Expiration = []byte("two"), 60
	require.NoError(s, s.a.CompareAndSwap(&second))
	late := *first
	late.Value, late.Expiration = []byte("late"), 60
	require.True(s, isConflict(s.b.CompareAndSwap(&late)), "CompareAndSwap of a record that has changed")
	item, err := s.b.Get(key)
	require.NoError(s, err)
	require.Equal(s, "two", string(item.Value), "a write that is refused changes nothing")

	// The same value again is another version.
	back := *item
	back.Value, back.Expiration = []byte("one"), 60
	require.NoError(s, s.b.CompareAndSwap(&back))
	require.True(s, isConflict(s.a.CompareAndSwap(&late)), "CompareAndSwap with a token of an earlier, equal value")

	gone := memcache.Item{Key: s.key("gone"), Value: []byte("x"), Expiration: 60}
	require.NoError(s, s.a.Add(&gone))
	read, err := s.a.Get(gone.Key)
	require.NoError(s, err)
	require.NoError(s, s.a.Delete(gone.Key))
	require.True(s, isConflict(s.a.CompareAndSwap(read)), "CompareAndSwap of a record that is gone")
	_, err = s.a.Get(gone.Key)
	require.ErrorIs(s, err, memcache.ErrCacheMiss)
	require.NoError(s, s.a.Add(&gone))
	require.True(s, isConflict(s.a.CompareAndSwap(read)), "CompareAndSwap of a record that went and came")
}

// getMulti checks GetMulti of key, of others, and of none that is there.
func (s *suite) getMulti(key string) {
	keys := []string{key}
	for i := range 50 {
		k := s.key("many" + strconv.Itoa(i))
		keys = append(keys, k)
		if i%2 == 0 {
			require.NoError(s, s.a.Add(&memcache.Item{Key: k, Value: []byte(k), Expiration: 60}))
		}
	}
	items, err := s.b.GetMulti(keys)
	require.NoError(s, err)
	require.Len(s, items, 26, "GetMulti leaves out what is not there")
	for i := 0; i < 50; i += 2 {
		item := items[s.key("many"+strconv.Itoa(i))]
		require.NotNil(s, item)
		require.Equal(s, item.Key, string(item.Value))
		require.NotZero(s, item.CasID)
		next := *item
		next.Expiration = 60
		require.NoError(s, s.a.CompareAndSwap(&next), "the token of GetMulti")
	}
	items, err = s.a.GetMulti([]string{s.key("none"), s.key("no other")[:len(s.space)+3]})
	require.NoError(s, err)
	require.Empty(s, items)
}

// keys checks that values of any bytes are counted, each by itself.
func (s *suite) keys() {
	values := []string{
		"", "a", "A", "a ", " a", "a b", "a\r\nb", "a\nb", "\x00", "\x00\x00", "\x7f", "#", "a#b", "{a}b", "{a}c", "*", "%", "'", "\"", "\\",
		"ü", "\xff\xfe", "10.0.0.1", "2001:db8::1", strings.Repeat("k", 180), strings.Repeat("k", 10_000), strings.Repeat("k", 10_001),
	}
	th := throttler.New(s.a)
	for range 2 { // one hit each, then none
		for _, value := range values {
			d, err := th.Authorize(context.Background(), s.rule(value, 1))
			require.NoError(s, err)
			require.NoError(s, d.Err, "the value %q", value)
			require.Equal(s, throttler.Authorized, d.Status, "%q shares a record with another value", value)
		}
		for _, value := range values {
			d, err := throttler.New(s.b).Authorize(context.Background(), s.rule(value, 1))
			require.NoError(s, err)
			require.NoError(s, d.Err)
			require.Equal(s, throttler.Blocked, d.Status, "the hit of %q is not stored", value)
			require.NoError(s, th.Reset(context.Background(), s.rule(value, 1)))
		}
	}
}

// sizes checks records of many bytes.
func (s *suite) sizes() {
	for _, size := range []int{0, 1, 1000, 1 << 14, 1 << 16} {
		item := &memcache.Item{Key: s.key("size" + strconv.Itoa(size)), Value: bytes.Repeat([]byte{0, 255, '\r', '\n'}, size/4+1)[:size], Expiration: 60}
		require.NoError(s, s.a.Add(item))
		read, err := s.b.Get(item.Key)
		require.NoError(s, err)
		require.True(s, bytes.Equal(item.Value, read.Value), "%d bytes", size)
		read.Value, read.Expiration = append([]byte("x"), item.Value...), 60
		require.NoError(s, s.b.CompareAndSwap(read))
		read, err = s.a.Get(item.Key)
		require.NoError(s, err)
		require.Len(s, read.Value, size+1)
	}
}

// expiry checks when records go. memcached drops them up to a second early, and a
// throttler allows for that.
func (s *suite) expiry() {
	add := func(name string, expiration int32) string {
		key := s.key(name)
		require.NoError(s, s.a.Add(&memcache.Item{Key: key, Value: []byte(name), Expiration: expiration}))
		return key
	}
	second, begun := add("second", 1), time.Now()
	longer := add("longer", 4)
	date := add("date", int32(time.Now().Add(40*24*time.Hour).Unix()))
	swapped := add("swapped", 1)
	item, err := s.a.Get(swapped)
	if err == nil { // a second may be over at once
		item.Expiration = 60
		err = s.a.CompareAndSwap(item)
	}
	renewed := err == nil
	require.Eventually(s, func() bool {
		_, err := s.a.Get(second)
		return errors.Is(err, memcache.ErrCacheMiss)
	}, 10*time.Second, 20*time.Millisecond, "a record outlives its expiry of a second")
	if items, err := s.b.GetMulti([]string{longer}); time.Since(begun) < 3*time.Second { // memcached drops it a second early
		require.NoError(s, err)
		require.Len(s, items, 1, "a record goes before it expires")
	}
	require.NoError(s, s.a.Add(&memcache.Item{Key: second, Value: []byte("again"), Expiration: 60}), "Add where a record has expired")
	_, err = s.b.Get(date)
	require.NoError(s, err, "more than 30 days is a date, in seconds since 1970")
	if renewed {
		_, err = s.b.Get(swapped)
		require.NoError(s, err, "CompareAndSwap renews the expiry")
	}
}
