package throttler_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
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

var errWork = errors.New("work failed")

// oneJob is a rule of jobs in flight, and how often they begin.
func oneJob() throttler.Rule {
	begun := condition("begun", 100, time.Hour)
	return either(inFlight(1, time.Minute), begun)
}

// jobsLeft returns how many more hits fit into the conditions of oneJob.
func jobsLeft(t *testing.T, th *throttler.Throttler) []int {
	rule := oneJob()
	return []int{left(t, th, rule.Either[0]), left(t, th, rule.Either[1])}
}

func TestDoHoldsWhileWorkRunsAndGivesBackWhatIsInFlight(t *testing.T) {
	for name, client := range kindsOfClient {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := client()
				th, other := throttler.New(store), throttler.New(store)
				var seen context.Context
				err := th.Do(t.Context(), oneJob(), func(ctx context.Context) error {
					seen = ctx
					time.Sleep(10 * time.Minute)
					require.NoError(t, ctx.Err())
					require.True(t, peek(t, other, oneJob()).Outcomes[0].Blocked)
					return errWork
				})
				require.Same(t, errWork, err)
				require.ErrorIs(t, context.Cause(seen), context.Canceled)
				require.Equal(t, []int{1, 99}, jobsLeft(t, other), "the other hits stay, after an error too")
			})
		})
	}
}

func TestDoWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		start := time.Now()
		var began []time.Duration // one at a time writes
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				assert.NoError(t, th.Do(t.Context(), oneJob(), func(context.Context) error {
					began = append(began, time.Since(start))
					time.Sleep(time.Second)
					return nil
				}))
			})
		}
		all.Wait()
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, began)
	})
}

func TestDoPassesAPanicOnAndGivesBack(t *testing.T) {
	for name, do := range map[string]func(*throttler.Throttler, context.Context, throttler.Rule, func(context.Context) error) error{
		"Do": (*throttler.Throttler).Do, "TryDo": (*throttler.Throttler).TryDo,
	} {
		t.Run(name, func(t *testing.T) {
			th := throttler.New(memstore.New())
			ctx, cancel := context.WithCancel(t.Context())
			require.PanicsWithValue(t, errWork, func() {
				do(th, ctx, oneJob(), func(context.Context) error {
					cancel()
					panic(errWork)
				})
			})
			require.Equal(t, []int{1, 99}, jobsLeft(t, th))
		})
	}
}

func TestDoEndsTheContextOfWorkWhenALeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		err := th.Do(t.Context(), oneJob(), func(ctx context.Context) error {
			require.NoError(t, th.Reset(ctx, oneJob()))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.Equal(t, throttler.ErrLeaseLost, err)
	})
}

func TestDoWithNothingInFlightIsWaitAndWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		start, rule := time.Now(), either(condition("c", 1, time.Minute))
		for i := range 3 {
			require.NoError(t, th.Do(t.Context(), rule, func(ctx context.Context) error {
				require.Equal(t, t.Context(), ctx)
				require.Equal(t, time.Duration(i)*time.Minute, time.Since(start))
				return nil
			}))
		}
	})
}

func TestDoDoesNotRunWorkIfItsContextEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		lease := hold(t, th, oneJob())
		defer lease.Release(t.Context())
		never := func(context.Context) error { panic("runs") }

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.Equal(t, context.Canceled, th.Do(ctx, oneJob(), never))
		require.Equal(t, context.Canceled, th.Do(ctx, oneJob(), never), "nor if it had ended")
		ctx, cancel = context.WithTimeoutCause(t.Context(), time.Second, errWork)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, th.Do(ctx, oneJob(), never), "Wait's error")
		require.Equal(t, []int{0, 99}, jobsLeft(t, th), "it has counted nothing")

		wrong := oneJob()
		wrong.Identifier = ""
		require.ErrorIs(t, th.Do(t.Context(), wrong, never), throttler.ErrInvalidRule)
		require.ErrorIs(t, th.TryDo(t.Context(), wrong, never), throttler.ErrInvalidRule)
	})
}

// The try of a Do that ctx cuts short may count: then it holds up nobody.
func TestDoGivesBackWhatATryCountsThatItsContextCutsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		var fast atomic.Bool
		client.before = func(op string, _ ...string) error {
			if !fast.Load() && op == "add" {
				time.Sleep(time.Second)
			}
			return nil
		}
		th := throttler.New(client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		err := th.Do(ctx, either(inFlight(1, time.Hour)), func(context.Context) error { panic("runs") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		fast.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, throttler.Authorized, peek(t, th, either(inFlight(1, time.Hour))).Status)
	})
}

// It does so for two seconds, whatever the server does.
func TestDoGivesUpToGiveBackWhatAHungServerMayCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		client.before = func(op string, _ ...string) error {
			if op == "add" {
				time.Sleep(time.Minute)
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		err := throttler.New(client).Do(ctx, either(inFlight(1, time.Hour)), func(context.Context) error { panic("runs") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		givesBack := func() bool {
			synctest.Wait()
			stacks := make([]byte, 1<<20)
			return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*Throttler).Cancel"))
		}
		require.True(t, givesBack())
		time.Sleep(2 * time.Second)
		require.False(t, givesBack())
		time.Sleep(time.Minute) // what is under way at the server ends
	})
}

func TestTryDoDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memstore.New())
		two := either(inFlight(2, time.Minute), condition("begun", 1, time.Hour))
		require.NoError(t, th.TryDo(t.Context(), two, func(ctx context.Context) error {
			d := blockedBy(t, th.TryDo(ctx, two, func(context.Context) error { panic("runs") }))
			require.Equal(t, []string{"begun is full"}, d.Messages)
			require.Equal(t, time.Hour, d.RetryAfter)
			require.Equal(t, 0, peek(t, th, two).Outcomes[0].Remaining, "of two, only that of the first is in flight")
			return nil
		}))
		require.Equal(t, 1, peek(t, th, two).Outcomes[0].Remaining)
	})
}

func TestTryDoFailsOpen(t *testing.T) {
	client := newOutlet()
	th := throttler.New(client)
	lease := hold(t, th, oneJob())
	blockedBy(t, th.TryDo(t.Context(), oneJob(), func(context.Context) error { panic("runs") }))
	runs := func(ctx context.Context) {
		t.Helper()
		require.Same(t, errWork, th.TryDo(ctx, oneJob(), func(context.Context) error { return errWork }))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	runs(ended)
	client.off.Store(true)
	runs(t.Context())
	client.off.Store(false)
	require.NoError(t, lease.Release(t.Context()))
	shadow := oneJob()
	shadow.Shadow = true
	require.NoError(t, th.TryDo(t.Context(), shadow, func(ctx context.Context) error {
		return th.TryDo(ctx, shadow, func(ctx context.Context) error { return ctx.Err() })
	}))
	require.Equal(t, 1, jobsLeft(t, th)[0], "given back, with Shadow as well")
}

func TestReleaseGivesBackAlthoughItsContextHasEnded(t *testing.T) {
	for name, client := range kindsOfClient {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(client())
				lease := hold(t, th, oneJob())
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				require.NoError(t, lease.Release(ctx))
				require.False(t, peek(t, th, oneJob()).Outcomes[0].Blocked)
			})
		})
	}
}

func TestReleaseReturnsInItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFaulty()
		th := throttler.New(client)
		lease := hold(t, th, oneJob())
		client.before = func(string, ...string) error {
			time.Sleep(time.Minute)
			return errDown
		}
		start := time.Now()
		require.ErrorIs(t, lease.Release(t.Context()), context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		time.Sleep(time.Hour)
	})
}
