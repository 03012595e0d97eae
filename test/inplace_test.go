package throttler_test

import (
	"context"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A call over a store in process memory is decided in its place, unless something is to be
// told or kept besides. It must make no difference to anybody, whatever fails, and whether the
// rule is prepared or not.
func TestACallDecidedInPlaceIsDecidedAsAnyOther(t *testing.T) {
	check(t, func(t *rapid.T) {
		ctx := context.Background()
		failing := rapid.Bool().Draw(t, "failing")
		var maxBytes int
		if failing {
			maxBytes = rapid.SampledFrom([]int{0, 40, 100, 150}).Draw(t, "MaxBytes")
		}
		var stores [2]*memstore.Store
		var ths [2]*throttler.Throttler
		for i := range stores {
			stores[i] = &memstore.Store{MaxBytes: maxBytes}
			ths[i] = throttler.New(stores[i])
		}
		ths[1].Conflict = func(throttler.Rule, error) {} // decides calls in the usual way
		both := func(do func(th *throttler.Throttler, i int) (throttler.Decision, error)) (ds [2]throttler.Decision) {
			var errs [2]error
			for i, th := range ths {
				ds[i], errs[i] = do(th, i)
			}
			require.Equal(t, errs[1], errs[0])
			require.Equal(t, told(ds[1]), told(ds[0]))
			require.Equal(t, ds[1].Receipt(), ds[0].Receipt())
			return ds
		}
		rules := rapid.SliceOfN(rapid.Custom(drawInPlace), 1, 2).Draw(t, "rules")
		var made [][2]throttler.Decision
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			rule := rapid.SampledFrom(rules).Draw(t, "rule")
			one := rapid.SampledFrom(rule.Conditions()).Draw(t, "one")
			ttl := max(one.TTL, time.Minute)
			time.Sleep(time.Duration(rapid.Int64Range(0, int64(ttl)).Draw(t, "pause")))
			op := rapid.SampledFrom([]string{"authorize", "authorize", "authorize", "settle", "cancel", "ban", "reset", "foreign"}).Draw(t, "op")
			switch {
			case op == "authorize" || len(made) == 0:
				prepared := rapid.Bool().Draw(t, "prepared") && len(rule.Conditions()) == 1
				made = append(made, both(func(th *throttler.Throttler, i int) (throttler.Decision, error) {
					if prepared && i == 0 {
						limit, err := th.Limit(rule)
						require.NoError(t, err)
						return limit.Authorize(ctx, rule.Conditions()[0].Value)
					}
					return th.Authorize(ctx, rule)
				}))
			case op == "settle":
				which, total := rapid.SampledFrom(made).Draw(t, "which"), rapid.IntRange(0, 5).Draw(t, "total")
				made = append(made, both(func(th *throttler.Throttler, i int) (throttler.Decision, error) {
					return th.Settle(ctx, which[i], map[string]int{which[i].Outcomes[0].Name: total})
				}))
			case op == "cancel":
				which := rapid.SampledFrom(made).Draw(t, "which")
				both(func(th *throttler.Throttler, i int) (throttler.Decision, error) {
					return throttler.Decision{}, th.Cancel(ctx, which[i])
				})
			case op == "ban":
				both(func(th *throttler.Throttler, _ int) (throttler.Decision, error) {
					return throttler.Decision{}, th.Ban(ctx, rule, ttl/2)
				})
			case op == "foreign" && failing:
				for i := range stores {
					item := &memcache.Item{Key: throttler.RecordKey(rule.Identifier, one.Name, one.Value), Value: []byte{4, 0, 0}}
					_ = stores[i].Delete(item.Key)
					_ = stores[i].Add(item) // unless it is too large
				}
			default:
				both(func(th *throttler.Throttler, _ int) (throttler.Decision, error) {
					return throttler.Decision{}, th.Reset(ctx, rule)
				})
			}
			both(func(th *throttler.Throttler, _ int) (throttler.Decision, error) { return th.Peek(ctx, rule) })
		}
		if !failing { // or else some records are asked for twice
			require.Equal(t, ths[1].Stats(), ths[0].Stats())
		}
	})
}

// drawInPlace draws a rule of some conditions. Their names and values may be any bytes.
func drawInPlace(t *rapid.T) throttler.Rule {
	names := rapid.Permutation([]string{"limiter", "a#b", "\x00"}).Draw(t, "Names")
	var all []throttler.Condition
	for _, name := range names[:rapid.IntRange(1, 3).Draw(t, "conditions")] {
		c := drawLimiter(t, rapid.SampledFrom([]throttler.Algorithm{
			throttler.SlidingWindow, throttler.LeakyBucket, throttler.SlidingWindow, throttler.LeakyBucket, throttler.Calendar,
		}).Draw(t, "Algorithm"))
		c.Name = name
		c.Value = rapid.SampledFrom([]string{"", "v", "two words", "\xff"}).Draw(t, "Value")
		c.Message = rapid.SampledFrom([]string{"", "full"}).Draw(t, "Message")
		c.Cost = rapid.IntRange(0, c.Max).Draw(t, "Cost")
		if c.Cost > 1 {
			c.Least = rapid.IntRange(0, c.Cost).Draw(t, "Least")
		}
		if c.Algorithm == throttler.Calendar {
			c.TTL = 0
		}
		all = append(all, c)
	}
	rule := either(all...)
	if rapid.Bool().Draw(t, "All") {
		rule.Either, rule.All = nil, rule.Either
	}
	rule.Shadow = rapid.Bool().Draw(t, "Shadow")
	rule.CountAuthorizedOnly = rapid.Bool().Draw(t, "CountAuthorizedOnly")
	if rapid.Bool().Draw(t, "banning") {
		rule.Lockout = time.Minute
		rule.LockoutGrowth = rapid.SampledFrom([]float64{0, 2}).Draw(t, "LockoutGrowth")
	}
	return rule
}

// told returns what d tells.
func told(d throttler.Decision) throttler.Decision {
	return throttler.Decision{
		Status: d.Status, Messages: d.Messages, RetryAfter: d.RetryAfter, Outcomes: d.Outcomes,
		WouldBlock: d.WouldBlock, Err: d.Err,
	}
}
