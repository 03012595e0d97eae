package redisstore_test

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// A single is an exchange that writes an item, or reads if there is none.
type single struct {
	key  string
	item *memcache.Item
	done chan exchange.Result
}

func (s *single) Key() string                          { return s.key }
func (s *single) Propose(exchange.Turn) *memcache.Item { return s.item }
func (s *single) Done(r exchange.Result)               { s.done <- r }

func newSingle(key string, writes bool) *single {
	s := &single{key: key, done: make(chan exchange.Result, 1)}
	if writes {
		s.item = &memcache.Item{Key: key, Value: []byte("x"), Expiration: 60}
	}
	return s
}

// newAdd returns a write where no record is expected.
func newAdd(key string) *single { return newSingle(key, true) }

// newSwap returns a write where a record is expected.
func newSwap(key string) *single {
	s := newSingle(key, true)
	s.item.CasID = 1
	return s
}

// carryOut makes one exchange.
func carryOut(s *redisstore.Store, x *single) exchange.Result {
	s.Exchange(context.Background(), x)
	return <-x.done
}

// several returns n of what single makes of their numbers, also as exchanges.
func several(n int, single func(key string) *single) (all []*single, xs []exchange.Exchange) {
	for i := range n {
		all = append(all, single(strconv.Itoa(i)))
		xs = append(xs, all[i])
	}
	return all, xs
}

func TestOnlyWritesThatMayHaveBeenSentAreUnknown(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "k", Expiration: 60}))
	s.Timeout, s.BreakerFailures = 500*time.Millisecond, 1_000_000
	outcome := func(key string, writes bool) exchange.Result { return carryOut(s, newSingle(key, writes)) }
	server.Pause()
	write := outcome("a", true)
	require.ErrorIs(t, write.Err, failure.ErrUnavailable)
	require.True(t, write.Unknown)
	read := outcome("a", false)
	require.ErrorIs(t, read.Err, failure.ErrUnavailable)
	require.False(t, read.Unknown)
	server.Kill()
	// rueidis has several connections to the server. A write over one of which the end
	// has not been seen yet may have been sent.
	require.Eventually(t, func() bool {
		write = outcome("b", true)
		return !write.Unknown
	}, 30*time.Second, time.Millisecond, "there is no connection")
	require.ErrorIs(t, write.Err, failure.ErrUnavailable)
}

// A server that accepts connections and says nothing is not sent any write.
func TestAWriteIsNotUnknownIfThereWasNoConnectionForIt(t *testing.T) {
	t.Parallel()
	s := open(t, "redis://"+servertest.Serve(t, func(nc net.Conn) { io.Copy(io.Discard, nc) }))
	s.Timeout, s.BreakerFailures = 50*time.Millisecond, 1_000_000
	for range 3 {
		r := carryOut(s, newSwap("k"))
		require.ErrorIs(t, r.Err, failure.ErrUnavailable)
		require.False(t, r.Unknown)
	}
}

func TestWhatWaitsBehindAHungRequestFailsWithIt(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "k", Expiration: 60}))
	const timeout = 3 * time.Second
	s.Timeout, s.BreakerFailures = timeout, 1000
	server.Pause()
	first, second := newSingle("a", true), newSingle("b", true)
	s.Start(first)
	awaitUnderWay(t, s, 1, 0)
	s.Start(second)
	require.Error(t, (<-first.done).Err)
	failed := time.Now()
	r := <-second.done
	require.ErrorIs(t, r.Err, failure.ErrUnavailable)
	require.False(t, r.Unknown, "it was not sent")
	require.Less(t, time.Since(failed), timeout, "it does not wait for a timeout of its own")
}

// rueidis finds out that a connection is cut by a PING of its own, which takes it 32 Timeouts.
func TestAServerIsUsedThoughOldConnectionsToItAreCut(t *testing.T) {
	t.Parallel()
	var cut atomic.Bool // what was connected before
	var conns, pings atomic.Int64
	addr := servertest.Serve(t, func(nc net.Conn) {
		conns.Add(1)
		defer conns.Add(-1)
		old := !cut.Load()
		converse(nc, "7.0.0", alone(func(args []string) string {
			if !old || !cut.Load() {
				return ":1"
			}
			if args[0] == "PING" {
				pings.Add(1)
			}
			<-t.Context().Done()
			return ""
		}))
	})
	s := open(t, "redis://"+addr)
	s.Timeout, s.BreakerFailures, s.BreakerPause = 2*time.Second, 1, 10*time.Millisecond
	require.NoError(t, writeIn(s, true))
	cut.Store(true)
	require.Eventually(t, func() bool { return pings.Load() > 0 && pings.Load() == conns.Load() }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return writeIn(s, true) != nil }, 20*time.Second, time.Millisecond)
	written := 0
	require.Eventually(t, func() bool {
		if written++; writeIn(s, true) != nil {
			written = 0
		}
		return written == 20
	}, 40*time.Second, time.Millisecond)
}

