package throttler_test

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"strings"
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

// settle calls Settle, which must not fail.
func settle(t *testing.T, th *throttler.Throttler, d throttler.Decision, actual map[string]int) throttler.Decision {
	t.Helper()
	settled, err := th.Settle(t.Context(), d, actual)
	require.NoError(t, err)
	require.NoError(t, settled.Err)
	return settled
}

// total is the argument of Settle for the condition "c".
func total(n int) map[string]int { return map[string]int{"c": n} }

// everyAlgorithm runs test in a bubble for a condition "c" of each algorithm, which holds max
// hits. A hit counts for a minute, or up to a day from the beginning of the test.
func everyAlgorithm(t *testing.T, max int, test func(t *testing.T, c throttler.Condition)) {
	for _, c := range ofEveryAlgorithm(max) {
		t.Run(c.Algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, c) })
		})
	}
}

func ofEveryAlgorithm(max int) []throttler.Condition {
	window := condition("c", max, time.Minute)
	window.Message = ""
	return []throttler.Condition{window, inBucket(window), inFlight(max, time.Minute), calendar(max, throttler.Period{})}
}

// left returns how many hits fit into the condition of rule.
func left(t require.TestingT, th *throttler.Throttler, c throttler.Condition) int {
	c.Cost, c.Least = 0, 0
	d, err := th.Peek(context.Background(), either(c))
	require.NoError(t, err)
	require.NoError(t, d.Err)
	if d.Status == throttler.Blocked {
		return 0
	}
	return d.Outcomes[0].Remaining + 1
}

func TestSettleCountsBeyondMaxAndBlocksUntilThatHasExpired(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th := throttler.New(memstore.New())
		d := authorize(t, th, either(costing(c, 4)))
		full := settle(t, th, d, total(10))
		require.Equal(t, throttler.Authorized, full.Status, "it holds Max, not more")
		require.Zero(t, full.Outcomes[0].Remaining)
		settle(t, th, d, total(4))
		time.Sleep(10 * time.Second)
		over := settle(t, th, d, total(25))
		require.Equal(t, throttler.Blocked, over.Status)
		require.True(t, over.WouldBlock)
		require.Equal(t, []string{"c"}, over.Messages)
		require.Equal(t, over.Outcomes[0].RetryAfter, over.RetryAfter)
		require.Equal(t, 25, over.Outcomes[0].Cost)
		require.False(t, over.Outcomes[0].Banned)

		time.Sleep(over.RetryAfter - 1)
		require.Zero(t, left(t, th, c), "to the nanosecond")
		time.Sleep(time.Nanosecond)
		require.NotZero(t, left(t, th, c))
		switch c.Algorithm {
		case throttler.SlidingWindow, throttler.InFlight:
			require.Equal(t, time.Minute, over.RetryAfter, "the surplus counts from the Settle on")
			require.Equal(t, 10, left(t, th, c))
		case throttler.LeakyBucket:
			require.Equal(t, 6*time.Second*16-10*time.Second, over.RetryAfter, "25 hits, of which 9 fit beside another one")
			require.Equal(t, 1, left(t, th, c))
		case throttler.Calendar:
			require.Equal(t, 24*time.Hour-10*time.Second, over.RetryAfter)
		}
	})
}

// As in the Decision of Authorize, each condition counts, whatever its Message.
func TestSettleOfConditionsWithOneMessageWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		minute, hour := condition("minute", 2, time.Minute), condition("hour", 2, time.Hour)
		minute.Message, hour.Message = "Too many tokens.", "Too many tokens."
		over := settle(t, th, authorize(t, th, either(minute, hour)), map[string]int{"minute": 3, "hour": 3})
		require.Equal(t, time.Hour, over.RetryAfter)
		require.Equal(t, []string{"Too many tokens.", "Too many tokens."}, over.Messages)
	})
}

// Nothing is settled before it is known what all have counted.
func TestSettleThatEndsWhileOneConditionIsNotDecidedSettlesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(op string, keys ...string) error {
			if op == "add" && strings.Contains(keys[0], "#slow#") {
				time.Sleep(time.Minute)
			}
			return nil
		}
		th := throttler.New(client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d, err := th.Authorize(ctx, either(condition("fast", 10, time.Hour), condition("slow", 10, time.Hour)))
		require.NoError(t, err)
		require.NoError(t, d.Outcomes[0].Err)
		require.ErrorIs(t, d.Outcomes[1].Err, ctx.Err())
		settled, err := th.Settle(ctx, d, map[string]int{"fast": 3, "slow": 3})
		require.NoError(t, err)
		for _, o := range settled.Outcomes {
			require.ErrorIs(t, o.Err, ctx.Err(), o.Name)
		}
		require.Equal(t, 1, settled.Outcomes[0].Cost)
		settled = settle(t, th, d, map[string]int{"fast": 3, "slow": 3})
		require.Equal(t, 3, settled.Outcomes[0].Cost)
		require.Equal(t, 3, settled.Outcomes[1].Cost)
	})
}

