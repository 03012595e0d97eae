package docs_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// What follows is shown in metered.md.

const (
	portion = 500 // tokens that a stream reserves at a time
	price   = 15  // of a token, in millionths of a dollar
)

var errBudget = errors.New("the budget is used up")

func budget(customer string, tokens int) throttler.Rule {
	return throttler.Rule{
		Identifier: "model",
		Either: []throttler.Condition{
			{Name: "tokens", Value: customer, Max: 20_000, TTL: time.Minute, Cost: tokens},
			{Name: "money", Value: customer, Max: 50_000_000, Algorithm: throttler.Calendar, // 50 $
				Period: throttler.Period{Unit: throttler.Month}, Cost: tokens * price},
		},
		CountAuthorizedOnly: true, // a refused request uses up neither
	}
}

// stream sends an answer of the model, as long as the customer's budget lasts.
func stream(ctx context.Context, limits *throttler.Throttler, customer string, answer iter.Seq2[string, int], send func(string) error) error {
	d, err := limits.Authorize(ctx, budget(customer, portion)) // reserve
	if err != nil {
		return err
	}
	if d.Status == throttler.Blocked {
		return errBudget // try again after d.RetryAfter
	}
	used, reserved := 0, portion
	settle := func(ctx context.Context, tokens int) (throttler.Decision, error) {
		return limits.Settle(ctx, d, map[string]int{"tokens": tokens, "money": tokens * price})
	}
	defer func() { settle(context.WithoutCancel(ctx), used) }() // gives the rest back
	for text, tokens := range answer {
		if used+tokens > reserved {
			reserved += max(tokens, portion)
			more, err := settle(ctx, reserved)
			if err != nil {
				return err
			}
			if more.Status == throttler.Blocked {
				return errBudget // stop in the middle
			}
		}
		if err := send(text); err != nil {
			return err
		}
		used += tokens
	}
	return nil
}

// Up to here.

func TestTheMeteredPageShowsTheCodeOfThisFile(t *testing.T) {
	requireShown(t, "metered.md", "metered_test.go")
}

// answerOf is an answer of so many tokens, 7 at a time.
func answerOf(tokens int) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for ; tokens > 0; tokens -= 7 {
			time.Sleep(time.Millisecond)
			if !yield("words", min(tokens, 7)) {
				return
			}
		}
	}
}

func TestTheStreamOfTheMeteredPageSpendsNoMoreThanTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttler.New(memstore.New())
		sent := 0
		send := func(string) error { sent++; return nil }
		look := func() []throttler.Outcome {
			d, err := limits.Peek(t.Context(), budget("ann", 0))
			require.NoError(t, err)
			return d.Outcomes
		}
		require.NoError(t, stream(t.Context(), limits, "ann", answerOf(3_000), send))
		require.Equal(t, 20_000-3_000-1, look()[0].Remaining, "what was used, and the token of this look")
		require.Equal(t, 50_000_000-3_000*price-1, look()[1].Remaining)

		sent = 0
		require.ErrorIs(t, stream(t.Context(), limits, "ann", answerOf(30_000), send), errBudget)
		require.InDelta(t, 17_000, 7*sent, portion, "it stops in the middle")
		require.ErrorIs(t, stream(t.Context(), limits, "ann", answerOf(1_000), send), errBudget)

		time.Sleep(time.Minute)
		require.NoError(t, stream(t.Context(), limits, "ann", answerOf(1), send))
		require.Error(t, stream(t.Context(), limits, "ann", answerOf(1_000), func(string) error { return errors.New("hung up") }))
		require.Equal(t, 20_000-1-1, look()[0].Remaining, "nothing was sent, so nothing is charged")
	})
}
