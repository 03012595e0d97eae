package throttler_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The cases of golang.org/x/time/rate's own tests, in the words of this package: a Limiter of r
// tokens a second and a burst of b is a LeakyBucket of b in b/r seconds, AllowN is Authorize
// with a Cost, and WaitN, or a Reservation that is waited for, is Wait.
//
// Three things differ. A Cost above Max is an invalid rule instead of a call that never passes.
// A call of Wait reserves nothing, so an Authorize may take what it waits for. And a rule that
// allows nothing, or everything, is none.

const tenth = 100 * time.Millisecond

// A timeRate is a Limiter of ten tokens a second.
type timeRate struct {
	*throttler.Throttler
	bucket throttler.Condition
	start  time.Time
}

func newTimeRate(burst int) *timeRate {
	bucket := inBucket(condition("c", burst, time.Duration(burst)*tenth))
	return &timeRate{throttler.New(memstore.New()), bucket, time.Now()}
}

func (r *timeRate) n(n int) throttler.Rule { return either(costing(r.bucket, n)) }

// sleepUntil sleeps until so many tenths of a second after the start.
func (r *timeRate) sleepUntil(tenths int) {
	time.Sleep(time.Until(r.start.Add(time.Duration(tenths) * tenth)))
}

// An allowed is an AllowN of a test, at so many tenths after the start.
type allowed struct {
	at, tokens, n int
	ok            bool
}

func (r *timeRate) allow(t *testing.T, steps ...allowed) {
	t.Helper()
	for i, s := range steps {
		r.sleepUntil(s.at)
		require.Equal(t, s.tokens, left(t, r.Throttler, r.bucket), "tokens before step %d", i)
		if s.n > r.bucket.Max {
			require.ErrorIs(t, r.Allow(t.Context(), r.n(s.n)), throttler.ErrInvalidRule)
			continue
		}
		require.Equal(t, s.ok, r.Allow(t.Context(), r.n(s.n)) == nil, "step %d", i)
	}
}

// reserve waits for n tokens from at on, and requires that it gets them at act.
func (r *timeRate) reserve(t *testing.T, at, n, act int) throttler.Decision {
	t.Helper()
	r.sleepUntil(at)
	d, err := r.Wait(t.Context(), r.n(n))
	require.NoError(t, err)
	require.Equal(t, time.Duration(act)*tenth, time.Since(r.start))
	return d
}

func TestTimeRateBurst1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newTimeRate(1).allow(t, []allowed{
			{0, 1, 1, true}, {0, 0, 1, false}, {0, 0, 1, false},
			{1, 1, 1, true}, {1, 0, 1, false}, {1, 0, 1, false},
			{2, 1, 2, false}, // above the burst
			{2, 1, 1, true}, {2, 0, 1, false},
		}...)
	})
}

func TestTimeRateBurst3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newTimeRate(3).allow(t, []allowed{
			{0, 3, 2, true}, {0, 1, 2, false}, {0, 1, 1, true}, {0, 0, 1, false},
			{1, 1, 4, false}, // above the burst
			{2, 2, 1, true}, {3, 2, 1, true}, {4, 2, 1, true}, {5, 2, 1, true}, {6, 2, 1, true}, {7, 2, 1, true}, {8, 2, 1, true},
			{9, 2, 2, true},
		}...)
	})
}

func TestTimeRateSimultaneousRequests(t *testing.T) {
	r := newTimeRate(5)
	r.bucket.TTL = 5 * time.Minute
	var all sync.WaitGroup
	passed := make(chan struct{}, 15)
	for range 15 {
		all.Go(func() {
			if r.Allow(context.Background(), r.n(1)) == nil {
				passed <- struct{}{}
			}
		})
	}
	all.Wait()
	require.Len(t, passed, 5)
}

func TestTimeRateLongRunningQPS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(100)
		r.bucket.TTL = time.Second
		passed := 0
		for range 2500 { // 500 a second for 5 s
			if r.Allow(t.Context(), r.n(1)) == nil {
				passed++
			}
			time.Sleep(2 * time.Millisecond)
		}
		require.InDelta(t, 100+500, passed, 1)
	})
}

func TestTimeRateSimpleReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(2)
		r.reserve(t, 0, 2, 0)
		r.reserve(t, 0, 2, 2)
		r.reserve(t, 3, 2, 4)
	})
}

func TestTimeRateMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(2)
		_, err := r.Wait(t.Context(), r.n(3)) // above the burst
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		r.reserve(t, 0, 2, 0)
		r.allow(t, allowed{1, 1, 2, false})
		r.reserve(t, 1, 2, 2)
		r.allow(t, allowed{3, 1, 1, true})
	})
}

func TestTimeRateCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // of the last one: all of it is back
		r := newTimeRate(2)
		r.reserve(t, 0, 2, 0)
		d := r.reserve(t, 0, 2, 2)
		require.NoError(t, r.Cancel(t.Context(), d))
		r.reserve(t, 2, 2, 2)
	})
	synctest.Test(t, func(t *testing.T) { // too late: it has leaked
		r := newTimeRate(2)
		r.reserve(t, 0, 2, 0)
		d := r.reserve(t, 0, 2, 2)
		r.sleepUntil(4)
		require.NoError(t, r.Cancel(t.Context(), d))
		r.reserve(t, 4, 2, 4)
		r.reserve(t, 4, 2, 6)
	})
	synctest.Test(t, func(t *testing.T) { // of what was never counted
		r := newTimeRate(2)
		r.reserve(t, 0, 2, 0)
		d := authorize(t, r.Throttler, r.n(2))
		require.NoError(t, r.Cancel(t.Context(), d))
		r.reserve(t, 0, 2, 2)
	})
}

func TestTimeRateWaitSimple(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(3)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := r.Wait(ended, r.n(1))
		require.ErrorIs(t, err, context.Canceled)
		_, err = r.Wait(t.Context(), r.n(4)) // above the burst
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		r.reserve(t, 0, 2, 0)
		r.reserve(t, 0, 3, 2)
	})
}

func TestTimeRateWaitCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(3)
		ctx, cancel := context.WithCancel(t.Context())
		r.reserve(t, 0, 2, 0)
		time.AfterFunc(tenth, cancel)
		_, err := r.Wait(ctx, r.n(3))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, tenth, time.Since(r.start))
		require.Equal(t, 2, left(t, r.Throttler, r.bucket), "it has taken nothing")
		r.reserve(t, 1, 2, 1)
	})
}

func TestTimeRateWaitTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(3)
		ctx, cancel := context.WithTimeout(t.Context(), tenth)
		defer cancel()
		r.reserve(t, 0, 2, 0)
		_, err := r.Wait(ctx, r.n(3))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, time.Since(r.start), "at once: its turn would come too late")
	})
}

func TestTimeRateWaitersAreServedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTimeRate(2)
		r.reserve(t, 0, 2, 0)
		var all sync.WaitGroup
		for _, act := range []int{2, 4, 6} {
			all.Go(func() {
				_, err := r.Wait(t.Context(), r.n(2))
				assert.NoError(t, err)
				assert.Equal(t, time.Duration(act)*tenth, time.Since(r.start))
			})
			synctest.Wait()
		}
		all.Wait()
	})
}