func TestWhatWasBlockedOrFailedOpenHasCost0(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		for _, cached := range []int{0, 100} {
			client := newFaulty()
			th := throttler.New(client)
			th.BlockCache = cached
			filled := authorize(t, th, either(costing(c, 10)))
			authorize(t, th, either(c)) // and into the BlockCache
			blocked := authorize(t, th, either(c))
			require.Equal(t, throttler.Blocked, blocked.Status)
			require.Equal(t, throttler.Blocked, settle(t, th, blocked, total(2)).Status)
			require.NoError(t, th.Cancel(t.Context(), filled))
			require.Equal(t, 8, left(t, th, c))
			settle(t, th, blocked, total(0))
			require.Equal(t, 10, left(t, th, c))

			client.before = failing(errDown, "", "get", "multi")
			open := authorize(t, th, either(costing(c, 3)))
			require.ErrorIs(t, open.Err, errDown)
			client.before = failing(nil, "")
			require.Equal(t, 4, settle(t, th, open, total(4)).Outcomes[0].Cost)
			require.Equal(t, 6, left(t, th, c))
		}
	})
}

func TestSettleIsOfTheConditionsThatItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		for _, combined := range []func(...throttler.Condition) throttler.Rule{either, all} {
			th := throttler.New(store)
			rule := combined(
				costing(condition("tokens", 10, time.Minute), 4), costing(inBucket(condition("requests", 10, time.Minute)), 1),
				calendar(100, throttler.Period{}), inFlight(5, time.Minute))
			rule.Identifier = uniqueID()
			conditions := rule.Conditions()
			conditions[3].Name = "streams"
			conditions[0].Message = "too many tokens"
			d := authorize(t, th, rule)
			settled := settle(t, th, d, map[string]int{"c": 40, "tokens": 12})
			require.Equal(t, throttler.Blocked, settled.Status, "either or all")
			require.Equal(t, []string{"too many tokens"}, settled.Messages)
			require.Equal(t, []string{"tokens", "c"}, []string{settled.Outcomes[0].Name, settled.Outcomes[1].Name}, "in the rule's order")
			require.Len(t, settled.Outcomes, 2)
			require.Equal(t, []bool{true, false}, []bool{settled.Outcomes[0].Blocked, settled.Outcomes[1].Blocked})
			require.Equal(t, []int{12, 40}, costs(settled))
			require.Equal(t, []int{0, 60}, remaining(settled))

			settled = settle(t, th, settled, map[string]int{"streams": 2, "tokens": 3, "requests": 3})
			require.Equal(t, throttler.Authorized, settled.Status)
			require.Equal(t, []int{7, 7, 3}, remaining(settled))
			require.NoError(t, th.Cancel(t.Context(), settled), "of all conditions")
			for i := range conditions {
				conditions[i].Cost = 0
			}
			require.Equal(t, []int{9, 9, 99, 4}, remaining(peek(t, th, rule)))
		}
	})
}

// The fallback has decided the call, and the backend may have counted it as well.
func TestSettleSaysThatAHitMayStayWhichTheFallbackHasCountedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(op string, _ ...string) error {
			if op != "add" {
				return nil
			}
			time.Sleep(2 * time.Second)
			return errDown
		}
		th := throttler.New(client)
		th.Fallback = memstore.New()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d, err := th.Authorize(ctx, either(condition("c", 5, time.Hour)))
		require.NoError(t, err)
		settled, err := th.Settle(t.Context(), d, total(3))
		require.NoError(t, err)
		require.Len(t, settled.Outcomes, 1)
		require.ErrorIs(t, settled.Outcomes[0].Err, errDown)
		require.Equal(t, 3, settled.Outcomes[0].Cost, "in the fallback")
		settle(t, th, d, total(3)) // it is told once
	})
}

func TestSettleCountsTheRacesThatItHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th, other := throttler.New(client), throttler.New(client.Client)
		rule := either(condition("c", 5, time.Hour))
		d := authorize(t, th, rule)
		client.before = func(op string, _ ...string) error {
			if op == "cas" {
				client.before = failing(nil, "")
				authorize(t, other, rule)
			}
			return nil
		}
		o := settle(t, th, d, total(3)).Outcomes[0]
		require.Equal(t, 1, o.LostRaces)
		require.Equal(t, 1, o.Remaining)
	})
}

