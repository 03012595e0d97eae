package memstore_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// A proposal proposes an item, and notes what it is told.
type proposal struct {
	key    string
	item   *memcache.Item // nil: none
	turn   exchange.Turn
	result exchange.Result
	dones  int
	then   func() // called by Done
}

func (x *proposal) Key() string { return x.key }

func (x *proposal) Propose(turn exchange.Turn) *memcache.Item {
	x.turn = turn
	x.turn.Found = copied(turn.Found)
	if x.item == nil {
		return nil
	}
	item := *x.item
	if item.Key = x.key; turn.Found != nil {
		item.CasID = turn.Found.CasID
	}
	return &item
}

func (x *proposal) Done(result exchange.Result) {
	x.result, x.dones = result, x.dones+1
	x.result.Found = copied(result.Found)
	if x.then != nil {
		x.then()
	}
}

func copied(it *memcache.Item) *memcache.Item {
	if it == nil {
		return nil
	}
	own := *it
	own.Value = append([]byte{}, it.Value...)
	return &own
}

func TestAnExchangeThatCannotBeStored(t *testing.T) {
	s := memstore.New()
	bad := &proposal{key: "not a key"}
	s.Exchange(context.Background(), bad)
	require.Equal(t, exchange.Result{Err: memcache.ErrMalformedKey}, bad.result)
	require.Zero(t, bad.turn)

	require.NoError(t, s.Add(item("k", "old")))
	large := &proposal{key: "k", item: &memcache.Item{Value: make([]byte, 1<<20)}}
	s.Exchange(context.Background(), large)
	require.ErrorContains(t, large.result.Err, "item too large")
	require.True(t, large.result.Read)
	require.False(t, large.result.Stored)
	require.Equal(t, fetch(t, s, "k"), large.result.Found)
	require.Equal(t, "old", string(large.result.Found.Value))
}

// One illegal key does not keep the others from being asked for.
func TestExchangesAfterAMalformedKeyAreMade(t *testing.T) {
	s := memstore.New()
	bad, good := &proposal{key: "not a key"}, &proposal{key: "k", item: item("k", "v")}
	s.Start(bad, good)
	require.Equal(t, 1, bad.dones)
	require.True(t, good.result.Stored)
}

// What Start tells may be kept, and its Done may use the Store.
func TestDoneMayUseTheStoreAndKeepTheItem(t *testing.T) {
	s := memstore.New()
	require.NoError(t, s.Add(item("k", "old")))
	x := &keeper{proposal: proposal{key: "k"}}
	x.then = func() {
		require.NoError(t, s.Delete("k"))
		require.NoError(t, s.Add(item("k", "new")))
	}
	s.Start(x)
	s.Start(&proposal{key: "k", item: item("k", "NEW")})
	require.Equal(t, "old", string(x.found.Value))
}

// A keeper keeps the item itself.
type keeper struct {
	proposal
	found *memcache.Item
}

func (x *keeper) Done(result exchange.Result) {
	x.found = result.Found
	x.proposal.Done(result)
}

// A visitor stores what visit returns.
type visitor struct {
	visit func(now time.Time, found []byte) *memcache.Item
}

func (v *visitor) Visit(now time.Time, found, _ []byte) (value []byte, expiration int32, flags uint32) {
	it := v.visit(now, found)
	if it == nil {
		return nil, 0, 0
	}
	return append([]byte{}, it.Value...), it.Expiration, it.Flags
}

// Even if it is the only one of its shard, and others hold the bytes that it needs.
func TestAnItemThatGrowsStays(t *testing.T) {
	for range 20 { // shards are chosen at random
		s := &memstore.Store{MaxBytes: 16 << 20}
		require.NoError(t, s.Add(item("k", "v")))
		for i := range 16 {
			key := strconv.Itoa(i)
			require.NoError(t, s.Add(&memcache.Item{Key: key, Value: make([]byte, valueLimit(key))}))
		}
		it := fetch(t, s, "k")
		it.Value = make([]byte, valueLimit("k"))
		require.NoError(t, s.CompareAndSwap(it))
		fetch(t, s, "k")
		require.LessOrEqual(t, s.Stats().Bytes, 16<<20)
	}
}

// The room of a large value is not kept for a small one, which counts as small.
func TestAValueThatShrinksGivesItsMemoryBack(t *testing.T) {
	s := memstore.New()
	before := heap()
	for i := range 64 {
		key := strconv.Itoa(i)
		require.NoError(t, s.Add(item(key, strings.Repeat("v", 1<<19))))
		small := fetch(t, s, key)
		small.Value = []byte("v")
		require.NoError(t, s.CompareAndSwap(small))
	}
	require.Less(t, heap(), before+8<<20)
	require.Equal(t, 64, s.Stats().Items)
}
