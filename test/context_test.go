package throttler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What becomes of a call, and of those that share its exchanges, when its ctx
// ends at a given moment.

func TestDoneContextEndsTheCallBeforeAnyOperation(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, rule := range []throttler.Rule{
		either(condition("a", 1, time.Minute)),
		either(condition("a", 1, time.Minute), condition("b", 1, time.Minute)),
	} {
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, d.Status)
		require.Equal(t, context.Canceled, d.Err)
		for i, c := range rule.Either {
			require.Equal(t, throttler.Outcome{Name: c.Name, Limit: 1, Remaining: 1, Err: context.Canceled}, d.Outcomes[i])
		}
		require.Nil(t, d.Receipt())
		require.NoError(t, th.Cancel(t.Context(), d), "it has counted nothing")
		require.ErrorIs(t, th.Reset(ctx, rule), context.Canceled)
	}
	require.Empty(t, client.took())
}

// What the process knows does not block it either.
func TestDoneContextFailsOpenWhereTheBlockCacheHasAFullCondition(t *testing.T) {
	th := throttler.New(newFaulty())
	th.BlockCache = 10
	rule := either(condition("a", 1, time.Minute))
	authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, th.Allow(ctx, rule))
	ran := false
	require.NoError(t, th.TryDo(ctx, rule, func(context.Context) error {
		ran = true
		return nil
	}))
	require.True(t, ran)
}

func TestADoneContextChangesNothingInProcessMemory(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := either(condition("a", 3, time.Minute))
	authorize(t, th, rule)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, th.Reset(ctx, rule), context.Canceled)
	require.ErrorIs(t, th.Ban(ctx, rule, time.Hour), context.Canceled)
	require.Equal(t, []int{1}, remaining(authorize(t, th, rule)))
}

// Who leaves the queue does not make the call before them ask twice.
func TestACallerThatLeavesCostsOthersNoRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newDistant()
		th := throttler.New(client)
		rule := either(condition("a", 1, time.Minute))
		authorize(t, th, rule)
		start := time.Now()
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), roundTrip/2)
			defer cancel()
			time.Sleep(roundTrip / 4)
			_, err := th.Authorize(ctx, rule)
			assert.NoError(t, err)
		}()
		require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
		require.Equal(t, roundTrip, time.Since(start))
	})
}

func TestNoReadBeginsBesideOneThatItsCallerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		var active, most atomic.Int64
		client.before = func(string, ...string) error {
			most.Store(max(most.Load(), active.Add(1)))
			defer active.Add(-1)
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		th := throttler.New(client)
		rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{limit("c", 5, time.Hour)}}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			d, err := th.Authorize(ctx, rule)
			cancel()
			require.NoError(t, err)
			require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		}
		require.Equal(t, []int{4}, remaining(authorize(t, th, rule)))
		require.Equal(t, []string{"get", "add"}, client.took())
		require.EqualValues(t, 1, most.Load())
	})
}

func TestAReadThatItsCallerHasLeftFailsNoLaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		first := true
		client.before = func(string, ...string) error {
			if first { // over a connection that is dead
				first = false
				time.Sleep(500 * time.Millisecond)
				return errDown
			}
			return nil
		}
		th := throttler.New(client)
		rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{limit("c", 5, time.Hour)}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		d := authorize(t, th, rule)
		require.NoError(t, d.Err)
		require.Equal(t, []int{4}, remaining(d))
	})
}

// A call is left, but what is known of it stands.
func TestContextThatEndsDuringAWriteLeavesOtherConditionsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		full, open := condition("full", 1, time.Minute), condition("open", 5, time.Minute)
		authorize(t, th, either(full))
		client.before = func(op string, keys ...string) error {
			if op == "add" {
				time.Sleep(time.Second)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		d, err := th.Authorize(ctx, either(full, open))
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, []string{"full is full"}, d.Messages)
		require.Equal(t, context.DeadlineExceeded, d.Outcomes[1].Err)
		require.NoError(t, d.Outcomes[0].Err)
		time.Sleep(time.Second)
	})
}
