package pool_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const four = "192.0.2.4:11211"

// places returns where each of many keys belongs.
func places(p *pool.Pool) map[string]string {
	places := make(map[string]string)
	for i := range 1000 {
		key := fmt.Sprint("key", i)
		places[key] = p.Place(key)
	}
	return places
}

// listed returns the servers of p.
func listed(p *pool.Pool) []string {
	var names []string
	for _, s := range p.Stats() {
		names = append(names, s.Server)
	}
	return names
}

func TestServersThatComeAndGoMoveTheirOwnKeysAndNoOthers(t *testing.T) {
	p, err := pool.New(one, two, three)
	require.NoError(t, err)
	defer p.Close()
	before := places(p)

	require.NoError(t, p.SetServers(four, one, two, three))
	require.Equal(t, []string{four, one, two, three}, listed(p))
	moved := 0
	for key, place := range places(p) {
		if place != before[key] {
			require.Equal(t, four, place)
			moved++
		}
	}
	require.InDelta(t, 250, moved, 60)

	require.NoError(t, p.SetServers(one, three))
	for key, place := range places(p) {
		if before[key] != two {
			require.Equal(t, before[key], place)
		}
	}
	require.NoError(t, p.SetServers(three, two, one))
	require.Equal(t, before, places(p))
	require.Equal(t, uint64(3), p.Changes())
}

func TestChangesAreCounted(t *testing.T) {
	p, err := pool.New(one, two)
	require.NoError(t, err)
	defer p.Close()
	for i, list := range [][]string{{two, three, four}, {three}, {three, two}, {two, one}} {
		require.NoError(t, p.SetServers(list...))
		require.Equal(t, uint64(i+1), p.Changes())
		slices.Reverse(list)
		require.NoError(t, p.SetServers(list...), "another order")
		require.Equal(t, uint64(i+1), p.Changes())
	}
}

func TestAListThatIsWrongChangesNothing(t *testing.T) {
	p, err := pool.New(one, two)
	require.NoError(t, err)
	for _, list := range [][]string{nil, {}, {""}, {one, "no port"}, {three, three}, {three, ":11211"}} {
		require.Error(t, p.SetServers(list...), "%q", list)
		require.Equal(t, []string{one, two}, listed(p))
	}
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.SetServers(three), pool.ErrClosed)
	require.Zero(t, p.Changes())
	require.Zero(t, p.Changes())
}

func TestServersThatStayKeepTheirConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one, two)
		for _, key := range onEach(p, one, two) {
			p.Get(key)
		}
		s.dialled()
		require.NoError(t, p.SetServers(one, three))
		for _, key := range onEach(p, one, three) {
			_, err := p.Get(key)
			require.Equal(t, memcache.ErrCacheMiss, err)
		}
		require.Equal(t, []string{three}, s.dialled())
		require.Equal(t, uint64(2), p.Stats()[0].Calls)
		require.Equal(t, uint64(1), p.Stats()[1].Calls)
	})
}

// The options hold for servers that are added as for the first.
func TestAServerThatIsAddedHasThePoolsOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := (&station{answer: hangs}).newPool(t, one)
		p.Timeout, p.BreakerFailures = 3*timeout, 1
		require.NoError(t, p.SetServers(two))
		require.Equal(t, 3*timeout, took(func() { p.Get("key") }))
		require.True(t, p.Stats()[0].Down)
	})
}

// late answers after most of the timeout.
func late(conn net.Conn, request string) {
	time.Sleep(timeout - 1)
	misses(conn, request)
}

// countedConns makes the connections of s, and counts those that are open.
func countedConns(s *station, open *atomic.Int64) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := s.DialContext(ctx, network, addr)
		open.Add(1)
		return &countedConn{Conn: conn, open: open}, err
	}
}

type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

func TestTheConnectionsToAServerThatHasLeftAreClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, err := pool.New(one)
		require.NoError(t, err)
		defer p.Close()
		var open atomic.Int64
		p.DialContext = countedConns(&station{answer: misses}, &open)
		p.Get("key")
		require.Equal(t, int64(1), open.Load())
		require.NoError(t, p.SetServers(two))
		p.Get("key")
		require.Equal(t, int64(2), open.Load(), "it may have calls")
		time.Sleep(time.Minute)
		require.Equal(t, int64(1), open.Load())

		require.NoError(t, p.SetServers(three))
		p.Get("key")
		require.NoError(t, p.Close())
		synctest.Wait()
		require.Zero(t, open.Load(), "neither those of one that is about to leave")
	})
}

func TestAServerThatComesBackSoonHasNeverLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: misses}
		p := s.newPool(t, one)
		p.Get("key")
		require.NoError(t, p.SetServers(two))
		time.Sleep(time.Second)
		require.NoError(t, p.SetServers(one))
		time.Sleep(time.Minute)
		_, err := p.Get("key")
		require.Equal(t, memcache.ErrCacheMiss, err)
		require.Equal(t, []string{one}, s.dialled())

		require.NoError(t, p.SetServers(two))
		time.Sleep(time.Minute)
		require.NoError(t, p.SetServers(one))
		_, err = p.Get("key")
		require.Equal(t, memcache.ErrCacheMiss, err)
		require.Equal(t, []string{one}, s.dialled(), "it has left, and is a new one")
	})
}