// Receipts share the names and messages of conditions, of which fewer than here are remembered.
func TestCallsAreSettledUnderTheNamesAndMessagesThatTheyHad(t *testing.T) {
	th := throttler.New(memstore.New())
	var conditions []throttler.Condition
	var decisions []throttler.Decision
	for _, message := range []string{"", "full", ""} {
		for i := range 100 {
			c := throttler.Condition{Name: "c" + strconv.Itoa(i), Message: message, Max: 10 + i, TTL: time.Hour}
			conditions = append(conditions, c)
			decisions = append(decisions, authorize(t, th, either(c)))
		}
	}
	for i, c := range conditions {
		over := settle(t, th, decisions[i], map[string]int{c.Name: c.Max + 1})
		require.Equal(t, []string{cmp.Or(c.Message, c.Name)}, over.Messages)
		require.Equal(t, c.Max, over.Outcomes[0].Limit)
	}
}

func TestSettleRefusesNamesAndTotalsThatCannotBe(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	d := authorize(t, th, either(condition("c", 5, time.Minute)))
	several := authorize(t, th, both())
	client.took()
	for name, wrong := range map[string]struct {
		d      throttler.Decision
		totals map[string]int
		text   string
	}{
		"another name":     {d, map[string]int{"c": 1, "d": 1}, `"d"`},
		"negative":         {d, total(-1), `condition "c": Cost is -1 in Settle`},
		"one of two":       {several, map[string]int{"window": 1, "bucket": -2}, `"bucket"`},
		"no Decision":      {throttler.Decision{}, total(1), `"c"`},
		"what only looked": {peek(t, th, either(condition("c", 5, time.Minute))), total(1), `"c"`},
	} {
		client.took()
		settled, err := th.Settle(t.Context(), wrong.d, wrong.totals)
		require.ErrorIs(t, err, throttler.ErrInvalidRule, name)
		require.ErrorContains(t, err, wrong.text, name)
		require.Equal(t, throttler.Decision{}, settled, name)
		require.Empty(t, client.took(), name)
	}
	require.ErrorIs(t, th.CancelOnly(t.Context(), d, throttler.Rule{}), throttler.ErrInvalidRule)
	require.NoError(t, th.CancelOnly(t.Context(), throttler.Decision{}, both()))
	for _, d := range []throttler.Decision{d, {}} {
		settled, err := th.Settle(t.Context(), d, nil)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, settled.Status)
		require.Empty(t, client.took())
	}
}

func TestSettleUnderShadowOnlySaysWhatWouldBlock(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th := throttler.New(memstore.New())
		rule := either(c)
		rule.Shadow = true
		d := authorize(t, th, rule)
		redeemed, err := th.Redeem(d.Receipt())
		require.NoError(t, err)
		for _, d := range []throttler.Decision{d, redeemed} {
			settled := settle(t, th, d, total(11))
			require.Equal(t, throttler.Authorized, settled.Status)
			require.True(t, settled.WouldBlock)
			require.True(t, settled.Outcomes[0].Blocked)
			require.Empty(t, settled.Messages)
			require.Zero(t, settled.RetryAfter)
			settle(t, th, d, total(1))
		}
	})
}

func TestSettleTakesOneExchangeForARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		rule := both()
		rule.Either = append(rule.Either, inFlight(5, time.Minute), calendar(100, throttler.Period{}))
		rule.Either[3].Name = "calendar"
		d := authorize(t, th, rule)
		totals := map[string]int{"window": 9, "bucket": 9, "c": 9, "calendar": 200}
		for range 20 {
			settle(t, th, d, totals)
			for name := range totals {
				totals[name]++ // so that each is counted in pieces
			}
			time.Sleep(time.Millisecond)
		}
		for _, want := range []struct {
			totals     map[string]int
			operations []string
		}{
			{totals, []string{"cas", "cas", "cas", "cas", "multi"}},
			{totals, []string{"multi"}},
			{map[string]int{"window": 0, "bucket": 1, "c": 2, "calendar": 3}, []string{"cas", "cas", "cas", "cas", "multi"}},
			{map[string]int{"window": 0}, []string{"get"}},
			{map[string]int{"window": 1}, []string{"cas", "get"}},
		} {
			client.took()
			exchanges := th.Stats().Exchanges
			settle(t, th, d, want.totals)
			require.ElementsMatch(t, want.operations, client.took())
			require.EqualValues(t, len(want.totals), th.Stats().Exchanges-exchanges)
		}
		client.took()
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Len(t, client.took(), 5)
	})
}

