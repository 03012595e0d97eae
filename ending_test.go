package throttler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What becomes of a call, and of those that share its exchanges, when its ctx
// ends at a given moment.

// A staged is a pool that calls before and after, if they are not nil, around
// each Exchange.
type staged struct {
	*pool.Pool
	before, after func(n int64)
	n             atomic.Int64
}

func (s *staged) Exchange(ctx context.Context, xs ...throttler.Exchange) {
	n := s.n.Add(1)
	if s.before != nil {
		s.before(n)
	}
	s.Pool.Exchange(ctx, xs...)
	if s.after != nil {
		s.after(n)
	}
}

func onStage(t *testing.T, server *memcachedtest.Server) *staged {
	t.Helper()
	p, err := pool.New(server.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	p.Timeout, p.DialTimeout, p.QueueTimeout = 20*time.Second, 20*time.Second, 20*time.Second
	return &staged{Pool: p}
}

func TestARefusedCallIsGivenBackAlthoughItsContextHasEnded(t *testing.T) {
	t.Parallel()
	s := onStage(t, memcachedtest.Any(t))
	th := throttler.New(s)
	large, small := limit("large", 5, time.Hour), limit("small", 1, time.Hour)
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{large, small}, CountAuthorizedOnly: true}
	of := func(c throttler.Condition) throttler.Rule {
		return throttler.Rule{Identifier: rule.Identifier, Either: []throttler.Condition{c}}
	}
	others := throttler.New(s.Pool)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.before = func(n int64) {
		if n == 2 { // it has looked, and is about to count
			authorize(t, others, of(small))
		}
	}
	s.after = func(n int64) {
		if n == 2 {
			cancel()
		}
	}
	d, err := th.Authorize(ctx, rule)
	require.NoError(t, err)
	require.Equal(t, throttler.Blocked, d.Status)
	require.Eventually(t, func() bool { return remaining(peek(t, others, of(large)))[0] == 4 }, 20*time.Second, time.Millisecond,
		"what would remain after the call: nothing is counted")
}

func TestOthersDoNotNoticeThatTheLeadersContextHasEndedAlready(t *testing.T) {
	t.Parallel()
	s := onStage(t, memcachedtest.Any(t))
	th := throttler.New(s)
	rule := throttler.Rule{Identifier: uniqueID(), Either: []throttler.Condition{limit("c", 5, time.Hour)}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var others sync.WaitGroup
	s.before = func(n int64) {
		if n > 1 {
			return
		}
		others.Go(func() {
			d, err := th.Authorize(t.Context(), rule)
			assert.NoError(t, err)
			assert.NoError(t, d.Err)
		})
		key := throttler.Key(rule.Identifier, "c", rule.Either[0].Value)
		assert.Eventually(t, func() bool { return throttler.Queued(th, key) == 2 }, 20*time.Second, time.Millisecond)
		cancel()
	}
	d, err := th.Authorize(ctx, rule)
	require.NoError(t, err)
	others.Wait()
	require.NoError(t, th.Cancel(t.Context(), d), "it has counted or not")
	require.Equal(t, []int{3}, remaining(peek(t, th, rule)), "the hit of the other, and the one to come")
}
