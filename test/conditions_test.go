package throttler_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

func either(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: "test", Either: conditions}
}

func all(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: "test", All: conditions}
}

func condition(name string, max int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: name, Value: "v", Max: max, TTL: ttl, Message: name + " is full"}
}

func window(max int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: "c", Max: max, TTL: ttl}
}

func leaky(max int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: "c", Max: max, TTL: ttl, Algorithm: throttler.LeakyBucket}
}

// eachAlgorithm runs test with a condition of each, that holds max hits for so
// long that none expires or leaks during the test.
func eachAlgorithm(t *testing.T, max int, test func(*testing.T, throttler.Condition)) {
	eachOldAlgorithm(t, max, test)
	t.Run("calendar", func(t *testing.T) {
		test(t, throttler.Condition{Name: "c", Max: max, Algorithm: throttler.Calendar, Period: longMonth()})
	})
}

// longMonth returns months of which one ends far from now.
func longMonth() throttler.Period {
	in10Days := time.Now().UTC().AddDate(0, 0, 10)
	return throttler.Period{Unit: throttler.Month, Anchor: min(in10Days.Day(), 28)}
}

// eachOldAlgorithm is eachAlgorithm for those that the first release knew.
func eachOldAlgorithm(t *testing.T, max int, test func(*testing.T, throttler.Condition)) {
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			test(t, throttler.Condition{Name: "c", Max: max, TTL: 10_000 * time.Hour, Algorithm: algorithm})
		})
	}
}

