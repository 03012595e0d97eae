package pool_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAfterARestartNoCallIsLost(t *testing.T) {
	for name, restart := range map[string]func(*servertest.Memcached){
		"stopped": func(s *servertest.Memcached) { s.Stop(); s.Start() },
		"killed":  func(s *servertest.Memcached) { s.Kill(); s.Start() },
		"socket":  func(s *servertest.Memcached) { s.Kill(); s.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			start := servertest.NewMemcached
			if name == "socket" {
				start = servertest.NewMemcachedSocket
			}
			server := start(t)
			p := patient(t, server.Addr)
			for range 2 {
				for i := range 20 { // connections to go stale
					p.Add(item(fmt.Sprint("key", i)))
				}
				atOnce(20, func(i int) { p.Get(fmt.Sprint("key", i)) })
				swapped, err := p.Get("key0")
				require.NoError(t, err)

				restart(server)
				// It is empty, so that this is a miss and no conflict.
				require.ErrorIs(t, p.CompareAndSwap(swapped), memcache.ErrCacheMiss)
				atOnce(20, func(i int) {
					assert.NoError(t, p.Add(item(fmt.Sprint("key", i))))
				})
			}
			assert.Zero(t, p.Stats()[0].Failures)
		})
	}
}

// An outage counts what befalls calls from several goroutines on three servers,
// of which the second has an outage.
type outage struct {
	servers [3]*servertest.Memcached
	pool    *pool.Pool
	sick    string

	calls, refused, waited atomic.Int64 // on the sick server
	slowest                atomic.Int64 // of all calls
	failing                atomic.Bool  // failures on the sick server are expected

	stop    chan struct{}
	callers sync.WaitGroup
}

const outageCallers = 6

// load starts the servers and the callers, which all end with the test. No busy machine may
// reach the timeout.
func load(t *testing.T, timeout time.Duration) *outage {
	t.Helper()
	o := &outage{stop: make(chan struct{})}
	for i := range o.servers {
		o.servers[i] = servertest.NewMemcached(t)
	}
	o.sick = o.servers[1].Addr
	p, err := pool.New(o.servers[0].Addr, o.sick, o.servers[2].Addr)
	require.NoError(t, err)
	p.Timeout, p.DialTimeout = timeout, timeout
	p.BreakerPause = 100 * time.Millisecond
	o.pool = p
	for caller := range outageCallers {
		o.callers.Go(func() { o.call(t, caller) })
	}
	t.Cleanup(func() {
		close(o.stop)
		o.callers.Wait()
		p.Close()
	})
	return o
}

// call reads three keys at a time and adds one of them, until stop.
func (o *outage) call(t *testing.T, caller int) {
	for i := 0; ; i++ {
		select {
		case <-o.stop:
			return
		default:
		}
		keys := make([]string, 3)
		for j := range keys {
			keys[j] = fmt.Sprintf("key%d-%d-%d", caller, i%100, j)
		}
		var err error
		failing := o.timed(func() { _, err = o.pool.GetMulti(keys) })
		for _, key := range keys {
			keyErr := err
			if multi := (*pool.MultiError)(nil); errors.As(err, &multi) {
				keyErr = multi.KeyError(key)
			}
			o.note(t, key, keyErr, failing)
		}
		failing = o.timed(func() {
			err = o.pool.Add(&memcache.Item{Key: keys[0], Value: []byte("value"), Expiration: 60})
		})
		o.note(t, keys[0], err, failing)
	}
}

// timed makes a call and returns whether it may have met the outage.
func (o *outage) timed(call func()) bool {
	failing := o.failing.Load()
	d := int64(took(call))
	for slowest := o.slowest.Load(); d > slowest && !o.slowest.CompareAndSwap(slowest, d); slowest = o.slowest.Load() {
	}
	return failing || o.failing.Load()
}

// note counts one call's error.
func (o *outage) note(t *testing.T, key string, err error, failing bool) {
	if o.pool.Place(key) != o.sick {
		assert.True(t, answered(err), "on a server that is well: %v", err)
		return
	}
	o.calls.Add(1)
	switch {
	case answered(err):
	case !failing:
		assert.NoError(t, err, "while all is well")
	case errors.Is(err, pool.ErrDown):
		o.refused.Add(1)
	default:
		o.waited.Add(1)
	}
}

// untilDown waits until the sick server is, or is not, taken to be down.
func (o *outage) untilDown(t *testing.T, down bool) {
	t.Helper()
	require.Eventually(t, func() bool { return o.pool.Stats()[1].Down == down }, 30*time.Second, time.Millisecond)
}

// more waits for n more calls of the sick server.
func (o *outage) more(t *testing.T, n int64) {
	t.Helper()
	until := o.calls.Load() + n
	require.Eventually(t, func() bool { return o.calls.Load() >= until }, 30*time.Second, time.Millisecond)
}

func TestAnOutageOfOneOfThreeServersUnderLoad(t *testing.T) {
	for name, kind := range map[string]struct {
		begin, end func(*servertest.Memcached)
		timeout    time.Duration
	}{
		"hangs": {(*servertest.Memcached).Pause, (*servertest.Memcached).Resume, 5 * time.Second}, // which calls wait for
		// Not Stop: memcached 1.6.18 sometimes does not end on SIGTERM while it is
		// under load. A client sees the same of both.
		"killed": {(*servertest.Memcached).Kill, (*servertest.Memcached).Start, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := load(t, kind.timeout)
			o.more(t, 500)
			began := time.Now()
			o.failing.Store(true)
			kind.begin(o.servers[1])
			o.untilDown(t, true)
			o.more(t, 2000)
			kind.end(o.servers[1])
			o.untilDown(t, false)

			// Those in a row, and what was under way beside them. A GetMulti notes up
			// to three.
			assert.LessOrEqual(t, o.waited.Load(), int64(3*(pool.DefaultBreakerFailures+outageCallers)))
			t.Logf("%v: %d calls of the server, %d failed, %d refused at once; slowest of all calls %v",
				time.Since(began).Round(time.Millisecond), o.calls.Load(), o.waited.Load(), o.refused.Load(),
				time.Duration(o.slowest.Load()).Round(time.Millisecond))

			o.failing.Store(false)
			o.more(t, 500)
		})
	}
}
