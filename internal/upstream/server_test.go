package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/stretchr/testify/require"
)

var errClosed = errors.New("closed")

const (
	failures = 3
	pause    = time.Second
)

// A scene is a server that answers probes or not, and what was told of it.
type scene struct {
	*upstream.Server
	answers atomic.Bool
	probes  atomic.Int64
	opened  atomic.Int64

	mu   sync.Mutex
	told []string
}

func newScene() *scene {
	s := new(scene)
	s.Server = upstream.New(upstream.Config{
		Name: "one", Failures: failures, Pause: pause,
		Wrap:   func(err error) error { return fmt.Errorf("one: %w", err) },
		Probe:  func() bool { s.probes.Add(1); return s.answers.Load() },
		Opened: func() { s.opened.Add(1) },
		News:   new(upstream.News),
		Changed: func(name string, down bool, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.told = append(s.told, fmt.Sprint(name, " ", down, " ", err != nil))
		},
	})
	return s
}

// pass lets time pass, and all goroutines do what they have to.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *scene) fail(n int) {
	for range n {
		s.Failed(1, errAway)
	}
}

func TestAServerIsDownAfterFailuresInARowUntilAProbeIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		for range 10 { // none of them in a row
			s.fail(failures - 1)
			s.Answered()
			require.NoError(t, s.Admit())
		}
		s.fail(failures - 1)
		s.Failed(1, errors.New("the last one"))
		err := s.Admit()
		require.ErrorIs(t, err, upstream.ErrDown)
		require.ErrorContains(t, err, "one: ")
		require.ErrorContains(t, err, "the last one")
		require.EqualError(t, s.Last(), "the last one")
		require.EqualValues(t, 1, s.opened.Load())
		require.EqualValues(t, 11, s.Counts.Calls.Load())
		require.EqualValues(t, 1, s.Counts.Refusals.Load())
		s.fail(10) // calls that were under way
		synctest.Wait()
		require.Equal(t, []string{"one true true"}, s.told)
		require.EqualValues(t, 1, s.opened.Load())

		pass(pause - 1)
		require.Zero(t, s.probes.Load())
		pass(10*pause + 2)
		require.EqualValues(t, 11, s.probes.Load())
		require.Error(t, s.Down())
		s.answers.Store(true)
		pass(pause)
		require.NoError(t, s.Admit())
		require.Equal(t, []string{"one true true", "one false false"}, s.told)
		pass(10 * pause)
		require.EqualValues(t, 12, s.probes.Load())
		require.EqualError(t, s.Last(), errAway.Error(), "it stays")
	})
}

// A batch of failures with one reason, and an answer that comes late, count as well.
func TestFailuresAreCountedTogetherAndAnyAnswerEndsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		for outage := range 5 {
			s.Failed(failures, errAway)
			require.Error(t, s.Down())
			s.Answered()
			require.NoError(t, s.Down())
			pass(2 * pause)
			require.EqualValues(t, outage+1, s.opened.Load())
		}
		s.fail(failures - 1)
		require.NoError(t, s.Down(), "the count begins anew")
	})
}

// However often an outage begins as the last one ends, one goroutine finds out whether it is over.
func TestOneGoroutineProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		for range 50 {
			s.fail(failures)
			s.Answered()
		}
		s.fail(failures)
		pass(10*pause + 1)
		require.EqualValues(t, 10, s.probes.Load())
		s.answers.Store(true)
		pass(pause)
		require.NoError(t, s.Down())
	})
}

func TestAServerThatLeavesIsProbedNoMoreAndNotDownAgain(t *testing.T) {
	for _, tell := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { // which ends only if all goroutines do
			s := newScene()
			s.fail(failures)
			pass(pause / 2)
			s.Leave(tell)
			s.Leave(tell)
			pass(10 * pause)
			require.Zero(t, s.probes.Load())
			require.Equal(t, tell, s.Down() == nil)
			s.fail(failures)
			synctest.Wait()
			require.EqualValues(t, 1, s.opened.Load())
			require.Len(t, s.told, map[bool]int{false: 1, true: 2}[tell])
		})
	}
}

func TestTheEndOfAnOutageIsToldLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		s.Failures = 1
		told, times, again := false, 0, 0
		s.Changed = func(_ string, down bool, _ error) {
			if told == down {
				again++
			}
			told, times = down, times+1
			runtime.Gosched() // others come to be told of, too
		}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for range 20_000 {
					if i%2 == 0 {
						s.fail(1)
					} else {
						s.Answered()
					}
				}
			})
		}
		all.Wait()
		s.Answered()
		synctest.Wait()
		require.Positive(t, times)
		require.False(t, told)
		require.Zero(t, again)
		pass(2 * pause) // the last probe ends
	})
}

