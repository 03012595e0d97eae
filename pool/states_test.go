package pool_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the pools of this table wait for.
const (
	dialTimeout  = timeout * 2 / 5
	queueTimeout = timeout * 8 / 5
	pause        = 8 * timeout // of the breaker
)

const full = "ERROR Too many open connections"

// A state is what a server is like while it is called, and what becomes of the calls.
type state struct {
	answer  func(net.Conn, string) // the server that the pool finds, as of a station
	dial    func(context.Context) error
	version string
	later   func(s *station, p *pool.Pool) // what happens to one that has answered and was idle

	err      string        // that calls fail with; "": they are answered
	closed   bool          // it is ErrClosed, and no failure
	takes    time.Duration // until all calls have ended that are made meanwhile
	own      bool          // it takes each call that long
	lone     bool          // several callers would fare differently: there is one
	sent     int           // how often the request of a lone caller is sent
	dials    int           // of a lone caller
	restarts bool          // its connections are lost, and the next ones are well
	each     bool          // each call is a failure of the server, and not each connection
}

var states = map[string]state{
	"hangs":       {answer: hangs, err: "timeout", takes: timeout, sent: 1, dials: 1},
	"hangs later": {later: nowSays(hangs), err: "timeout", takes: timeout, sent: 1},
	"ends in the middle": {later: nowSays(says("EN")), err: "timeout",
		takes: timeout, lone: true, sent: 1},
	"is as slow as may be": {answer: after(timeout-1, misses),
		takes: timeout - 1, lone: true, sent: 1, dials: 1},
	"is as slow later": {later: nowSays(after(timeout-1, misses)),
		takes: timeout - 1, lone: true, sent: 1},
	"hangs up": {answer: hangsUp, err: "connection lost",
		sent: 2, dials: 2, each: true},
	"hangs up later": {later: nowSays(hangsUp), err: "connection lost",
		sent: 2, dials: 1, each: true},
	"says nonsense": {answer: says("TUESDAY\r\n"), err: "TUESDAY",
		sent: 1, dials: 1, each: true},
	"has restarted": {later: func(s *station, _ *pool.Pool) { s.hangUp() }, restarts: true,
		sent: 1, dials: 1},
	"refuses connections": {dial: refused, err: "refused", dials: 1, each: true},
	"is not there": {dial: blocked, err: "timeout",
		takes: dialTimeout, dials: 1, each: true},
	"accepts and is silent": {version: silent, err: "timeout",
		takes: dialTimeout, dials: 1, each: true},
	"greets with nonsense": {version: strings.Repeat("x", 100_000), err: "xxx",
		dials: 1, each: true},
	"is full": {version: full, err: "too many open",
		takes: queueTimeout, own: true, dials: 9, each: true},
	"is full later": {later: restartsFull, err: "too many open", takes: queueTimeout, own: true,
		restarts: true, sent: 1, dials: 9, each: true},
	"hangs, and Close": {answer: hangs, later: closes(timeout - 1), err: "closed", closed: true,
		takes: timeout - 1, sent: 1, dials: 1},
	"hangs later, and Close": {later: hangsUntilClose, err: "closed", closed: true,
		takes: timeout - 1, sent: 1},
	"is not there, and Close": {dial: blocked, later: closes(dialTimeout - 1), err: "closed",
		closed: true, takes: dialTimeout - 1, dials: 1},
}

// nowSays has a server answer otherwise.
func nowSays(answer func(net.Conn, string)) func(*station, *pool.Pool) {
	return func(s *station, _ *pool.Pool) { s.now(answer) }
}

func refused(context.Context) error { return &net.OpError{Op: "dial", Err: errors.New("refused")} }

