package throttler_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

func limitOf(t testing.TB, th *throttler.Throttler, rule throttler.Rule) *throttler.Limit {
	t.Helper()
	limit, err := th.Limit(rule)
	require.NoError(t, err)
	return limit
}

// Whatever is set but Observe and Conflict, Take allocates nothing over a memstore.
func TestTakeAllocatesNothingOverAMemstore(t *testing.T) {
	values := map[string]string{"plain": "203.0.113.9", "hashed": "two words", "long": strings.Repeat("x", 300)}
	for name, set := range map[string]func(*throttler.Throttler){
		"no options": func(*throttler.Throttler) {},
		"BlockCache": func(th *throttler.Throttler) { th.BlockCache = 10 },
		"Fallback":   func(th *throttler.Throttler) { th.Fallback, th.FallbackShare = memstore.New(), 0.5 },
	} {
		everyAlgorithm(t, 600, func(t *testing.T, c throttler.Condition) {
			if c.Algorithm == throttler.InFlight {
				return
			}
			for kind, value := range values {
				for _, limit := range []int{3, 600} { // it blocks soon, or counts each time
					th := throttler.New(memstore.New())
					set(th)
					c.Max = limit
					take := limitOf(t, th, either(c))
					take.Take(t.Context(), value)
					require.Zero(t, testing.AllocsPerRun(500, func() { take.Take(t.Context(), value) }), "%s, %s, %d", name, kind, limit)
				}
			}
		})
	}
}

// A program may give each customer a rule of its own: it is prepared once, and found again.
func TestManyRulesAreFoundAgain(t *testing.T) {
	const n = 1000
	for differ, set := range map[string]func(c *throttler.Condition, i int){
		"Max":     func(c *throttler.Condition, i int) { c.Max += i },
		"Name":    func(c *throttler.Condition, i int) { c.Name = fmt.Sprintf("customer %04d", i) },
		"Lockout": func(c *throttler.Condition, i int) { c.Lockout = time.Duration(i+1) * time.Second },
	} {
		th := throttler.New(memstore.New())
		rules := make([]throttler.Rule, n)
		for i := range rules {
			c := condition("c", 1000, time.Minute)
			set(&c, i)
			rules[i] = either(c)
		}
		all := func() {
			for _, rule := range rules {
				_, _ = th.Peek(t.Context(), rule)
			}
		}
		one := leastAllocs(100, func() { _, _ = th.Peek(t.Context(), rules[0]) })
		require.LessOrEqual(t, leastAllocs(5, all), 1.1*n*one, differ)
	}
}

func TestALimitHasOneCondition(t *testing.T) {
	th := throttler.New(memstore.New())
	for _, rule := range []throttler.Rule{
		{},
		either(condition("a", 1, time.Minute), condition("b", 1, time.Minute)),
		either(condition("a", 0, time.Minute)),
		either(inFlight(1, time.Minute)),
	} {
		_, err := th.Limit(rule)
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
	}
}

func TestALimitFailsOpenWhenItsContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := limitOf(t, throttler.New(memstore.New()), either(condition("a", 1, time.Minute))).Take(ctx, "v")
	require.ErrorIs(t, o.Err, context.Canceled)
	require.False(t, o.Blocked)
}

func TestALimitIsObserved(t *testing.T) {
	th := throttler.New(memstore.New())
	var seen []string
	th.Observe = func(_ context.Context, rule throttler.Rule, _ throttler.Decision) {
		seen = append(seen, rule.All[0].Value)
	}
	rule := throttler.Rule{Identifier: "r", All: []throttler.Condition{condition("a", 2, time.Minute)}}
	limit := limitOf(t, th, rule)
	limit.Take(t.Context(), "taken")
	_, err := limit.Authorize(t.Context(), "asked")
	require.NoError(t, err)
	require.Equal(t, []string{"taken", "asked"}, seen)
}

// A store that embeds a memstore may have methods of its own, which are then called.
func TestAStoreThatEmbedsAMemstoreIsAsked(t *testing.T) {
	s := &counted{Store: memstore.New()}
	authorize(t, throttler.New(s), either(condition("a", 1, time.Minute)))
	require.Equal(t, 1, s.exchanges)
}

type counted struct {
	*memstore.Store
	exchanges int
}

func (c *counted) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	c.exchanges++
	c.Store.Exchange(ctx, xs...)
}

// However many decide on the same records at once, hits that a refused call has counted are
// given back: each condition has counted what was authorized.
func TestWhatARefusedCallCountedInPlaceIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		a, b := condition("a", 2000, time.Hour), condition("b", 400, time.Hour)
		b.Algorithm = throttler.LeakyBucket
		authorized := 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				rule := either(a, b)
				if i%2 == 0 {
					rule = either(b, a)
				}
				rule.CountAuthorizedOnly = true
				for range 100 {
					d, err := th.Authorize(t.Context(), rule)
					if mu.Lock(); err == nil && d.Status == throttler.Authorized {
						authorized++
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		require.Equal(t, 400, authorized)
		require.Equal(t, 1600, left(t, th, a))
		require.Equal(t, 0, left(t, th, b))
	})
}
