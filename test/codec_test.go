package throttler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inspected returns what is stored for a value, which must be a record.
func inspected(t *testing.T, store *memstore.Store, identifier, name, value string) throttler.Record {
	t.Helper()
	item, err := store.Get(throttler.RecordKey(identifier, name, value))
	require.NoError(t, err)
	r, err := throttler.Inspect(item.Value)
	require.NoError(t, err)
	return r
}

func TestInspectShowsTheHitsOfAWindow(t *testing.T) {
	for _, maxHits := range []int{5, 50} { // both units of time
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			th := throttler.New(store)
			rule := one("login", throttler.Condition{Name: "ip", Value: "203.0.113.7", Max: maxHits, TTL: time.Minute})
			start := time.Now()
			for range 3 {
				_, err := th.Authorize(t.Context(), rule)
				require.NoError(t, err)
				time.Sleep(time.Second)
			}
			r := inspected(t, store, "login", "ip", "203.0.113.7")
			require.Len(t, r.Expiries, 3)
			for i, expiry := range r.Expiries {
				assert.WithinDuration(t, start.Add(time.Minute+time.Duration(i)*time.Second), expiry, 100*time.Microsecond)
			}
			assert.Equal(t, time.Minute, r.WindowTTL)
			assert.Zero(t, r.BannedUntil)
			assert.Zero(t, r.EmptyAt)
		})
	}
}

func TestInspectShowsABan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		th := throttler.New(store)
		rule := one("login", throttler.Condition{Name: "ip", Value: "a", Max: 1, TTL: time.Minute, Lockout: time.Hour})
		rule.LockoutGrowth = 2
		for range 2 {
			_, err := th.Authorize(t.Context(), rule)
			require.NoError(t, err)
		}
		r := inspected(t, store, "login", "ip", "a")
		assert.WithinDuration(t, time.Now().Add(time.Hour), r.BannedUntil, 0)
		assert.Equal(t, time.Hour, r.BanLength)
		assert.Equal(t, 1, r.Bans)
		assert.Empty(t, r.Expiries)
	})
}

func TestInspectShowsWhenABucketIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		rule := one("site", throttler.Condition{Name: "ip", Value: "a", Max: 6, TTL: time.Minute, Algorithm: throttler.LeakyBucket})
		_, err := throttler.New(store).Authorize(t.Context(), rule)
		require.NoError(t, err)
		r := inspected(t, store, "site", "ip", "a")
		assert.WithinDuration(t, time.Now().Add(10*time.Second), r.EmptyAt, 0)
		assert.Empty(t, r.Expiries)
		assert.Zero(t, r.WindowTTL)
	})
}

func TestInspectRefusesWhatIsNoRecord(t *testing.T) {
	for _, value := range []string{"", "hello", "\x01\xff", "\xff\x00"} {
		_, err := throttler.Inspect([]byte(value))
		assert.EqualError(t, err, "throttler: not a record of this package", "%q", value)
	}
}

func TestAKeyIsTakenApartAsItWasPutTogether(t *testing.T) {
	for _, value := range []string{"203.0.113.7", "", "a#b", "#"} {
		identifier, name, got, ok := throttler.SplitRecordKey(throttler.RecordKey("login", "ip", value))
		assert.True(t, ok, "%q", value)
		assert.Equal(t, []string{"login", "ip", value}, []string{identifier, name, got})
	}
	for _, key := range []string{"", "login", "login#ip", "#sha256#00", throttler.RecordKey("login", "ip", "a b")} {
		_, _, _, ok := throttler.SplitRecordKey(key)
		assert.False(t, ok, "%q", key)
	}
}
