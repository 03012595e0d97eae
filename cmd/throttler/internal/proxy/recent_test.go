package proxy

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// However many requests bring the same guess at once, it is new to one of them.
func TestAGuessIsNewOnce(t *testing.T) {
	for range 200 {
		r, added := newRecent(time.Minute), atomic.Int64{}
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for range 20 {
					if !r.add("guess") {
						added.Add(1)
					}
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(1), added.Load())
	}
}

func TestTheTimeOfAGuessBeginsAnewWithEachRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecent(time.Minute)
		require.False(t, r.add("guess"))
		time.Sleep(40 * time.Second)
		require.True(t, r.add("guess"))
		time.Sleep(40 * time.Second)
		require.True(t, r.has("guess"))
		time.Sleep(21 * time.Second)
		require.False(t, r.has("guess"))
	})
}
