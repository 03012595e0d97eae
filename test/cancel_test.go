package throttler_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
)

// both is a rule with a condition of each algorithm, which count 5 a minute.
func both() throttler.Rule {
	bucket := condition("bucket", 5, time.Minute)
	bucket.Algorithm = throttler.LeakyBucket
	return either(condition("window", 5, time.Minute), bucket)
}

func TestCancelWithAnEndedContextLeavesEachHitToTheNext(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	d := authorize(t, th, both())
	client.took()
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, th.Cancel(ended, d), context.Canceled)
	require.Empty(t, client.took())
	require.NoError(t, th.Cancel(t.Context(), d))
	require.Equal(t, []int{4, 4}, remaining(peek(t, th, both())))
	for range 50 { // with nothing to take back and no other Cancel, nothing waits for ctx
		require.NoError(t, th.Cancel(ended, d))
	}
}

// Both have counted the call: the backend late, and the fallback in its place.
func TestCancelTakesBackALateHitAndTheOneOfTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, fallback := newFaulty(), memstore.New()
		th := throttler.New(client)
		th.Fallback = fallback
		rule := either(condition("window", 5, time.Minute))
		slowly(client, "", "add")
		ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer end()
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, context.DeadlineExceeded, d.Err)
		require.Equal(t, []int{4}, remaining(d))
		require.NoError(t, th.Cancel(t.Context(), d))
		for _, store := range []throttler.Client{client.Client, fallback} {
			require.Equal(t, []int{4}, remaining(peek(t, throttler.New(store), rule)), "the look alone")
		}
	})
}

// slowly makes the given operations on keys that hold part take a second.
func slowly(client *faulty, part string, ops ...string) {
	client.before = func(op string, keys ...string) error {
		if slices.Contains(ops, op) && strings.Contains(strings.Join(keys, " "), part) {
			time.Sleep(time.Second)
		}
		return nil
	}
}

func TestCancelWaitsForAnotherUntilItsOwnContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		d := authorize(t, th, both())
		slowly(client, "", "cas")
		first := make(chan error)
		go func() { first <- th.Cancel(context.Background(), d) }()
		synctest.Wait()

		start := time.Now()
		require.Nil(t, d.Receipt(), "what is being taken back is not in it")
		require.Zero(t, time.Since(start))
		for i, cancel := range []func(context.Context) error{
			func(ctx context.Context) error { return th.Cancel(ctx, d) },
			func(ctx context.Context) error { return th.CancelOnly(ctx, d, both()) },
			func(ctx context.Context) error {
				settled, err := th.Settle(ctx, d, map[string]int{"window": 3})
				require.NoError(t, err)
				require.Equal(t, settled.Err, settled.Outcomes[0].Err)
				require.Equal(t, 5, settled.Outcomes[0].Remaining, "as of what fails open")
				return settled.Err
			},
		} {
			ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer end()
			require.ErrorIs(t, cancel(ctx), context.DeadlineExceeded)
			require.Equal(t, time.Duration(i+1)*100*time.Millisecond, time.Since(start))
		}

		require.NoError(t, th.Cancel(t.Context(), d), "it waits for the first")
		require.Equal(t, time.Second, time.Since(start))
		require.NoError(t, <-first)
		require.Equal(t, []string{"multi", "add", "add", "multi", "cas", "cas"}, client.took(), "each hit once")
		require.Equal(t, []int{4, 4}, remaining(peek(t, th, both())))
	})
}

func TestCancelTriesAgainWhatTheOneBeforeItCouldNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		d := authorize(t, th, both())
		var down atomic.Bool
		down.Store(true)
		client.before = func(string, ...string) error {
			if !down.Load() {
				return nil
			}
			time.Sleep(time.Second)
			return errDown
		}
		window := either(both().Either[0])
		first := make(chan error)
		go func() { first <- th.CancelOnly(context.Background(), d, window) }()
		synctest.Wait()
		second := make(chan error)
		go func() { second <- th.Cancel(context.Background(), d) }()
		synctest.Wait()
		down.Store(false) // from what comes after
		require.ErrorIs(t, <-first, errDown)
		require.NoError(t, <-second)
		require.Equal(t, []int{4, 4}, remaining(peek(t, th, both())))
		require.Nil(t, d.Receipt())
	})
}

