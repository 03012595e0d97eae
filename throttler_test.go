package throttler_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// The contract in one page. The proofs are in test/.

func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

const (
	yes = throttler.Authorized
	no  = throttler.Blocked
)

// perMinute returns a condition that allows two hits a minute.
func perMinute(name, value string) throttler.Condition {
	return throttler.Condition{Name: name, Value: value, Max: 2, TTL: time.Minute}
}

// calls makes a call after each pause, and requires what is wanted of it.
func calls(t *testing.T, limits *throttler.Throttler, rule throttler.Rule, steps ...step) (last throttler.Decision) {
	for i, s := range steps {
		time.Sleep(s.pause)
		d, err := limits.Authorize(t.Context(), rule)
		require.NoError(t, err)
		require.NoError(t, d.Err)
		require.Equal(t, s.want, d.Status, "call %d", i)
		last = d
	}
	return last
}

type step struct {
	pause time.Duration
	want  throttler.Status
}

func TestAWindowAllowsMaxInAnyTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := throttler.Rule{Identifier: "api", Either: []throttler.Condition{perMinute("calls", "alice")}}
		limits := throttler.New(memstore.New())
		d := calls(t, limits, rule, step{0, yes}, step{30 * time.Second, yes}, step{10 * time.Second, no})
		require.Equal(t, []string{"calls"}, d.Messages)
		require.Equal(t, 20*time.Second, d.RetryAfter)
		calls(t, limits, rule, step{20 * time.Second, yes}, step{29 * time.Second, no}, step{time.Second, yes})
	})
}

func TestABucketRefillsEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := perMinute("calls", "alice")
		bucket.Algorithm = throttler.LeakyBucket
		rule := throttler.Rule{Identifier: "api", Either: []throttler.Condition{bucket}}
		calls(t, throttler.New(memstore.New()), rule,
			step{0, yes}, step{0, yes}, step{29 * time.Second, no}, step{time.Second, yes}, step{0, no})
	})
}

func TestEitherBlocksIfOneIsFullAndAllIfAllAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wide, narrow := perMinute("wide", "v"), perMinute("narrow", "v")
		wide.Max = 4
		either := throttler.Rule{Identifier: "either", Either: []throttler.Condition{wide, narrow}}
		d := calls(t, throttler.New(memstore.New()), either, step{0, yes}, step{0, yes}, step{0, no})
		require.Equal(t, []string{"narrow"}, d.Messages)
		require.Equal(t, 1, d.Outcomes[0].Remaining, "the other condition counts, as in the original")

		all := throttler.Rule{Identifier: "all", All: []throttler.Condition{wide, narrow}}
		calls(t, throttler.New(memstore.New()), all, step{0, yes}, step{0, yes}, step{0, yes}, step{0, yes}, step{0, no})
	})
}

func TestALockoutBansAndRetriesDoNotProlongIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := throttler.Rule{Identifier: "login", Lockout: time.Hour, Either: []throttler.Condition{perMinute("ip", "192.0.2.1")}}
		limits := throttler.New(memstore.New())
		d := calls(t, limits, rule, step{0, yes}, step{0, yes}, step{0, no}, step{30 * time.Minute, no})
		require.True(t, d.Outcomes[0].Banned)
		require.Equal(t, 30*time.Minute, d.RetryAfter)
		calls(t, limits, rule, step{30 * time.Minute, yes})
	})
}

func TestCancelTakesBackWhatTheCallCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := throttler.Rule{Identifier: "login", Either: []throttler.Condition{perMinute("ip", "192.0.2.1")}}
		limits := throttler.New(memstore.New())
		d := calls(t, limits, rule, step{0, yes}, step{0, yes})
		require.NoError(t, limits.Cancel(t.Context(), d))
		require.NoError(t, limits.Cancel(t.Context(), d), "once")
		calls(t, limits, rule, step{0, yes}, step{0, no})
	})
}

func TestPeekCountsNothingAndResetForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := throttler.Rule{Identifier: "api", Either: []throttler.Condition{perMinute("calls", "alice")}}
		limits := throttler.New(memstore.New())
		for range 5 {
			d, err := limits.Peek(t.Context(), rule)
			require.NoError(t, err)
			require.Equal(t, 1, d.Outcomes[0].Remaining)
		}
		calls(t, limits, rule, step{0, yes}, step{0, yes}, step{0, no})
		require.NoError(t, limits.Reset(t.Context(), rule))
		calls(t, limits, rule, step{0, yes})
	})
}

// down is a backend that does not answer.
type down struct{ throttler.Client }

var errDown = errors.New("connection refused")

func (down) Get(string) (*memcache.Item, error) { return nil, errDown }

func TestAnOutageFailsOpenAndAWrongRuleIsAnError(t *testing.T) {
	rule := throttler.Rule{Identifier: "api", Either: []throttler.Condition{perMinute("calls", "alice")}}
	d, err := throttler.New(down{}).Authorize(context.Background(), rule)
	require.NoError(t, err)
	require.Equal(t, yes, d.Status)
	require.ErrorIs(t, d.Err, errDown)

	rule.Either[0].Max = 0
	d, err = throttler.New(memstore.New()).Authorize(context.Background(), rule)
	require.ErrorIs(t, err, throttler.ErrInvalidRule)
	require.Equal(t, no, d.Status)
}
