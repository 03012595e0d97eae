package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A watched store tells how its server is. Its Stats are those of one server.
type watched interface {
	throttler.Client
	Stats() []pool.ServerStats
	Close() error
}

// RunOutages checks what a store with a circuit breaker does while its server hangs, is gone, is
// slow, or ends its connections. addr is that of a real server, and open opens a store over
// another address, which leads there. It waits for an answer, or a connection, for timeout; so
// many failures in a row mean that the server is down, and pause is between two probes. The store
// has a method Close() error, and Stats() []pool.ServerStats, of one server.
func RunOutages(t *testing.T, addr string, open func(t *testing.T, addr string, timeout time.Duration, failures int, pause time.Duration) throttler.Client) {
	for name, row := range map[string]func(o *outage){
		"hangs":                 (*outage).hangs,
		"is gone":               (*outage).isGone,
		"ends its connections":  (*outage).endsConnections,
		"answers slowly":        (*outage).answersSlowly,
		"answers byte for byte": (*outage).answersInPieces,
		"hangs while closed":    (*outage).hangsWhileClosed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, addr)
			store, ok := open(t, w.addr, outageTimeout, outageFailures, outagePause).(watched)
			require.True(t, ok, "the store has Stats and Close")
			o := &outage{T: t, wire: w, store: store, name: "outage-" + name}
			o.th = throttler.New(o.store)
			require.NoError(t, o.call("warm"))
			row(o)
		})
	}
}

// What bounds the calls of a suite. A call of a server that is well, or slow, must not reach the
// timeout on a busy machine: it may connect, and ask for a script, and each answer may be slow.
const (
	outageTimeout  = 2 * time.Second
	outageFailures = 3
	outagePause    = 50 * time.Millisecond
)

// An outage is a store whose server has one.
type outage struct {
	*testing.T
	wire  *wire
	store watched
	th    *throttler.Throttler
	name  string
}

func (o *outage) rule(value string) throttler.Rule {
	return throttler.Rule{Identifier: o.name, Either: []throttler.Condition{{Name: "c", Value: value, Max: 1000, TTL: time.Hour}}}
}

// call makes a call, and returns what it was failed open over.
func (o *outage) call(value string) error {
	d, err := o.th.Authorize(context.Background(), o.rule(value))
	assert.NoError(o, err)
	return d.Err
}

func (o *outage) stats() pool.ServerStats { return o.store.Stats()[0] }

// crowd makes calls at once, and returns how long each has taken.
func (o *outage) crowd(size int, check func(err error)) (times []time.Duration) {
	times = make([]time.Duration, size)
	var calls sync.WaitGroup
	for i := range size {
		calls.Go(func() {
			begun := time.Now()
			check(o.call(fmt.Sprint(i)))
			times[i] = time.Since(begun)
		})
	}
	calls.Wait()
	return times
}

// down requires that calls fail at once, without anything being sent, and that the server is used
// again soon after end has ended its outage.
func (o *outage) down(end func()) {
	require.Eventually(o, func() bool { o.call("x"); return o.stats().Down }, 20*time.Second, time.Millisecond)
	refused := o.stats().Refusals
	var times []time.Duration
	for range 50 {
		begun := time.Now()
		require.ErrorIs(o, o.call("x"), throttler.ErrUnavailable)
		times = append(times, time.Since(begun))
	}
	require.EqualValues(o, 50, o.stats().Refusals-refused)
	slices.Sort(times)
	require.Less(o, times[25], outageTimeout/10)
	end()
	require.Eventually(o, func() bool { return o.call("back") == nil }, 5*outageTimeout, time.Millisecond)
	require.False(o, o.stats().Down)
	o.crowd(50, func(err error) { assert.NoError(o, err) })
}

// The first calls wait for the timeout, all at the same time, and later ones for nothing.
func (o *outage) hangs() {
	o.wire.hang()
	times := o.crowd(100, func(err error) { assert.ErrorIs(o, err, throttler.ErrUnavailable) })
	require.Less(o, slices.Max(times), 10*outageTimeout, "not one after the other")
	o.down(o.wire.resume)
}

func (o *outage) isGone() {
	o.wire.set(func() { o.wire.refuses = true })
	o.wire.cut()
	for range outageFailures {
		require.ErrorIs(o, o.call("x"), throttler.ErrUnavailable)
	}
	o.down(func() { o.wire.set(func() { o.wire.refuses = false }) })
}

// A restart, or a firewall. No call is lost, and each counts once.
func (o *outage) endsConnections() {
	const rounds, size = 5, 20
	for range rounds {
		o.wire.cut()
		o.crowd(size, func(err error) { assert.NoError(o, err) })
	}
	for i := range size {
		d, err := o.th.Peek(context.Background(), o.rule(fmt.Sprint(i)))
		require.NoError(o, err)
		require.NoError(o, d.Err)
		require.Equal(o, 1000-rounds-1, d.Outcomes[0].Remaining)
	}
	require.False(o, o.stats().Down)
}

// A server that is slow is there.
func (o *outage) answersSlowly() {
	o.wire.set(func() { o.wire.delay = outageTimeout / 10 })
	for range 2 {
		o.crowd(20, func(err error) { assert.NoError(o, err) })
	}
	require.Zero(o, o.stats().Failures)
}

func (o *outage) answersInPieces() {
	o.wire.set(func() { o.wire.pieces = true })
	for range 5 {
		o.crowd(20, func(err error) { assert.NoError(o, err) })
	}
	require.Zero(o, o.stats().Failures)
}

// Close ends calls under way, and waits for no server longer than a second.
func (o *outage) hangsWhileClosed() {
	o.wire.hang()
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() { assert.Error(o, o.call(fmt.Sprint(i))) })
	}
	time.Sleep(100 * time.Millisecond)
	begun := time.Now()
	require.NoError(o, o.store.Close())
	calls.Wait()
	require.Less(o, time.Since(begun), 5*time.Second)
	require.Error(o, o.call("x"))
	require.NoError(o, o.store.Close())
}