func TestInvalidRulesNameTheFieldAndItsValue(t *testing.T) {
	good := condition("c", 1, time.Second)
	with := func(change func(r *throttler.Rule, c *throttler.Condition)) throttler.Rule {
		c := good
		r := either(c)
		change(&r, &c)
		if len(r.Either) == 1 {
			r.Either[0] = c
		}
		return r
	}
	tests := []struct {
		want string
		rule throttler.Rule
	}{
		{`Identifier is "", want a name`, throttler.Rule{Either: []throttler.Condition{good}}},
		{`Either is empty, and so are All and First, want conditions in one of them`, throttler.Rule{Identifier: "r"}},
		{`All is set (1 conditions) beside Either (1), want only one of Either, All and First`, throttler.Rule{Identifier: "r", Either: []throttler.Condition{good}, All: []throttler.Condition{good}}},
		{`First is set (1 conditions) beside Either (2), want only one of Either, All and First`, throttler.Rule{Identifier: "r", Either: []throttler.Condition{good, good}, First: []throttler.Condition{good}}},
		{`First is set (1 conditions) beside All (1), want only one of Either, All and First`, throttler.Rule{Identifier: "r", All: []throttler.Condition{good}, First: []throttler.Condition{good}}},
		{`condition "c": First[0].Max is 0, want 1 to 1000000`, first(condition("c", 0, time.Second))},
		{`Either[0].Name is "", want a name`, either(condition("", 1, time.Second))},
		{`condition "a": All[2].Name is "a", as that of condition 0, want one of its own`, all(condition("a", 1, time.Second), condition("b", 1, time.Second), condition("a", 2, time.Hour))},
		{`condition "c": Either[0].Max is 0, want 1 to 1000000`, either(condition("c", 0, time.Second))},
		{`condition "c": All[0].Max is -1, want 1 to 1000000`, all(condition("c", -1, time.Second))},
		{`condition "d": Either[1].Max is 1000001, want 1 to 1000000`, either(good, condition("d", throttler.MaxHits+1, time.Second))},
		{`condition "c": Either[0].TTL is 0s, want 1ms or more`, either(condition("c", 1, 0))},
		{`condition "c": Either[0].TTL is 999.999µs, want 1ms or more`, either(condition("c", 1, time.Millisecond-1))},
		{`condition "c": Either[0].TTL is -1s, want 1ms or more`, either(condition("c", 1, -time.Second))},
		{`Lockout is -1ns, want 0 or more`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.Lockout = -1 })},
		{`MaxLockout is -1ns, want 0 or more`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.MaxLockout = -1 })},
		{`LockoutGrowth is 0.5, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = 0.5 })},
		{`LockoutGrowth is -2, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = -2 })},
		{`LockoutGrowth is NaN, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = math.NaN() })},
		{`LockoutGrowth is +Inf, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = math.Inf(1) })},
		{`MaxLockout is 1h59m0s, want 0, or Lockout (2h0m0s) or more`, with(func(r *throttler.Rule, _ *throttler.Condition) {
			r.Lockout, r.MaxLockout = 2*time.Hour, 119*time.Minute
		})},
		{`LockoutGrowth is 2, want 0, or a Lockout that grows`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = 2 })},
		{`MaxLockout is 1h0m0s, want 0, or a Lockout that grows`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.MaxLockout = time.Hour })},
		{`condition "c": Either[0].Cost is -1, want 0 to Max, which is 1`, with(func(_ *throttler.Rule, c *throttler.Condition) { c.Cost = -1 })},
		{`condition "c": Either[0].Cost is 2, want 0 to Max, which is 1`, with(func(_ *throttler.Rule, c *throttler.Condition) { c.Cost = 2 })},
		{`condition "c": Either[0].Algorithm is 4, want SlidingWindow, LeakyBucket, InFlight or Calendar`, with(func(_ *throttler.Rule, c *throttler.Condition) { c.Algorithm = 4 })},
		{`condition "c": Either[0].Max is 1000001, want 1 to 1000000`, with(func(_ *throttler.Rule, c *throttler.Condition) {
			c.Algorithm, c.TTL, c.Max = throttler.LeakyBucket, time.Millisecond, 1_000_001
		})},
		{`condition "c": Either[0].TTL is 876001h0m0s, want at most 876000h0m0s for a leaky bucket`, with(func(_ *throttler.Rule, c *throttler.Condition) {
			c.Algorithm, c.TTL = throttler.LeakyBucket, record.MaxBucketTTL+time.Hour
		})},
	}
	prefetch := func(c throttler.Condition, n int) throttler.Condition {
		c.Prefetch = n
		return c
	}
	banning, least := either(prefetch(good, 1)), costing(good, 1)
	banning.Lockout, least.Least = time.Hour, 1
	for want, rule := range map[string]throttler.Rule{
		"-1, want 0 to Max, which is 1":      either(prefetch(good, -1)),
		"2, want 0 to Max, which is 1":       either(prefetch(good, 2)),
		"1, want 0, or a window or a bucket": either(prefetch(inFlight(2, time.Minute), 1)),
		"2, want 0, or a window or a bucket": either(prefetch(calendar(2, throttler.Period{}), 2)),
		"1, want 0 with Least":               either(prefetch(least, 1)),
		"1, want 0 with a Lockout":           banning,
	} {
		tests = append(tests, struct {
			want string
			rule throttler.Rule
		}{`condition "c": Either[0].Prefetch is ` + want, rule})
	}
	th := throttler.New(memstore.New())
	ctx := context.Background()
	for _, tt := range tests {
		err := tt.rule.Validate()
		require.ErrorIs(t, err, throttler.ErrInvalidRule, tt.want)
		var wrong *throttler.RuleError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, tt.rule.Identifier, wrong.Rule)
		text := "throttler: invalid rule: " + tt.want
		if wrong.Rule != "" {
			text = fmt.Sprintf("throttler: invalid rule %q: %s", wrong.Rule, tt.want)
		}
		require.EqualError(t, err, text)
		for name, call := range map[string]func(context.Context, throttler.Rule) (throttler.Decision, error){
			"Authorize": th.Authorize, "Peek": th.Peek, "Wait": th.Wait,
		} {
			d, err := call(ctx, tt.rule)
			require.EqualError(t, err, text, name)
			require.Equal(t, throttler.Decision{}, d, name)
			require.Equal(t, throttler.Blocked, d.Status, name)
		}
		require.ErrorIs(t, th.Reset(ctx, tt.rule), throttler.ErrInvalidRule)
	}
}

