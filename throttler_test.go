package throttler_test

import (
	"context"
	"testing"
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

func TestPeekChangesNothingEvenWhenItFindsTheConditionFull(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 1, time.Minute))
	rule.Lockout = time.Hour
	authorize(t, th, rule)
	client.took()
	for range 3 {
		// It answers what Authorize would: that one would ban it.
		d := peek(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.True(t, d.Outcomes[0].Banned)
	}
	require.Equal(t, []string{"get", "get", "get"}, client.took())
	rule.Lockout = 0
	require.False(t, peek(t, th, rule).Outcomes[0].Banned)
}

func TestDecisionDoesNotKeepTheRecord(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := either(condition("a", 1000, time.Hour))
	var d throttler.Decision
	for range 1000 {
		d = authorize(t, th, rule)
	}
	require.NoError(t, th.Cancel(context.Background(), d))
	require.Equal(t, 0, peek(t, th, rule).Outcomes[0].Remaining)
	require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
}

func TestLostRaceIsDecidedAnew(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 3, time.Minute), condition("b", 3, time.Minute))
	races := 2
	client.before = func(op string, keys ...string) error {
		if (op == "add" || op == "cas") && keys[0] == "test#b#v" && races > 0 {
			races--
			authorize(t, throttler.New(client.Client), either(rule.Either[1]))
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Authorized, d.Status)
	require.Equal(t, []int{2, 0}, remaining(d))
	require.Equal(t, 0, d.Outcomes[0].LostRaces)
	require.Equal(t, 2, d.Outcomes[1].LostRaces)
	// Only the one that lost went round again.
	require.Equal(t, "multi", client.took()[0])
	require.Equal(t, []int{2, 0}, remaining(peek(t, throttler.New(client.Client), all(condition("a", 4, time.Minute), condition("b", 3, time.Minute)))))
}

func TestBlockedCallUsesUpNothingWithCountAuthorizedOnly(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("narrow", 1, time.Minute), condition("broad", 5, time.Minute))
	rule.CountAuthorizedOnly = true
	require.Equal(t, []int{0, 4}, remaining(authorize(t, th, rule)))
	client.took()
	for range 3 {
		d := authorize(t, th, rule)
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, []int{0, 4}, remaining(d))
		require.Equal(t, []string{"multi"}, client.took())
		require.Equal(t, d.Outcomes[1].Blocked, false)
	}
}

func TestHitIsGivenBackWhenAnotherConditionTurnsOutFull(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 5, time.Minute), condition("b", 1, time.Minute))
	rule.CountAuthorizedOnly = true
	overtaken := false
	client.before = func(op string, keys ...string) error {
		if op == "add" && keys[0] == "test#b#v" && !overtaken {
			overtaken = true
			authorize(t, throttler.New(client.Client), either(rule.Either[1]))
		}
		return nil
	}
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, d.Status)
	require.Equal(t, []string{"b is full"}, d.Messages)
	require.Equal(t, []int{5, 0}, remaining(d))
	require.Zero(t, d.Outcomes[0].RetryAfter)
	require.Equal(t, 4, peek(t, th, either(rule.Either[0])).Outcomes[0].Remaining, "nothing is left of it")
	require.NoError(t, th.Cancel(context.Background(), d))
	require.Equal(t, 4, peek(t, th, either(rule.Either[0])).Outcomes[0].Remaining, "there was nothing to cancel")
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
}

func TestShadowAuthorizesWhatItWouldBlock(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := either(condition("a", 1, time.Minute))
	rule.Shadow, rule.Lockout = true, time.Hour
	d := authorize(t, th, rule)
	require.False(t, d.WouldBlock)
	for range 3 {
		d = authorize(t, th, rule)
		require.Equal(t, throttler.Authorized, d.Status)
		require.True(t, d.WouldBlock)
		require.Nil(t, d.Messages)
		require.Zero(t, d.RetryAfter)
		require.True(t, d.Outcomes[0].Blocked)
		require.True(t, d.Outcomes[0].Banned, "bans as usual")
	}
	rule.Shadow = false
	require.Equal(t, throttler.Blocked, authorize(t, th, rule).Status)
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

func TestResetForgetsHitsAndLiftsBans(t *testing.T) {
	client := newFaulty()
	th := throttler.New(client)
	rule := either(condition("a", 1, time.Minute), condition("b", 2, time.Minute))
	rule.Lockout = time.Hour
	for range 3 {
		authorize(t, th, rule)
	}
	other := rule
	other.Identifier = "other"
	authorize(t, th, other)
	client.took()
	require.NoError(t, th.Reset(context.Background(), rule))
	require.ElementsMatch(t, []string{"delete", "delete"}, client.took())
	require.Equal(t, []int{0, 1}, remaining(authorize(t, th, rule)))
	require.Equal(t, throttler.Blocked, authorize(t, th, other).Status)
	require.NoError(t, th.Reset(context.Background(), rule))
	require.NoError(t, th.Reset(context.Background(), rule), "nothing there is as good")
}
