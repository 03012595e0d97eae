package throttler_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// answer is the part of a Decision that the verdict makes.
type answer struct {
	status   throttler.Status
	messages []string
	retry    time.Duration
}

func TestVerdict(t *testing.T) {
	type call struct {
		at   time.Duration
		want answer
	}
	a, b := condition("a", 1, 10*time.Second), condition("b", 2, 60*time.Second)
	unnamed := b
	unnamed.Message = ""
	ok := answer{status: throttler.Authorized}
	tests := map[string]struct {
		rule  throttler.Rule
		calls []call
	}{
		"either blocks for any, others count": {either(a, b), []call{
			{0, ok},
			// b takes this one, and is full from then on: it is b that
			// keeps the same call out the longest.
			{t1, answer{throttler.Blocked, []string{"a is full"}, 59 * time.Second}},
			{t2, answer{throttler.Blocked, []string{"a is full", "b is full"}, 58 * time.Second}},
			{10 * t1, answer{throttler.Blocked, []string{"b is full"}, 50 * time.Second}},
			{60 * t1, ok},
		}},
		"either waits for the last of the blocking ones": {either(b, a), []call{
			{0, ok},
			{12 * t1, ok},
			{13 * t1, answer{throttler.Blocked, []string{"b is full", "a is full"}, 47 * time.Second}},
			{60 * t1, ok},
		}},
		"all blocks only if every one is full": {all(a, b), []call{
			{0, ok},
			{t1, ok}, // a is full, b takes it
			{t2, answer{throttler.Blocked, []string{"a is full", "b is full"}, 8 * time.Second}},
			{10 * t1, ok}, // a takes it
			{11 * t1, answer{throttler.Blocked, []string{"a is full", "b is full"}, 9 * time.Second}},
		}},
		"without a message the name stands for it": {either(unnamed), []call{
			{0, ok}, {0, ok},
			{0, answer{throttler.Blocked, []string{"b"}, 60 * time.Second}},
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th, start := throttler.New(memstore.New()), time.Now()
				for i, c := range tt.calls {
					time.Sleep(time.Until(start.Add(c.at)))
					d, err := th.Authorize(t.Context(), tt.rule)
					require.NoError(t, err)
					require.Equal(t, c.want, answer{d.Status, d.Messages, d.RetryAfter}, "call %d", i)
					require.Equal(t, d.Status == throttler.Blocked, d.WouldBlock)
				}
			})
		})
	}
}

// Whatever the rule and the arrivals, RetryAfter of a blocked call is exactly
// when it is authorized.
func TestRetryAfterOfARuleIsWhenTheCallIsAuthorized(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		rule := throttler.Rule{
			Identifier:          "r",
			Lockout:             time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "lockout")),
			LockoutGrowth:       rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "growth"),
			CountAuthorizedOnly: rapid.Bool().Draw(t, "authorized only"),
		}
		conditions := drawConditions(t)
		switch rapid.IntRange(0, 2).Draw(t, "either, all or first") {
		case 0:
			rule.Either = conditions
		case 1:
			rule.All = conditions
		case 2:
			rule.First = conditions
		}
		inBubble(outer, func() {
			ctx, th := context.Background(), throttler.New(memstore.New())
			for range rapid.IntRange(1, 40).Draw(t, "calls") {
				time.Sleep(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "pause")))
				peeked, err := th.Peek(ctx, rule)
				require.NoError(t, err)
				d, err := th.Authorize(ctx, rule)
				require.NoError(t, err)
				require.Equal(t, peeked.Outcomes, d.Outcomes, "Peek answers as Authorize does")
				if d.Status == throttler.Authorized {
					require.Zero(t, d.RetryAfter)
					continue
				}
				time.Sleep(d.RetryAfter - 1)
				early, _ := th.Peek(ctx, rule)
				require.Equal(t, throttler.Blocked, early.Status)
				time.Sleep(time.Nanosecond)
				d, _ = th.Peek(ctx, rule)
				require.Equal(t, throttler.Authorized, d.Status)
			}
		})
	})
}

func drawConditions(t *rapid.T) []throttler.Condition {
	var conditions []throttler.Condition
	for i := range rapid.IntRange(1, 3).Draw(t, "conditions") {
		max := rapid.IntRange(1, 5).Draw(t, "max")
		conditions = append(conditions, throttler.Condition{
			Name:      fmt.Sprint(i),
			Max:       max,
			Cost:      rapid.IntRange(0, max).Draw(t, "cost"),
			TTL:       time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(30*time.Second)).Draw(t, "ttl")),
			Algorithm: rapid.SampledFrom([]throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket}).Draw(t, "algorithm"),
			Lockout:   rapid.SampledFrom([]time.Duration{0, -1, time.Second}).Draw(t, "lockout"),
		})
	}
	return conditions
}
