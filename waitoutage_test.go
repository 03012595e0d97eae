package throttler_test

import (
	"context"
	"strings"
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

// How calls wait while the backend is gone.

// An outlet is a backend that can be switched off, for the records whose keys hold
// part. Every operation on one of them then fails with errDown.
type outlet struct {
	*faulty
	part string
	off  atomic.Bool
}

func newOutlet() *outlet {
	o := &outlet{faulty: newFaulty()}
	o.before = func(_ string, keys ...string) error {
		if o.off.Load() && strings.Contains(strings.Join(keys, " "), o.part) {
			return errDown
		}
		return nil
	}
	return o
}

// A release is a call of Wait that has come back.
type release struct {
	at  time.Duration
	err error // of the Decision
}

// crowd has n calls wait for rule at once, and returns when they are let through.
func crowd(t *testing.T, th *throttler.Throttler, rule throttler.Rule, n int) []release {
	var mu sync.Mutex
	var releases []release
	var all sync.WaitGroup
	start := time.Now()
	for range n {
		all.Go(func() {
			d, err := th.Wait(context.Background(), rule)
			assert.NoError(t, err)
			assert.Equal(t, throttler.Authorized, d.Status)
			mu.Lock()
			defer mu.Unlock()
			releases = append(releases, release{time.Since(start), d.Err})
		})
	}
	all.Wait()
	return releases
}

func TestCrowdThatWaitsGoesOnAtThePaceOfItsRuleWhenTheBackendGoes(t *testing.T) {
	for name, tt := range map[string]struct {
		condition throttler.Condition
		before    func(i int) time.Duration // when the ith is let through as long as all is well
		first     time.Duration             // when the first is afterwards
	}{
		"window": {window(5, time.Second), func(i int) time.Duration { return time.Duration(i/5) * time.Second }, 3 * time.Second},
		"bucket": {leaky(5, time.Second), func(i int) time.Duration { return time.Duration(max(0, i-4)) * time.Second / 5 }, 2600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newOutlet()
				time.AfterFunc(2500*time.Millisecond, func() { client.off.Store(true) })
				releases := crowd(t, throttler.New(client), either(tt.condition), 60)
				require.Len(t, releases, 60)
				n := 0
				for ; releases[n].at < 2500*time.Millisecond; n++ {
					require.Equal(t, release{tt.before(n), nil}, releases[n])
				}
				for i, r := range releases[n:] {
					require.Equal(t, release{tt.first + time.Duration(i)*time.Second/5, errDown}, r)
				}
			})
		})
	}
}

func TestCallsOneAfterTheOtherKeepTheirDistanceInAnOutage(t *testing.T) {
	for name, off := range map[string]time.Duration{"from the start": 0, "after the first": time.Second, "after the fourth": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newOutlet()
				th := throttler.New(client)
				start := time.Now()
				time.AfterFunc(off, func() { client.off.Store(true) })
				synctest.Wait()
				for i := range 10 {
					_, err := th.Wait(t.Context(), either(window(1, 3*time.Second)))
					require.NoError(t, err)
					require.Equal(t, time.Duration(i)*3*time.Second, time.Since(start))
				}
				require.Zero(t, throttler.WaitLines(th))
			})
		})
	}
}

func TestFallbackDecidesHowCallsWaitInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.off.Store(true)
		th := throttler.New(client)
		th.Fallback = memstore.New()
		for i, r := range crowd(t, th, either(window(5, time.Second)), 20) {
			require.Equal(t, release{time.Duration(i/5) * time.Second, errDown}, r)
		}
	})
}

func TestFallbackThatFailsAsWellLeavesThePaceOfTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, fallback := newOutlet(), newOutlet()
		client.off.Store(true)
		fallback.off.Store(true)
		th := throttler.New(client)
		th.Fallback = fallback
		for i, r := range crowd(t, th, either(window(5, time.Second)), 20) {
			require.Equal(t, time.Duration(i)*time.Second/5, r.at)
		}
	})
}

func TestWaitReturnsToTheFullRateWhenTheBackendIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.off.Store(true)
		time.AfterFunc(450*time.Millisecond, func() { client.off.Store(false) })
		releases := crowd(t, throttler.New(client), either(window(10, time.Second)), 20)
		for i, r := range releases {
			switch {
			case i < 5:
				require.Equal(t, release{time.Duration(i) * 100 * time.Millisecond, errDown}, r)
			case i < 15: // the window of the server is empty
				require.Equal(t, release{500 * time.Millisecond, nil}, r)
			default:
				require.Equal(t, release{1500 * time.Millisecond, nil}, r)
			}
		}
	})
}

// The server of condition a is gone, that of b answers.
func TestCallThatIsPacedCountsNothingWhereTheBackendAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.part = "#a#"
		client.off.Store(true)
		th := throttler.New(client)
		rule := either(condition("a", 1, time.Minute), condition("b", 10, time.Hour))
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				_, err := th.Wait(t.Context(), rule)
				assert.NoError(t, err)
			})
		}
		for i := range 5 {
			synctest.Wait()
			d, err := th.Peek(t.Context(), either(condition("b", 10, time.Hour)))
			require.NoError(t, err)
			require.Equal(t, 10-(i+1)-1, d.Outcomes[0].Remaining, "those that are let through, and the one that Peek asks for")
			time.Sleep(time.Minute)
		}
		all.Wait()
	})
}

func TestConditionOfAllThatAnswersLetsAllThroughInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.part = "#a#"
		client.off.Store(true)
		th := throttler.New(client)
		rule := all(condition("a", 1, time.Minute), condition("b", 3, time.Hour))
		start := time.Now()
		for i := range 6 {
			_, err := th.Wait(t.Context(), rule)
			require.NoError(t, err)
			// b takes 3, and then a goes at its pace.
			require.Equal(t, time.Duration(max(0, i-3))*time.Minute, time.Since(start))
		}
	})
}

func TestOutageDoesNotOpenALimitThatIsKnownToBeClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		th := throttler.New(client)
		rule := either(window(1, time.Second))
		rule.Lockout = time.Hour
		authorize(t, th, rule)
		require.True(t, authorize(t, th, rule).Outcomes[0].Banned)
		start := time.Now()
		time.AfterFunc(time.Minute/2, func() { client.off.Store(true) })
		d, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, time.Hour, time.Since(start))
	})
}

func TestDeadlineIsHeldAgainstThePaceInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newOutlet()
		client.off.Store(true)
		th := throttler.New(client)
		rule := either(window(1, time.Minute))
		_, err := th.Wait(t.Context(), rule)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		start := time.Now()
		d, err := th.Wait(ctx, rule)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, d.Err, errDown)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, time.Minute, d.RetryAfter)
		require.Zero(t, time.Since(start), "at once")
	})
}

func TestShadowRuleIsNeverWaitedFor(t *testing.T) {
	for name, off := range map[string]bool{"backend answers": false, "backend is gone": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newOutlet()
				client.off.Store(off)
				th := throttler.New(client)
				rule := either(window(1, time.Minute))
				rule.Shadow = true
				start := time.Now()
				for i := range 3 {
					d, err := th.Wait(t.Context(), rule)
					require.NoError(t, err)
					require.Equal(t, throttler.Authorized, d.Status)
					require.Equal(t, i > 0 && !off, d.WouldBlock)
				}
				require.Zero(t, time.Since(start))
			})
		})
	}
}
