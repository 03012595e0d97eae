package items_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/items"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

func newStore() *items.Store { return items.New(100, 1<<20) }

func item(key string) *memcache.Item { return &memcache.Item{Key: key, Value: []byte("v")} }

// A time that was read before the lock was taken is not used after a later one, by either
// clock: a thread may be stopped between reading the one and the other.
func TestTimeNeverGoesBackFromOneHolderToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		require.NoError(t, s.Add(item("k")))
		time.Sleep(time.Second)
		now := time.Now()
		for _, test := range []struct {
			wall, since time.Duration
			used        bool
		}{
			{-800, 200, true}, // as nothing later was used yet
			{-700, 200, true},
			{-700, 200, true},
			{-701, 300, false},
			{1, 1001, true},
			{2, 1000, false},
		} {
			read := items.At(now.Add(test.wall*time.Millisecond), test.since*time.Millisecond)
			want := now
			if test.used {
				want = now.Add(test.wall * time.Millisecond)
			}
			require.Equal(t, want, s.Lately(read), test)
		}
		other := newStore()
		require.NoError(t, other.Add(item("k")))
		time.Sleep(time.Second)
		_, err := other.Get("k") // later than what follows
		require.NoError(t, err)
		require.Equal(t, time.Now(), other.Lately(items.At(now.Add(time.Millisecond), time.Millisecond)))
	})
}

// The time is that which the caller has read.
func TestVisitDecidesAtTheTimeThatWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		began := time.Now()
		head, tail := s.Head("k")
		for _, at := range []time.Time{began.Add(time.Second), began} {
			_, err := s.Visit(head, tail, at, func(now time.Time, _, _ []byte) ([]byte, int32, uint32) {
				require.Equal(t, at, now)
				return nil, 0, 0
			})
			require.NoError(t, err)
		}
	})
}

// A panic of whoever decides leaves the Store as it was, for others to use.
func TestAPanicLeavesNothingLocked(t *testing.T) {
	s := newStore()
	require.NoError(t, s.Add(item("k")))
	for _, key := range []string{"k", "new"} {
		head, tail := s.Head(key)
		require.PanicsWithValue(t, "decided", func() {
			_, _ = s.Visit(head, tail, time.Now(), func(time.Time, []byte, []byte) ([]byte, int32, uint32) { panic("decided") })
		})
		_, err := s.Get("new")
		require.Equal(t, memcache.ErrCacheMiss, err)
	}
	it, err := s.Get("k")
	require.NoError(t, err)
	require.Equal(t, "v", string(it.Value))
}