func TestAProbeIsStartedAsTheServerIsTold(t *testing.T) {
	s := newScene()
	var started []func()
	s.Go = func(f func()) { started = append(started, f) }
	s.fail(failures)
	require.Len(t, started, 1)
	s.Leave(false)
	started[0]()
}

func TestACheckAsksThoseThatAreNotDown(t *testing.T) {
	up, down, refuses := newScene(), newScene(), newScene()
	all := []*scene{up, down, refuses}
	evictions := int64(0)
	var lost []upstream.Loss
	check := func() error {
		return upstream.Check(t.Context(), all, func(_ context.Context, s *scene) (upstream.Reading, error) {
			require.NotSame(t, down, s)
			if s == refuses {
				return upstream.Reading{}, errAway
			}
			return upstream.Reading{Run: "a", Evictions: evictions, Bytes: 7}, nil
		}, func(name string, loss upstream.Loss) {
			require.Equal(t, "one", name)
			lost = append(lost, loss)
		})
	}
	down.Go = func(func()) {}
	down.fail(failures)
	require.EqualError(t, check(), "one: "+errAway.Error())
	evictions = 5
	require.ErrorIs(t, check(), errAway)
	require.Equal(t, []upstream.Loss{{Evictions: 5}}, lost)
	_, bytes, _ := up.Memory.Known()
	require.EqualValues(t, 7, bytes)
}

// Checks at the same time are made one after the other, so that a loss is told once, also if the
// program checks again as it is told.
func TestChecksAtTheSameTimeTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		run, told := "a", 0
		var check func(ctx context.Context) error
		check = func(ctx context.Context) error {
			return upstream.Check(ctx, []*scene{s}, func(context.Context, *scene) (upstream.Reading, error) {
				was := run
				time.Sleep(time.Second) // it restarts meanwhile
				return upstream.Reading{Run: was}, nil
			}, func(string, upstream.Loss) {
				told++
				require.NoError(t, check(t.Context()))
			})
		}
		require.NoError(t, check(t.Context()))
		var checks sync.WaitGroup
		for range 3 {
			checks.Go(func() { require.NoError(t, check(t.Context())) })
			synctest.Wait()
			run = "b"
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		begun := time.Now()
		require.ErrorIs(t, check(short), context.DeadlineExceeded)
		require.Equal(t, time.Second/2, time.Since(begun))
		checks.Wait()
		require.Equal(t, 1, told)
		lost, _, _ := s.Memory.Known()
		require.Equal(t, upstream.Loss{Restarts: 1}, lost)
	})
}

func TestWatchChecksAtOnceAndAfterEachPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, checks := time.Now(), 0
		over := make(chan struct{})
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		watch := func(ctx context.Context) {
			ended <- upstream.Watch(ctx, 0, func(ctx context.Context) error {
				require.Equal(t, begin.Add(time.Duration(checks)*upstream.DefaultWatchEvery), time.Now())
				deadline, _ := ctx.Deadline()
				require.Equal(t, upstream.DefaultWatchEvery, time.Until(deadline))
				checks++
				return errAway
			}, over, errClosed)
		}
		go watch(ctx)
		pass(10*upstream.DefaultWatchEvery + 1)
		require.Equal(t, 11, checks)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		begin, checks = time.Now(), 0
		go watch(t.Context())
		synctest.Wait()
		close(over)
		require.Equal(t, errClosed, <-ended)
		require.Equal(t, 1, checks)
	})
}

func TestAQueueIsFirstComeFirstServed(t *testing.T) {
	var q upstream.Queue[int]
	next, taken := 0, 0
	for round := range 1000 {
		for range round%7 + 1 {
			q.Push(next)
			next++
		}
		for _, i := range q.Take(nil, min(q.Len(), round%5+1)) {
			require.Equal(t, taken, i)
			taken++
		}
		if round%3 == 0 && q.Len() > 1 {
			back := q.Take([]int{-1}, 2)
			require.Equal(t, []int{-1, taken, taken + 1}, back)
			q.PutBack(back[1:])
		}
		require.Equal(t, next-taken, q.Len())
	}
	late := q.TakeWhile(nil, func(i int) bool { return i < taken+3 })
	require.Equal(t, []int{taken, taken + 1, taken + 2}, late)
	require.Equal(t, taken+3, q.All()[0])
	q.Drop(q.Len())
	require.Empty(t, q.TakeWhile(nil, func(int) bool { return true }))
}