func TestAServerThatIsDownAndLeavesIsProbedNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &station{answer: hangs}
		p := s.newPool(t, one)
		for !p.Stats()[0].Down {
			p.Get("key")
		}
		require.NoError(t, p.SetServers(two))
		time.Sleep(time.Minute)
		s.dialled()
		time.Sleep(time.Minute)
		require.Empty(t, s.dialled())
	})
}

// A server that is slow keeps its connections until its calls have ended.
func TestAServerThatLeavesIsWaitedForAsLongAsItHasCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := (&station{answer: late}).newPool(t, one)
		var calls sync.WaitGroup
		for range 5 { // each answer comes in time after the one before
			calls.Go(func() {
				_, err := p.Get("key")
				assert.True(t, err == memcache.ErrCacheMiss || errors.Is(err, throttler.ErrOverloaded), "%v", err)
			})
		}
		synctest.Wait()
		require.NoError(t, p.SetServers(two))
		calls.Wait()
	})
}

// Its answers may come after its callers were told that they waited too long.
func TestAServerThatLeavesIsClosedWhenItHasAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, err := pool.New(one)
		require.NoError(t, err)
		defer p.Close()
		var open atomic.Int64
		p.DialContext = countedConns(&station{answer: late}, &open)
		for range 10 {
			p.Start(&scripted{key: "key"})
		}
		synctest.Wait()
		require.NoError(t, p.SetServers(two))
		time.Sleep(10*timeout - 20)
		require.Equal(t, int64(1), open.Load())
		time.Sleep(time.Minute)
		require.Zero(t, open.Load())
	})
}

// hangingNames returns a resolver that never gets an answer, and the number of its questions.
func hangingNames() (*net.Resolver, *atomic.Int64) {
	asked := new(atomic.Int64)
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}}, asked
}

// nameless returns n servers whose names do not resolve.
func nameless(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("memcached%d.invalid:11211", i)
	}
	return names
}

func TestNamesThatDoNotResolveDelayAListOnceOnly(t *testing.T) {
	p, err := pool.New(one)
	require.NoError(t, err)
	defer p.Close()
	resolver, _ := hangingNames()
	p.ResolveBy(resolver, 10*time.Millisecond)
	start := time.Now()
	list := append(nameless(20), one)
	require.NoError(t, p.SetServers(list...))
	require.Less(t, time.Since(start), 20*time.Second, "all at the same time, each for seconds")
	require.Equal(t, list, listed(p))
	for _, s := range p.Stats()[:20] {
		require.ErrorIs(t, s.LastError, os.ErrDeadlineExceeded)
		require.ErrorContains(t, s.LastError, "lookup memcached")
	}

	resolver, asked := hangingNames()
	p.ResolveBy(resolver, 10*time.Millisecond)
	require.NoError(t, p.SetServers(nameless(20)...), "what is in the list is not resolved again")
	require.Zero(t, asked.Load())
	require.ErrorContains(t, p.SetServers("other.invalid:11211"), "other.invalid")
	require.Equal(t, nameless(20), listed(p))
}

// With real servers and many callers: no call fails, and each server that stays
// counts exactly.
func TestServersComeAndGoUnderLoad(t *testing.T) {
	var addrs []string
	for range 4 {
		addrs = append(addrs, servertest.NewMemcached(t).Addr)
	}
	p, err := pool.New(addrs[:3]...)
	require.NoError(t, err)
	defer p.Close()
	p.Timeout, p.DialTimeout, p.QueueTimeout = 30*time.Second, 30*time.Second, 30*time.Second // no machine is so busy
	require.NoError(t, p.SetServers(addrs...))
	const limit = 7
	rule := func(value string, limit int) throttler.Rule {
		return throttler.Rule{Identifier: "load", Either: []throttler.Condition{{Name: "c", Value: value, Max: limit, TTL: time.Hour}}}
	}
	var stays []string // values whose records the first server has, whatever the list is
	for i := 0; len(stays) < 20; i++ {
		if value := fmt.Sprint("stays", i); p.Place(throttler.RecordKey("load", "c", value)) == addrs[0] {
			stays = append(stays, value)
		}
	}
	th := throttler.New(p)
	authorize := func(r throttler.Rule) throttler.Status {
		d, err := th.Authorize(t.Context(), r)
		assert.NoError(t, err)
		assert.NoError(t, d.Err)
		return d.Status
	}
	admitted := make([]atomic.Int64, len(stays))
	var stop atomic.Bool
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			for i := 0; i < 40*len(stays) || !stop.Load(); i++ {
				authorize(rule(fmt.Sprint(caller, i%100), 3))
				n := i % len(stays)
				admitted[n].Add(int64(authorize(rule(stays[n], limit))))
			}
		})
	}
	for i := range 30 {
		list := addrs[:2+i%3]
		require.NoError(t, p.SetServers(list...))
		time.Sleep(5 * time.Millisecond)
	}
	stop.Store(true)
	callers.Wait()
	for i := range admitted {
		require.Equal(t, int64(limit), admitted[i].Load())
	}
	require.Equal(t, uint64(31), p.Changes())
}