func TestARuleErrorNamesRuleConditionAndField(t *testing.T) {
	fine := condition("c", 1, time.Second)
	month := calendar(1, throttler.Period{Unit: throttler.Month, Anchor: 32})
	month.Name = "month"
	for _, tt := range []struct {
		rule throttler.Rule
		want throttler.RuleError
	}{
		{either(fine, condition("d", 0, time.Second)), throttler.RuleError{Condition: "d", Index: 1, Field: "Max", Got: "0", Want: "1 to 1000000"}},
		{all(condition("", 1, time.Second)), throttler.RuleError{Index: 0, Field: "Name", Got: `""`, Want: "a name"}},
		{either(fine, month), throttler.RuleError{Condition: "month", Index: 1, Field: "Period.Anchor", Got: "32", Want: "0 to 31 in a month"}},
		{either(), throttler.RuleError{Index: -1, Field: "Either", Got: "empty, and so are All and First", Want: "conditions in one of them"}},
	} {
		var got *throttler.RuleError
		require.ErrorAs(t, tt.rule.Validate(), &got)
		require.Equal(t, "test", got.Rule)
		require.Equal(t, tt.want, throttler.RuleError{Condition: got.Condition, Index: got.Index, Field: got.Field, Got: got.Got, Want: got.Want})
	}
	var got *throttler.RuleError
	require.ErrorAs(t, throttler.New(memstore.New()).Ban(t.Context(), either(fine), 0), &got)
	require.EqualError(t, got, `throttler: invalid rule "test": Ban is 0s, want more than 0`)
}

func TestValidRules(t *testing.T) {
	bucket := throttler.Condition{Name: "c", Max: 1_000_000_000, TTL: time.Second, Algorithm: throttler.LeakyBucket}
	longBucket := bucket
	longBucket.TTL = record.MaxBucketTTL
	for _, r := range []throttler.Rule{
		either(condition("c", 1, time.Millisecond)),
		all(condition("c", throttler.MaxHits, math.MaxInt64)),
		either(throttler.Condition{Name: "c", Max: 1, TTL: time.Second, Lockout: -1}), // no Value, no Message
		either(bucket),
		all(longBucket),
		{Identifier: "#\r\n", Either: []throttler.Condition{condition("a b", 1, time.Hour)}, Lockout: math.MaxInt64, LockoutGrowth: 1, MaxLockout: math.MaxInt64},
		{Identifier: "r", Either: []throttler.Condition{{Name: "c", Max: 1, TTL: time.Second, Lockout: time.Hour}}, LockoutGrowth: 2, MaxLockout: 1},
		{Identifier: "r", Either: []throttler.Condition{{Name: "c", Max: 1, TTL: time.Second, Lockout: -1}}, LockoutGrowth: 2},
		either(throttler.Condition{Name: "c", Max: 7, TTL: time.Second, Cost: 7}),
		either(throttler.Condition{Name: "c", Max: 7, TTL: time.Second, Prefetch: 7}),
		{Identifier: "r", Lockout: time.Hour, Either: []throttler.Condition{{Name: "c", Max: 7, TTL: time.Second, Prefetch: 7, Lockout: -1}}},
	} {
		require.NoError(t, r.Validate())
	}
}

func TestStatusAndAlgorithmSayWhatTheyAre(t *testing.T) {
	require.Equal(t, "blocked authorized Status(7)", fmt.Sprint(throttler.Blocked, throttler.Authorized, throttler.Status(7)))
	require.Equal(t, "sliding window leaky bucket Algorithm(7)", fmt.Sprint(throttler.SlidingWindow, throttler.LeakyBucket, throttler.Algorithm(7)))
	require.Equal(t, throttler.Status(0), throttler.Blocked)
	require.Equal(t, throttler.Status(1), throttler.Authorized)
}

func TestConditionsAreThoseOfEitherOrElseOfAll(t *testing.T) {
	one, other := throttler.Condition{Name: "one"}, throttler.Condition{Name: "other"}
	require.Empty(t, throttler.Rule{}.Conditions())
	require.Equal(t, []throttler.Condition{one}, throttler.Rule{Either: []throttler.Condition{one}}.Conditions())
	require.Equal(t, []throttler.Condition{one, other}, throttler.Rule{All: []throttler.Condition{one, other}}.Conditions())
}