// blocked is a dial that nobody answers.
func blocked(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func restartsFull(s *station, _ *pool.Pool) {
	s.greets(full)
	s.now(hangsUp)
}

func closes(after time.Duration) func(*station, *pool.Pool) {
	return func(_ *station, p *pool.Pool) { time.AfterFunc(after, func() { p.Close() }) }
}

func hangsUntilClose(s *station, p *pool.Pool) {
	s.now(hangs)
	closes(timeout-1)(s, p)
}

// newPool returns a server in the state, and a pool of it.
func (st state) newPool(t *testing.T, breakerFailures int) (*station, *pool.Pool) {
	s := &station{answer: st.answer, dial: st.dial, version: st.version}
	p := s.newPool(t, one)
	p.DialTimeout, p.QueueTimeout = dialTimeout, queueTimeout
	p.BreakerFailures, p.BreakerPause = breakerFailures, pause
	p.StateChanged = func(server string, down bool, err error) {
		assert.Equal(t, down, errors.Is(err, upstream.ErrDown))
		assert.Equal(t, down, errors.Is(err, throttler.ErrUnavailable))
		p.Stats() // no lock is held
		s.told = append(s.told, fmt.Sprint(server, " ", down))
	}
	if st.answer == nil && st.dial == nil && st.version == "" {
		s.heal()
		beAlone(p, "key")
		time.Sleep(timeout - 1)
		s.dialled()
		s.heard()
	}
	if st.later != nil {
		st.later(s, p)
		synctest.Wait()
	}
	return s, p
}

// check requires that a call of a server in the state has ended as it should.
func (st state) check(t *testing.T, err error) {
	t.Helper()
	switch {
	case st.err == "":
		assert.True(t, answered(err), "%v", err)
	case st.closed:
		assert.ErrorIs(t, err, pool.ErrClosed)
	default:
		assert.ErrorContains(t, err, st.err)
		assert.ErrorContains(t, err, one)
		assert.ErrorIs(t, err, throttler.ErrUnavailable)
		assert.NotErrorIs(t, err, throttler.ErrOverloaded)
		assert.NotErrorIs(t, err, upstream.ErrDown)
	}
}

func TestWhatBecomesOfALoneCall(t *testing.T) {
	for operation, call := range operations {
		t.Run(operation, func(t *testing.T) {
			bubbles(t, states, func(t *testing.T, st state) {
				s, p := st.newPool(t, 2)
				before := p.Stats()[0]
				require.Equal(t, st.takes, took(func() { st.check(t, call(p, "key")) }))
				heard := s.heard()
				require.Len(t, heard, st.sent)
				require.LessOrEqual(t, len(slices.Compact(heard)), 1, "the same again")
				require.InDelta(t, st.dials, len(s.dialled()), float64(st.dials/3))
				stats := p.Stats()[0]
				require.Equal(t, before.Calls+1, stats.Calls)
				require.Equal(t, st.err != "" && !st.closed, stats.Failures == 1)
				require.Equal(t, st.sent == 2 || st.restarts, stats.Retries == 1)
				require.Equal(t, st.err != "", stats.Conns == 0)
				require.False(t, stats.Down)
				if st.closed {
					require.ErrorIs(t, call(p, "key"), pool.ErrClosed)
				}
				time.Sleep(time.Second)
				s.dialled()
				time.Sleep(time.Minute)
				require.Empty(t, s.dialled(), "for nobody")
			})
		})
	}
}

func TestWhatBecomesOfCallsThatComeMeanwhile(t *testing.T) {
	bubbles(t, states, func(t *testing.T, st state) {
		if st.lone {
			return
		}
		const callers = 20
		_, p := st.newPool(t, callers)
		begin := time.Now()
		atOnce(callers, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			ends := begin.Add(st.takes)
			if st.own || st.takes == 0 {
				ends = time.Now().Add(st.takes)
			}
			_, err := p.Get("key")
			st.check(t, err)
			assert.Equal(t, ends, time.Now())
		})
		stats := p.Stats()[0]
		require.Equal(t, st.each, stats.Down)
		require.Equal(t, st.err != "" && !st.closed, stats.Failures == callers)
	})
}

// Callers pay for the failures that open the breaker and for nothing else, however long an outage
// lasts. The pool finds out that it is over, and looks no more after Close.
func TestAnOutage(t *testing.T) {
	outages := make(map[string]state)
	for name, st := range states {
		if st.err != "" && !st.closed {
			outages[name] = st
		}
	}
	for _, heals := range []bool{true, false} {
		bubbles(t, outages, func(t *testing.T, st state) {
			const failures = 3
			s, p := st.newPool(t, failures)
			for range failures {
				_, err := p.Get("key")
				st.check(t, err)
			}
			probes := func() int { return len(s.dialled()) + len(s.heard()) }
			probes()
			refuses := func() {
				t.Helper()
				atOnce(10, func(int) {
					begin := time.Now()
					_, err := p.Get("key")
					assert.Equal(t, begin, time.Now())
					assert.ErrorIs(t, err, upstream.ErrDown)
					var of *failure.ServerError
					assert.ErrorAs(t, err, &of)
					assert.Equal(t, one, of.Server)
					assert.ErrorContains(t, err, st.err, "the last failure")
				})
			}
			time.Sleep(pause - 1) // to its last nanosecond
			refuses()
			require.Zero(t, probes())
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			refuses()
			require.NotZero(t, probes())
			for range 99 {
				time.Sleep(pause / 7)
				refuses()
			}
			stats := p.Stats()[0]
			require.EqualValues(t, failures, stats.Failures, "probes are no calls")
			require.EqualValues(t, 101*10, stats.Refusals)
			require.LessOrEqual(t, probes(), 15*max(4, st.dials))
			if !heals {
				require.NoError(t, p.Close())
				synctest.Wait()
				probes()
				time.Sleep(10 * pause)
				synctest.Wait()
				require.Zero(t, probes())
				require.Equal(t, []string{one + " true"}, s.told)
				return
			}
			s.heal()
			time.Sleep(pause + 2*timeout)
			require.False(t, p.Stats()[0].Down)
			atOnce(50, func(int) {
				_, err := p.Get("key")
				assert.Equal(t, memcache.ErrCacheMiss, err)
			})
			require.Equal(t, stats.Retries, p.Stats()[0].Retries)
			synctest.Wait()
			require.Equal(t, []string{one + " true", one + " false"}, s.told)
		})
	}
}
