package memstore_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// clients are the ways in which a Throttler uses a Store.
var clients = map[string]func(s *memstore.Store) throttler.Client{
	"in place":     func(s *memstore.Store) throttler.Client { return s },
	"Exchange":     func(s *memstore.Store) throttler.Client { return exchanger{s, s} },
	"five methods": func(s *memstore.Store) throttler.Client { return struct{ throttler.Client }{s} },
}

// An exchanger hides that a Store is in process memory.
type exchanger struct {
	throttler.Client
	exchange.Exchanger
}

func attempt(name string) throttler.Rule {
	return throttler.Rule{
		Identifier: "login",
		Either:     []throttler.Condition{{Name: "user", Value: name, Max: 3, TTL: time.Minute}},
		Lockout:    time.Hour,
	}
}

// An attacker fills the Store with other values, to be let in again.
func TestAFloodOfOtherValuesEvictsNoBan(t *testing.T) {
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			s := &memstore.Store{MaxItems: 200}
			limits := throttler.New(client(s))
			require.NoError(t, limits.Ban(context.Background(), attempt("by hand"), time.Hour))
			for range 4 {
				authorized(t, limits, attempt("alice"))
			}
			for i := range 1000 {
				require.True(t, authorized(t, limits, attempt(strconv.Itoa(i))))
			}
			require.GreaterOrEqual(t, s.Stats().Evictions, uint64(800))
			require.Equal(t, 200, s.Stats().Items)
			require.False(t, authorized(t, limits, attempt("alice")))
			require.False(t, authorized(t, limits, attempt("by hand")))
			require.True(t, authorized(t, limits, attempt("999")))

			require.NoError(t, limits.Reset(context.Background(), attempt("alice")))
			require.True(t, authorized(t, limits, attempt("alice")))
			for i := range 200 {
				require.True(t, authorized(t, limits, attempt(strconv.Itoa(i))))
			}
			require.NotContains(t, has(s, "login#user#alice"), "alice", "it is no ban any more")
		})
	}
}

func authorized(t *testing.T, limits *throttler.Throttler, rule throttler.Rule) bool {
	d, err := limits.Authorize(context.Background(), rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	return d.Status == throttler.Authorized
}

// Bans alone keep the bounds too, and leave room for what is still being counted.
func TestBansTakeUpHalfOfAFullStore(t *testing.T) {
	for _, items := range []int{100, 20_000} { // one shard, and several
		s := &memstore.Store{MaxItems: items}
		limits := throttler.New(s)
		for i := range 2 * items {
			require.NoError(t, limits.Ban(context.Background(), attempt(strconv.Itoa(i)), time.Hour))
			require.LessOrEqual(t, s.Stats().Items, items)
		}
		require.Equal(t, items, s.Stats().Items)
		for i := range 2 * items {
			require.True(t, authorized(t, limits, attempt(fmt.Sprint("new", i))))
		}
		bans := 0
		for i := range 2 * items {
			if s.Delete("login#user#"+strconv.Itoa(i)) == nil {
				bans++
				require.GreaterOrEqual(t, i, items, "an older ban goes first")
			}
		}
		require.InDelta(t, items/2, bans, 16, "of %d", items)
	}
}
