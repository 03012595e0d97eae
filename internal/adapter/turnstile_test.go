package adapter

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCallersPassTheTurnstileFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := turnstile{places: 2, limit: time.Second}
		require.NoError(t, ts.enter())
		require.True(t, ts.tryEnter())
		require.False(t, ts.tryEnter())
		var mu sync.Mutex
		var order []int
		for i := range 3 {
			go func() {
				assert.NoError(t, ts.enter())
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		for want := range 3 {
			require.Len(t, order, want)
			ts.leave(nil)
			synctest.Wait()
		}
		require.Equal(t, []int{0, 1, 2}, order)
		require.Equal(t, 2, ts.underWay)
		ts.vacate()
		ts.vacate()
		require.Zero(t, ts.underWay)
	})
}

func TestACallerWaitsForTheLimitAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := turnstile{places: 1, limit: time.Second}
		require.NoError(t, ts.enter())
		begin := time.Now()
		require.ErrorIs(t, ts.enter(), failure.ErrOverloaded)
		require.Equal(t, time.Second, time.Since(begin))
		ts.leave(nil)
		require.NoError(t, ts.enter(), "a caller that has given up takes no place")
	})
}

// Whichever comes first, no place is lost: a caller that is told to give up has none.
func TestATurnThatComesAsACallerGivesUpIsNotLost(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			ts := turnstile{places: 1, limit: time.Second}
			require.NoError(t, ts.enter())
			time.AfterFunc(ts.limit, ts.vacate)
			if ts.enter() == nil {
				ts.vacate()
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Zero(t, ts.underWay)
			require.Zero(t, ts.waiting.Len())
		})
	}
}

func TestAServerThatRefusesAConnectionHasNotAnswered(t *testing.T) {
	ts := turnstile{places: 1, limit: time.Second}
	for err, answers := range map[error]uint64{errTooMany: 0, failure.ErrOverloaded: 0, failure.ErrUnavailable: 0, errStray: 1} {
		before := ts.answered()
		require.NoError(t, ts.enter())
		ts.leave(err)
		require.Equal(t, before+answers, ts.answered(), "%v", err)
	}
}

// Callers that came before the last answer go on waiting: the server may be well.
func TestAServerThatDoesNotAnswerTurnsAwayCallersThatCameSinceItsLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := Classified(errors.Join(failure.ErrUnavailable))
		ts := turnstile{places: 2, limit: time.Minute}
		require.NoError(t, ts.enter())
		require.NoError(t, ts.enter())
		results := make([]error, 3)
		wait := func(i int) {
			go func() { results[i] = errors.Join(ts.enter(), errors.New("done")) }()
			synctest.Wait()
		}
		wait(0)
		wait(1)
		ts.leave(nil) // an answer: the first goes on
		synctest.Wait()
		wait(2)
		ts.leave(down)
		synctest.Wait()
		require.NotErrorIs(t, results[0], failure.ErrUnavailable)
		require.NotErrorIs(t, results[1], failure.ErrUnavailable)
		require.EqualError(t, results[1], "done", "it came before the answer, and has the place that is free")
		require.ErrorIs(t, results[2], failure.ErrUnavailable)
	})
}

func TestOnlyWhatSaysThatAServerIsAwayIsUnavailable(t *testing.T) {
	for err, want := range map[error]bool{
		errors.New("SERVER_ERROR out of memory"): false,
		errStray:                                 false,
		failure.ErrUnavailable:                   true,
		timeout{}:                                true,
		&memcache.ConnectTimeoutError{}:          true,
	} {
		require.Equal(t, want, errors.Is(Classified(err), failure.ErrUnavailable), err)
		require.ErrorIs(t, Classified(err), err)
	}
	require.NoError(t, Classified(nil))
}

type timeout struct{}

func (timeout) Error() string { return "too late" }
func (timeout) Timeout() bool { return true }

func TestLookingForATimeoutThatIsNoneAllocatesNothing(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if isTimeout(nil) || isConnectTimeout(nil) {
			t.Error("there is no error")
		}
	}))
}
