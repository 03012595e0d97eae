package grpcthrottle_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/grpcthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A streamOf is a stream of which only the context is used.
type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamOf) Context() context.Context { return s.ctx }

func TestACallIsInFlightForAsLongAsItsHandlerRuns(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := throttler.Rule{Identifier: "api", Either: []throttler.Condition{
		{Name: "busy", Max: 1, TTL: time.Minute, Algorithm: throttler.InFlight},
	}}
	limit := grpcthrottle.New(th, func(context.Context, grpcthrottle.Call) throttler.Rule { return rule })
	busy := func() bool {
		d, err := th.Peek(t.Context(), rule)
		require.NoError(t, err)
		return d.Outcomes[0].Blocked
	}
	early := errors.New("ended early")
	ctx, leave := context.WithCancel(t.Context())
	err := limit.Stream(nil, streamOf{ctx: ctx}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
		require.NoError(t, s.Context().Err())
		leave() // the client
		require.ErrorIs(t, s.Context().Err(), context.Canceled)
		require.True(t, busy(), "the handler runs on")
		return early
	})
	require.ErrorIs(t, err, early)
	require.False(t, busy())

	require.Panics(t, func() {
		_, _ = limit.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
			require.True(t, busy())
			panic("a mistake")
		})
	})
	require.False(t, busy())

	_, err = limit.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
		require.NoError(t, th.Reset(ctx, rule))
		d, _ := grpcthrottle.DecisionFrom(ctx)
		require.ErrorIs(t, th.Renew(ctx, d), throttler.ErrLeaseLost)
		return nil, nil
	})
	require.NoError(t, err)
}

// busy is a store that is overloaded when it is to add a record of "calls".
type busy struct{ throttler.Client }

func (b busy) Add(item *memcache.Item) error {
	if strings.Contains(item.Key, "#calls#") {
		return throttler.ErrOverloaded
	}
	return b.Client.Add(item)
}

func TestACallThatPassesInAnOverloadIsInFlightUntilItsHandlerReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := throttler.Condition{Name: "running", Max: 1, TTL: time.Minute, Algorithm: throttler.InFlight}
		calls := throttler.Condition{Name: "calls", Max: 5, TTL: time.Minute}
		store := busy{memstore.New()}
		limit := byRule(store, throttler.Rule{Identifier: "api", Either: []throttler.Condition{running, calls}})
		inFlight := func() bool {
			d, err := throttler.New(store).Peek(t.Context(), throttler.Rule{Identifier: "api", Either: []throttler.Condition{running}})
			require.NoError(t, err)
			return d.Outcomes[0].Blocked
		}
		_, err := limit.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
			d, _ := grpcthrottle.DecisionFrom(ctx)
			require.ErrorIs(t, d.Err, throttler.ErrOverloaded)
			time.Sleep(time.Hour)
			require.True(t, inFlight())
			return nil, nil
		})
		require.NoError(t, err)
		require.False(t, inFlight())
	})
}
