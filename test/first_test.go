package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func first(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: "test", First: conditions}
}

// shares returns a rule of First whose conditions c0, c1 ... hold these hits for a minute.
func shares(max ...int) throttler.Rule {
	rule := first()
	for i, m := range max {
		rule.First = append(rule.First, condition(fmt.Sprint("c", i), m, time.Minute))
	}
	return rule
}

func unasked(name string, limit int) throttler.Outcome {
	return throttler.Outcome{Name: name, Limit: limit, Remaining: -1}
}

// Every call is in one condition, and each has Max, however many ask at once.
func TestFirstIsExact(t *testing.T) {
	for name, client := range kindsOfClient {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := client()
				throttlers := []*throttler.Throttler{throttler.New(store), throttler.New(store), throttler.New(store)}
				throttlers[2].BlockCache = 10
				var counted [3]atomic.Int64
				var blocked atomic.Int64
				var all sync.WaitGroup
				for i := range 24 {
					all.Go(func() {
						for range 50 {
							d, err := throttlers[i%3].Authorize(t.Context(), shares(100, 40, 300))
							for errors.Is(d.Err, throttler.ErrOverloaded) { // callers in lockstep lose for a second at times
								d, err = throttlers[i%3].Authorize(t.Context(), shares(100, 40, 300))
							}
							assert.NoError(t, err)
							assert.NoError(t, d.Err)
							hits := 0
							for i, o := range d.Outcomes {
								counted[i].Add(int64(o.Cost))
								hits += o.Cost
							}
							if d.Status == throttler.Blocked {
								blocked.Add(1)
								assert.Zero(t, hits)
							} else {
								assert.Equal(t, 1, hits)
							}
						}
					})
				}
				all.Wait()
				require.Equal(t, []int64{100, 40, 300, 760}, []int64{counted[0].Load(), counted[1].Load(), counted[2].Load(), blocked.Load()})
			})
		})
	}
}

func TestSettleOfFirst(t *testing.T) {
	for name, client := range kindsOfClient {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th, rule := throttler.New(client()), shares(5, 7)
				d := authorize(t, th, rule)
				require.Equal(t, 4, settle(t, th, d, map[string]int{"c1": 3}).Outcomes[0].Remaining, "one that was not asked has cost 0")
				redeemed, err := th.Redeem(d.Receipt())
				require.NoError(t, err)
				settle(t, th, redeemed, map[string]int{"c0": 5, "c1": 2})
				require.Equal(t, []int{0, 4}, remaining(peek(t, th, rule)))

				for _, c := range []string{"c0", "c1"} {
					settle(t, th, redeemed, map[string]int{c: 0})
				}
				require.Equal(t, []int{4, -1}, remaining(peek(t, th, rule)))
			})
		})
	}
}

func TestSpendSettlesTheConditionOfFirstThatCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		plan := first(costing(condition("plan", 100, time.Minute), 40), costing(condition("credits", 1000, time.Minute), 40))
		for range 3 {
			require.NoError(t, th.Spend(t.Context(), plan, func(context.Context) (int, error) { return 33, nil }))
		}
		require.Equal(t, 100-33-33, left(t, th, plan.First[0]))
		require.Equal(t, 1000-33, left(t, th, plan.First[1]))
	})
}

func TestFirstHoldsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		own, reserve := inFlight(1, time.Minute), inFlight(1, time.Minute)
		own.Name, reserve.Name = "own", "reserve"
		rule := first(own, reserve)
		names := make(chan string, 3)
		for i := range 3 { // the third waits for the first of the two that ends
			go th.Do(t.Context(), rule, func(ctx context.Context) error {
				d := peek(t, th, rule)
				for _, o := range d.Outcomes {
					if o.Blocked {
						names <- o.Name
					}
				}
				time.Sleep(time.Hour + time.Duration(i)*time.Minute)
				return ctx.Err()
			})
			synctest.Wait()
		}
		require.Equal(t, "own", <-names)
		require.Equal(t, []string{"own", "reserve"}, []string{<-names, <-names})
		time.Sleep(3 * time.Hour)
		require.Equal(t, []int{0, -1}, remaining(peek(t, th, rule)))
	})
}

func TestAConditionOfFirstThatFailsOpenCountsAsOneWithRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.part = "c1"
		th, rule := throttler.New(client), shares(1, 1, 1)
		authorize(t, th, rule)
		client.off.Store(true)
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Authorized, d.Status)
		require.ErrorIs(t, d.Err, errDown)
		require.True(t, d.Outcomes[0].Blocked)
		require.ErrorIs(t, d.Outcomes[1].Err, errDown)
		require.Equal(t, unasked("c2", 1), d.Outcomes[2])

		// Wait paces itself.
		start := time.Now()
		for range 3 {
			_, err := th.Wait(t.Context(), rule)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, time.Since(start), time.Minute)

		th.Fallback = memstore.New()
		require.Equal(t, 1, authorize(t, th, rule).Outcomes[1].Cost)
		d = authorize(t, th, rule)
		require.True(t, d.Outcomes[1].Blocked, "the fallback decides")
		require.Equal(t, 1, d.Outcomes[2].Cost)
	})
}

func TestWaitOfFirstStandsInLineForTheConditionThatOpensFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th, rule := throttler.New(memstore.New()), shares(1, 1)
		rule.First[0].TTL, rule.First[1].TTL = time.Minute, 10*time.Second
		start := time.Now()
		var counted []int
		var at []time.Duration
		for range 9 {
			d, err := th.Wait(t.Context(), rule)
			require.NoError(t, err)
			at = append(at, time.Since(start)/time.Second)
			counted = append(counted, d.Outcomes[0].Cost)
		}
		require.Equal(t, []time.Duration{0, 0, 10, 20, 30, 40, 50, 60, 60}, at)
		require.Equal(t, []int{1, 0, 0, 0, 0, 0, 0, 1, 0}, counted)
	})
}