// A server that loads its data answers, and can decide nothing.
func TestAServerThatLoadsItsDataIsNotBack(t *testing.T) {
	t.Parallel()
	var dead, loading atomic.Bool
	var probes atomic.Int64
	s := open(t, "redis://"+scripted(t, alone(func(args []string) string {
		switch {
		case dead.Load():
			return ""
		case !loading.Load():
			return ":1"
		case args[0] == "PING":
			probes.Add(1)
		}
		return "-LOADING Redis is loading the dataset in memory"
	})))
	s.BreakerFailures, s.BreakerPause = 1, time.Millisecond
	require.NoError(t, writeIn(s, true))
	dead.Store(true)
	require.ErrorIs(t, writeIn(s, true), failure.ErrUnavailable)
	loading.Store(true)
	dead.Store(false)
	require.Eventually(t, func() bool { return probes.Load() > 3 }, 20*time.Second, time.Millisecond)
	require.ErrorIs(t, writeIn(s, true), upstream.ErrDown)
	loading.Store(false)
	require.Eventually(t, func() bool { return writeIn(s, true) == nil }, 20*time.Second, time.Millisecond)
}

// pauseWrites has the server put off all commands that write, and scripts, until unpause.
func pauseWrites(server *servertest.Redis) (unpause func()) {
	server.Command("CLIENT", "PAUSE", "60000", "WRITE")
	return func() { server.Command("CLIENT", "UNPAUSE") }
}

// awaitUnderWay waits until so many requests are under way, and others wait behind them.
func awaitUnderWay(t *testing.T, s *redisstore.Store, underWay, queued int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stats := s.Stats()[0]
		return stats.InFlight == underWay && stats.Queued == queued
	}, 30*time.Second, time.Millisecond)
}

// Two bundles are under way at once, each over a connection of its own. If both connections
// are lost, no request is.
func TestASecondBundleGoesOutWhileOneIsUnderWay(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	s.Exchange(context.Background(), newSingle("a", true), newSingle("b", true)) // the script is known
	for _, counts := range [][]int{{1, 40}, {40}} {
		server.Command("CONFIG", "RESETSTAT")
		unpause := pauseWrites(server)
		var all []*single
		sum := 0
		for _, count := range counts {
			more, xs := several(count, newSwap)
			s.Start(xs...)
			all = append(all, more...)
			sum += count
			awaitUnderWay(t, s, sum, 0)
		}
		unpause()
		for _, x := range all {
			require.NoError(t, (<-x.done).Err)
		}
		require.EqualValues(t, 2, calls(server, "evalsha"))
		awaitUnderWay(t, s, 0, 0)
	}
	server.Command("CLIENT", "KILL", "TYPE", "normal")
	_, err := s.Get("a")
	require.NoError(t, err)
}

// A server does nothing else while it carries out a bundle, so none is of more than 128.
func TestABundleHasABound(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	s.Exchange(context.Background(), newSingle("a", true), newSingle("b", true)) // the script is known
	server.Command("CONFIG", "RESETSTAT")
	all, xs := several(300, newSwap)
	s.Start(xs...)
	for _, x := range all {
		require.NoError(t, (<-x.done).Err)
	}
	require.GreaterOrEqual(t, calls(server, "evalsha"), int64(3))
}

// A connection that is lost is one failure, however many requests shared it.
func TestAConnectionThatIsLostCountsOnce(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	c := newCutter(t, server.Addr)
	c.onCut = func() { c.asked.cutIn("EVALSHA") } // the next one, too
	c.onCut()
	s := open(t, "redis://"+c.listener.Addr().String())
	all, xs := several(3*redisstore.DefaultBreakerFailures, newAdd)
	s.Exchange(context.Background(), xs...)
	for _, x := range all {
		r := <-x.done
		require.ErrorIs(t, r.Err, failure.ErrUnavailable)
		require.True(t, r.Unknown)
	}
	require.False(t, s.Stats()[0].Down)
	require.EqualValues(t, 3, c.cuts.Load())
}

func TestARecordThatIsDeletedInABundleIsGoneForTheRestOfIt(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	require.NoError(t, s.Add(&memcache.Item{Key: "k", Expiration: 60}))
	item, err := s.Get("k")
	require.NoError(t, err)
	item.Expiration = 60
	unpause := pauseWrites(server)
	first := newSingle("other", true)
	s.Start(first)
	awaitUnderWay(t, s, 1, 0)
	deleted := make(chan error)
	go func() { deleted <- s.Delete("k") }()
	awaitUnderWay(t, s, 1, 1)
	swap := &single{key: "k", item: item, done: make(chan exchange.Result, 1)}
	s.Start(swap)
	awaitUnderWay(t, s, 1, 2)
	unpause()
	require.NoError(t, (<-first.done).Err)
	require.NoError(t, <-deleted)
	r := <-swap.done
	require.NoError(t, r.Err)
	require.False(t, r.Stored)
	require.Nil(t, r.Found)
}
