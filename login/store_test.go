package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A junk is an attacker who fails at names that do not exist, to make the store
// forget records of others. docs/operations.md says what it takes.
type junk struct {
	try
	store *memstore.Store
	names int
}

// junkOn returns a junk on a store of default size, in which alice's name is full
// and where she is at home banned.
func junkOn(t *testing.T) *junk {
	store := memstore.New()
	j := &junk{try: on(t, store), store: store}
	require.Equal(t, 5, j.fails(6, "alice", home))
	j.fill("alice")
	return j
}

// throw fails n times from addr, each time at another name, and returns how
// many attempts passed.
func (j *junk) throw(n int, addr netip.Addr) (passed int) {
	j.t.Helper()
	for range n {
		j.names++
		passed += j.fails(1, fmt.Sprint("junk", j.names), addr)
	}
	return passed
}

// remembers reports whether alice's name is still full, and still banned at home.
func (j *junk) remembers() bool {
	for _, from := range []netip.Addr{away, home} {
		if j.begin("alice", from).Decision.Status != throttler.Blocked {
			return false
		}
	}
	return true
}

func TestOneNetworkCannotMakeTheDefaultStoreForget(t *testing.T) {
	takesLong(t)
	t.Run("an address", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := junkOn(t)
			require.Equal(t, 50, j.throw(30_000, addr(1)))
			require.True(t, j.remembers())
			require.Zero(t, j.store.Stats().Evictions)
			require.Less(t, j.store.Stats().Items, 1000)
		})
	})
	t.Run("an IPv6 /48", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := junkOn(t)
			passed := 0
			for i := range 1000 {
				passed += j.throw(20, netip.MustParseAddr(fmt.Sprintf("2001:db8:1:%x::1", i*64)))
			}
			require.Equal(t, 5000, passed)
			require.True(t, j.remembers())
			require.Zero(t, j.store.Stats().Evictions)
		})
	})
}

// Beyond that it is a matter of how many addresses there are. What is asked for
// meanwhile is not forgotten, as it is not the least recently used.
func TestDefaultStoreForgetsAfterHundredsOfAddressesAtOnce(t *testing.T) {
	takesLong(t)
	t.Run("what nobody asks for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := junkOn(t)
			for i := range 420 {
				require.Equal(t, 50, j.throw(50, spread(1000+i)))
			}
			require.NotZero(t, j.store.Stats().Evictions, "a number tells")
			require.False(t, j.remembers())
		})
	})
	t.Run("not before, and not what is asked for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := junkOn(t)
			for i := range 380 {
				require.Equal(t, 50, j.throw(50, spread(1000+i)))
			}
			require.Zero(t, j.store.Stats().Evictions)
			for i := range 40 {
				require.True(t, j.remembers())
				require.Equal(t, 50, j.throw(50, spread(2000+i)))
			}
			require.NotZero(t, j.store.Stats().Evictions)
			require.True(t, j.remembers())
		})
	})
}

// Values that clients choose evict what a guard has counted in the same memstore. In a
// store of its own, as docs/login.md has it, a name keeps its guesses and its places.
func TestAStoreOfItsOwnOutlastsAFloodOfOtherValues(t *testing.T) {
	for own, guesses := range map[bool]int{true: 24, false: 48} {
		shared := &memstore.Store{MaxItems: 1000}
		store := shared
		if own {
			store = &memstore.Store{MaxItems: 1000}
		}
		g := on(t, store)
		g.Limits = limits{"siege": {Max: -1}}
		g.succeeds("alice", home)
		guess := func(from int) (verified int) {
			for i := range 30 {
				verified += g.fails(1, "alice", addr(from+i))
			}
			return verified
		}
		before := guess(0)
		keys := throttler.New(shared)
		for i := range 3000 {
			_, err := keys.Authorize(t.Context(), throttler.Rule{Identifier: "api", Either: []throttler.Condition{
				{Name: "key", Value: fmt.Sprint(i), Max: 10, TTL: time.Hour},
			}})
			require.NoError(t, err)
		}
		require.Equal(t, guesses, before+guess(1000), "own: %v", own)
		result, _, err := g.Try(t.Context(), "alice", home, func(context.Context) (bool, error) { return true, nil })
		require.NoError(t, err)
		require.Equal(t, map[bool]login.Result{true: login.Succeeded, false: login.Refused}[own], result)
	}
}
