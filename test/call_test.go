package throttler_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// A call that is kept to be used again keeps nothing of the one that has ended.
func TestNothingIsKeptOfACallThatHasEnded(t *testing.T) {
	throttlers := map[string]func(*memstore.Store) *throttler.Throttler{
		"memory":       func(s *memstore.Store) *throttler.Throttler { return throttler.New(s) },
		"exchanger":    func(s *memstore.Store) *throttler.Throttler { return throttler.New(remoteOf(s)) },
		"five methods": func(s *memstore.Store) *throttler.Throttler { return throttler.New(over(s)) },
		"fallback": func(s *memstore.Store) *throttler.Throttler {
			down := over(memstore.New())
			down.before = failing(errDown, "", "get", "multi")
			th := throttler.New(down)
			th.Fallback = s
			return th
		},
	}
	for name, over := range throttlers {
		for _, conditions := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/conditions=%d", name, conditions), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					use := func() weak.Pointer[memstore.Store] {
						store := memstore.New()
						rule := open(conditions)
						rule.Either[0].TTL = time.Hour
						d := authorize(t, over(store), rule)
						require.Equal(t, throttler.Authorized, d.Status)
						return weak.Make(store)
					}
					store := use()
					time.Sleep(time.Second) // for goroutines and timers that are about to end
					runtime.GC()            // one leaves used calls where they are
					require.True(t, store.Value() == nil, "it is kept")
				})
			})
		}
	}
}