func TestReceiptHoldsWhatNoCancelIsTakingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		d := authorize(t, th, both())
		all := d.Receipt()
		slowly(client, "", "cas")
		window, bucket := either(both().Either[0]), either(both().Either[1])
		done := make(chan error)
		go func() { done <- th.CancelOnly(context.Background(), d, window) }()
		synctest.Wait()
		receipt := d.Receipt()
		require.Less(t, len(receipt), len(all))
		require.NoError(t, <-done)
		client.before = failing(nil, "")
		rest, err := th.Redeem(receipt)
		require.NoError(t, err)
		require.NoError(t, th.CancelOnly(t.Context(), rest, window))
		require.Equal(t, []int{4, 3}, remaining(peek(t, th, both())))
		require.NoError(t, th.CancelOnly(t.Context(), rest, bucket))
		require.Equal(t, []int{4, 4}, remaining(peek(t, th, both())))
	})
}

func TestHitsAreInTheReceiptAgainWhenTheirCancelHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		slowly(client, "bucket", "add")
		ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer end()
		d, err := th.Authorize(ctx, both())
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		window := d.Receipt()
		require.NotNil(t, window)

		ctx, end = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer end()
		done := make(chan error)
		go func() { done <- th.Cancel(ctx, d) }()
		synctest.Wait()
		require.Nil(t, d.Receipt())
		require.ErrorIs(t, <-done, context.DeadlineExceeded)
		require.Equal(t, window, d.Receipt())

		start := time.Now()
		require.NoError(t, th.CancelOnly(t.Context(), d, either(both().Either[0])))
		require.Zero(t, time.Since(start), "the bucket is still under way, and no part of this")
		require.NoError(t, th.Cancel(t.Context(), d))
		require.Equal(t, []int{4, 4}, remaining(peek(t, th, both())))
	})
}

// A Decision may be used through any Throttler of the same servers, whose own BlockCache and
// waiting calls notice it at once.
func TestCancelThroughAnotherThrottlerIsNoticedThereToo(t *testing.T) {
	for name, giveBack := range map[string]func(ctx context.Context, th *throttler.Throttler, d throttler.Decision, rule throttler.Rule) error{
		"Cancel": func(ctx context.Context, th *throttler.Throttler, d throttler.Decision, _ throttler.Rule) error {
			return th.Cancel(ctx, d)
		},
		"CancelOnly": func(ctx context.Context, th *throttler.Throttler, d throttler.Decision, rule throttler.Rule) error {
			return th.CancelOnly(ctx, d, rule)
		},
		"Settle": func(ctx context.Context, th *throttler.Throttler, d throttler.Decision, _ throttler.Rule) error {
			settled, err := th.Settle(ctx, d, total(0))
			return errors.Join(settled.Err, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			everyAlgorithm(t, 1, func(t *testing.T, c throttler.Condition) {
				client := newFaulty()
				maker, other := throttler.New(client), throttler.New(client)
				other.BlockCache = 10
				full := func() throttler.Decision {
					require.NoError(t, maker.Reset(t.Context(), either(c)))
					d := authorize(t, maker, either(c))
					require.Equal(t, throttler.Authorized, d.Status)
					require.Equal(t, throttler.Blocked, authorize(t, other, either(c)).Status)
					return d
				}
				require.NoError(t, giveBack(t.Context(), other, full(), either(c)))
				require.Equal(t, throttler.Authorized, authorize(t, other, either(c)).Status)

				d := full()
				start := time.Now()
				waited := make(chan error, 1)
				wait := func() {
					_, err := other.Wait(context.Background(), either(c))
					waited <- err
				}
				go wait()
				time.Sleep(time.Second / 2)
				require.NoError(t, giveBack(t.Context(), other, d, either(c)))
				require.NoError(t, <-waited)
				require.Equal(t, time.Second/2, time.Since(start))

				// What is stored late is noticed too.
				d = full()
				start = time.Now()
				go wait()
				synctest.Wait()
				slowly(client, "", "cas")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				require.ErrorIs(t, giveBack(ctx, other, d, either(c)), context.DeadlineExceeded)
				require.NoError(t, <-waited)
				require.Equal(t, 2*time.Second, time.Since(start), "its write is as slow")
			})
		})
	}
}