func TestSettleByAReceiptWhosePeriodIsOver(t *testing.T) {
	known := berlin(t)
	unknown := known
	unknown.Location = time.FixedZone("no such zone", 5400)
	for name, of := range map[string]struct {
		period throttler.Period
		others int
	}{
		"and nothing was counted since": {known, 0},
		"and others have counted":       {known, 3},
		"in a zone without a name":      {unknown, 0},
		"in one where others counted":   {unknown, 3},
	} {
		t.Run(name, func(t *testing.T) {
			period := of.period
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(memstore.New())
				c := calendar(10, period)
				sleepTo(time.Date(2000, time.February, 20, 0, 0, 0, 0, period.Location))
				token := authorize(t, th, either(costing(c, 5))).Receipt()
				sleepTo(time.Date(2000, time.March, 20, 0, 0, 0, 0, period.Location))
				if of.others > 0 {
					authorize(t, th, either(costing(c, of.others)))
				}
				before := left(t, th, c)
				d, err := th.Redeem(token)
				require.NoError(t, err)
				settle(t, th, d, total(9))
				require.Equal(t, before-4, left(t, th, c))
				settle(t, th, d, total(6))
				require.Equal(t, before-1, left(t, th, c))
				sleepTo(time.Date(2000, time.April, 15, 0, 0, 0, -1, period.Location))
				require.Equal(t, before-1, left(t, th, c))
				time.Sleep(time.Nanosecond)
				require.Equal(t, 10, left(t, th, c))
			})
		})
	}
}

func TestNoTotalIsTooLarge(t *testing.T) {
	everyAlgorithm(t, 10, func(t *testing.T, c throttler.Condition) {
		th := throttler.New(memstore.New())
		d := authorize(t, th, either(c))
		settled := settle(t, th, d, total(math.MaxInt))
		require.Equal(t, throttler.Blocked, settled.Status)
		require.Positive(t, settled.RetryAfter)
		if c.Algorithm == throttler.SlidingWindow {
			require.Equal(t, throttler.MaxHits, settled.Outcomes[0].Cost, "no window holds more")
		}
		other := authorize(t, th, either(c))
		require.Equal(t, throttler.Blocked, other.Status)
		require.Equal(t, throttler.Blocked, settle(t, th, other, total(math.MaxInt)).Status)
		settle(t, th, other, total(0))
		settle(t, th, d, total(3))
		require.Equal(t, 7, left(t, th, c))
	})
}

func TestSettleFromManyGoroutinesIsThatOfOneOfThem(t *testing.T) {
	for _, client := range []throttler.Client{memstore.New(), newFaulty()} {
		th := throttler.New(client)
		c := condition("c", 100, time.Hour)
		d := authorize(t, th, either(c))
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				settled, err := th.Settle(context.Background(), d, total(i%7))
				assert.NoError(t, err)
				assert.NoError(t, settled.Err)
			})
		}
		wg.Wait()
		require.Equal(t, 97, settle(t, th, d, total(3)).Outcomes[0].Remaining)
	}
}

func TestASettleKeepsTheEndThatARenewHasGivenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := over(memstore.New())
		th := throttler.New(client)
		d := authorize(t, th, either(costing(inFlight(10, time.Minute), 3)))
		time.Sleep(50 * time.Second)
		var late atomic.Bool
		client.after = func(op string, err error) error {
			if op == "cas" && !late.Swap(true) {
				time.Sleep(time.Second)
			}
			return err
		}
		renewed := make(chan error)
		go func() { renewed <- th.Renew(context.Background(), d) }()
		synctest.Wait()
		settle(t, th, d, total(2)) // after the renewal, with the lease as it was before it
		require.NoError(t, <-renewed)
		time.Sleep(30 * time.Second)
		lease := th.Hold(t.Context(), d)
		time.Sleep(time.Hour)
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Release(t.Context()))
	})
}

// 64 streams at once count what they use as they use it, on a key with a limit of 100. What
// counts afterwards lets all of them through: 663 of 100 in one report.
func TestStreamsThatSettleSpendWhatTheLimitSaysAndStopInTheMiddle(t *testing.T) {
	const limit, streams, chunks = 100, 64, 20
	everyAlgorithm(t, limit, func(t *testing.T, c throttler.Condition) {
		client := newFaulty()
		th := throttler.New(client)
		var mu sync.Mutex
		spent, stopped := 0, 0
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				d, err := th.Authorize(context.Background(), either(c)) // the first chunk
				assert.NoError(t, err)
				if d.Status == throttler.Blocked {
					return
				}
				used := 1
				for ; used < chunks; used++ {
					time.Sleep(time.Millisecond)
					next, err := th.Settle(context.Background(), d, total(used+1))
					assert.NoError(t, err)
					assert.NoError(t, next.Err)
					if next.Status == throttler.Blocked {
						_, err := th.Settle(context.Background(), d, total(used)) // the chunk is not sent
						assert.NoError(t, err)
						break
					}
				}
				mu.Lock()
				defer mu.Unlock()
				spent += used
				if used < chunks {
					stopped++
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, spent, limit)
		require.Greater(t, spent, limit/2)
		require.NotZero(t, stopped)
		t.Logf("%d of %d spent, %d of %d streams stopped in the middle", spent, limit, stopped, streams)
	})
}
