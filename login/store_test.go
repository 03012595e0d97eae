package login_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

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
		g.SiegeFloor = -1
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
