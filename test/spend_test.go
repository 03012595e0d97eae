package throttler_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// tokens is a rule of a model: tokens a minute and a day, of which a call reserves 40, requests,
// and streams under way.
func tokens() throttler.Rule {
	return either(
		costing(condition("minute", 100, time.Minute), 40),
		costing(inBucket(condition("day", 1000, 24*time.Hour)), 40),
		condition("requests", 10, time.Minute),
		inFlight(2, time.Minute),
	)
}

// spent returns how many hits the conditions of tokens hold.
func spent(t *testing.T, th *throttler.Throttler) [4]int {
	rule := tokens()
	rule.Either[0].Cost, rule.Either[1].Cost = 0, 0
	d := peek(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	var n [4]int
	for i, o := range d.Outcomes {
		n[i] = o.Limit - 1 - o.Remaining
	}
	return n
}

func TestSpendSettlesToTheActualCost(t *testing.T) {
	for name, client := range kindsOfClient {
		for _, tt := range []struct {
			name   string
			actual int
			err    error
			want   [4]int
		}{
			{"less", 7, nil, [4]int{7, 7, 1, 0}},
			{"more", 99, nil, [4]int{99, 99, 1, 0}},
			{"nothing", 0, nil, [4]int{0, 0, 1, 0}},
			{"nothing, by an error", 0, errWork, [4]int{}},
			{"some before an error", 7, errWork, [4]int{7, 7, 1, 0}},
		} {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					th := throttler.New(client())
					ctx, cancel := context.WithCancel(t.Context())
					err := th.Spend(ctx, tokens(), func(ctx context.Context) (int, error) {
						require.Equal(t, [4]int{40, 40, 1, 1}, spent(t, th))
						require.NoError(t, ctx.Err())
						cancel() // the settlement happens all the same
						return tt.actual, tt.err
					})
					require.Equal(t, tt.err, err)
					require.Equal(t, tt.want, spent(t, th))
				})
			})
		}
	}
}

func TestSpendAboveMaxCountsAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		require.NoError(t, th.Spend(t.Context(), tokens(), func(context.Context) (int, error) { return 130, nil }))
		d := blockedBy(t, th.Allow(t.Context(), tokens()))
		require.Equal(t, []string{"minute is full"}, d.Messages)
	})
}

func TestSpendPassesAPanicOnAndGivesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		require.PanicsWithValue(t, errWork, func() {
			th.Spend(t.Context(), tokens(), func(context.Context) (int, error) { panic(errWork) })
		})
		require.Equal(t, [4]int{}, spent(t, th))
	})
}

func TestSpendOfANegativeCostLeavesTheReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		err := th.Spend(t.Context(), tokens(), func(context.Context) (int, error) { return -1, errWork })
		require.ErrorIs(t, err, errWork)
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		require.ErrorContains(t, err, `rule "test": Cost is -1`)
		require.Equal(t, [4]int{40, 40, 1, 0}, spent(t, th))
		err = th.Spend(t.Context(), tokens(), func(context.Context) (int, error) { return -1, nil })
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
	})
}

func TestSpendWithoutACostIsAnInvalidRule(t *testing.T) {
	th := throttler.New(memstore.New())
	never := func(context.Context) (int, error) { panic("runs") }
	for _, rule := range []throttler.Rule{
		either(condition("requests", 10, time.Minute)),
		either(costing(inFlight(2, time.Minute), 2)),
		either(),
	} {
		require.ErrorIs(t, th.Spend(t.Context(), rule, never), throttler.ErrInvalidRule)
	}
	wrong := tokens()
	wrong.Either[2].Max = 0
	require.ErrorIs(t, th.Spend(t.Context(), wrong, never), throttler.ErrInvalidRule)
	require.Equal(t, [4]int{}, spent(t, th))
}

func TestSpendThatIsRefusedReservesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		full := tokens()
		full.Either[0].Cost = 70
		require.NoError(t, th.Allow(t.Context(), full))
		before := spent(t, th)
		d := blockedBy(t, th.Spend(t.Context(), tokens(), func(context.Context) (int, error) { panic("runs") }))
		require.Equal(t, []string{"minute is full"}, d.Messages)
		after := spent(t, th)
		require.Equal(t, before[1], after[1])
		require.Equal(t, 2, after[2], "it was a request, as with Authorize")
		require.Equal(t, before[3], after[3])
	})
}

func TestSpendHoldsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := tokens()
		rule.Either[0].TTL = time.Hour
		require.NoError(t, th.Spend(t.Context(), rule, func(ctx context.Context) (int, error) {
			time.Sleep(10 * time.Minute)
			require.Equal(t, 1, spent(t, th)[3])
			return 1, ctx.Err()
		}))
		err := th.Spend(t.Context(), rule, func(ctx context.Context) (int, error) {
			require.NoError(t, th.Reset(ctx, tokens()))
			<-ctx.Done()
			return 5, context.Cause(ctx)
		})
		require.Equal(t, throttler.ErrLeaseLost, err)
	})
}

// With All, a condition that was full before is not charged with what another one took.
func TestSpendSettlesOnlyWhatTookTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		rule := all(costing(condition("own", 40, time.Minute), 40), costing(condition("shared", 100, time.Minute), 40))
		require.NoError(t, th.Allow(t.Context(), rule))
		require.NoError(t, th.Spend(t.Context(), rule, func(context.Context) (int, error) { return 9, nil }))
		d := peek(t, th, rule)
		require.Equal(t, []int{0, 100 - 40 - 9 - 40}, remaining(d))
		require.NoError(t, th.Cancel(t.Context(), authorize(t, th, rule)))

		shadow := either(costing(condition("own", 40, time.Minute), 40))
		shadow.Shadow = true
		require.NoError(t, th.Spend(t.Context(), shadow, func(context.Context) (int, error) { return 30, nil }))
		require.Equal(t, time.Minute, peek(t, th, rule).Outcomes[0].RetryAfter, "it counts as it would if it were enforced")
	})
}

func TestSpendFailsOpen(t *testing.T) {
	client := newOutlet()
	th := throttler.New(client)
	seven := func(context.Context) (int, error) {
		client.off.Store(false)
		return 7, nil
	}
	client.off.Store(true)
	require.NoError(t, th.Spend(t.Context(), tokens(), seven))
	require.Equal(t, 7, spent(t, th)[0], "the backend is back, and knows what was spent")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, th.Spend(ended, tokens(), seven))
	require.Equal(t, 14, spent(t, th)[0])

	require.NoError(t, th.Spend(t.Context(), tokens(), func(context.Context) (int, error) {
		client.off.Store(true)
		return 3, nil
	}), "a settlement that failed is not returned")
	client.off.Store(false)
	require.Equal(t, 54, spent(t, th)[0], "the reservation stands")
}
