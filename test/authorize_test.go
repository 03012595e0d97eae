package throttler_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

func authorize(t *testing.T, th *throttler.Throttler, rule throttler.Rule) throttler.Decision {
	t.Helper()
	d, err := th.Authorize(context.Background(), rule)
	require.NoError(t, err)
	return d
}

func peek(t *testing.T, th *throttler.Throttler, rule throttler.Rule) throttler.Decision {
	t.Helper()
	d, err := th.Peek(context.Background(), rule)
	require.NoError(t, err)
	return d
}

func remaining(d throttler.Decision) []int {
	var n []int
	for _, o := range d.Outcomes {
		n = append(n, o.Remaining)
	}
	return n
}

func TestNewWithoutAClientPanics(t *testing.T) {
	for _, client := range []throttler.Client{nil, (*memcache.Client)(nil), (*memstore.Store)(nil)} {
		require.PanicsWithValue(t, "throttler: New with a nil Client", func() { throttler.New(client) })
	}
}

func TestHitThatCannotBeGivenBackIsShownAsCounted(t *testing.T) {
	client := newFaulty()
	rule := either(condition("a", 5, time.Minute), condition("b", 1, time.Minute))
	rule.CountAuthorizedOnly = true
	var once sync.Once
	client.before = func(op string, keys ...string) error {
		switch {
		case op == "add" && keys[0] == "test#b#v":
			once.Do(func() { authorize(t, throttler.New(client.Client), either(rule.Either[1])) })
		case op == "cas":
			return errDown
		}
		return nil
	}
	d := authorize(t, throttler.New(client), rule)
	require.Equal(t, throttler.Blocked, d.Status)
	a := d.Outcomes[0]
	require.Equal(t, throttler.Outcome{Name: "a", Limit: 5, Cost: 1, Remaining: 4, ResetAfter: a.ResetAfter, Err: errDown}, a)
	require.Equal(t, 3, peek(t, throttler.New(client.Client), either(rule.Either[0])).Outcomes[0].Remaining, "the hit, and this look")
}

// The call is left while a condition is being written, and refused by another one.
func TestHitThatIsCountedLateIsGivenBackWhenTheCallWasRefused(t *testing.T) {
	for name, c := range map[string]struct {
		max  int
		then []string // after the write that was under way
	}{
		"it is counted": {5, []string{"get", "cas"}},
		"it is blocked": {1, []string{"get"}}, // to be decided anew, and nothing is given back
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newFaulty()
				rule := either(condition("late", c.max, time.Minute), condition("narrow", 1, time.Minute))
				rule.CountAuthorizedOnly = true
				others := throttler.New(client.Client)
				var narrow, late sync.Once
				client.before = func(op string, keys ...string) error {
					switch {
					case op != "add":
					case keys[0] == "test#narrow#v":
						time.Sleep(time.Millisecond) // until the other write has begun
						narrow.Do(func() { authorize(t, others, either(rule.Either[1])) })
					default:
						time.Sleep(time.Second)
						if c.max == 1 {
							late.Do(func() { authorize(t, others, either(rule.Either[0])) })
						}
					}
					return nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				d, err := throttler.New(client).Authorize(ctx, rule)
				require.NoError(t, err)
				require.Equal(t, throttler.Blocked, d.Status)
				require.Equal(t, []string{"narrow is full"}, d.Messages)
				require.Equal(t, context.DeadlineExceeded, d.Outcomes[0].Err)
				require.Equal(t, []string{"multi", "add", "add", "get"}, client.took())
				time.Sleep(2 * time.Second)
				require.Equal(t, c.then, client.took())
				if c.max > 1 {
					require.Equal(t, []int{c.max - 1}, remaining(peek(t, others, either(rule.Either[0]))), "this look alone")
				}
			})
		})
	}
}

// The condition that blocked is reset before its ban could be set: the call is
// authorized after all, and counted in both.
func TestConditionsThatWerePassedOverAreCountedWhenTheCallIsNotRefusedAfterAll(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 5, time.Minute), condition("b", 1, time.Minute))
	rule.CountAuthorizedOnly, rule.Lockout = true, time.Hour
	authorize(t, th, rule)
	reset := false
	client.before = func(op string, keys ...string) error {
		if op == "cas" && keys[0] == "test#b#v" && !reset {
			reset = true
			require.NoError(t, client.Client.Delete(keys[0]))
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Equal(t, []int{3, 0}, remaining(d))
	require.Equal(t, []int{0, 1}, []int{d.Outcomes[0].LostRaces, d.Outcomes[1].LostRaces}, "that of the ban which was not set")
}

func TestObserveSeesEveryDecisionThatCounts(t *testing.T) {
	th := throttler.New(memstore.New())
	type key struct{}
	ctx := context.WithValue(context.Background(), key{}, "the caller's")
	var seen []throttler.Decision
	th.Observe = func(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
		require.Equal(t, "the caller's", ctx.Value(key{}))
		require.Equal(t, "test", rule.Identifier)
		seen = append(seen, d)
	}
	rule := either(condition("a", 1, time.Minute))
	first, _ := th.Authorize(ctx, rule)
	second, _ := th.Authorize(ctx, rule)
	_, _ = th.Peek(ctx, rule)
	_, _ = th.Authorize(ctx, throttler.Rule{})
	require.Equal(t, []throttler.Decision{first, second}, seen)
	require.Equal(t, throttler.Blocked, second.Status)
}
