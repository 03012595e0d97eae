package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/redistest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A settling is a call of 3 hits, beside one of another process, that is settled over a
// cutter.
type settling struct {
	server *redistest.Server
	cutter *cutter
	store  *redisstore.Store    // over the cutter
	th     *throttler.Throttler // over the store
	other  *throttler.Throttler
	rule   throttler.Rule
	d      throttler.Decision
}

const settlingMax = 20

// settlings runs test for each algorithm, over one server.
func settlings(t *testing.T, test func(t *testing.T, s *settling)) {
	t.Parallel()
	server := redistest.Process(t)
	in10Days := time.Now().UTC().AddDate(0, 0, 10) // the month ends far from now
	month := throttler.Period{Unit: throttler.Month, Anchor: min(in10Days.Day(), 28)}
	for _, c := range []throttler.Condition{
		{TTL: time.Hour},
		{TTL: 20 * time.Hour, Algorithm: throttler.LeakyBucket},
		{TTL: time.Hour, Algorithm: throttler.InFlight},
		{Algorithm: throttler.Calendar, Period: month},
	} {
		t.Run(c.Algorithm.String(), func(t *testing.T) {
			server.Command("FLUSHALL")
			s := &settling{server: server, cutter: newCutter(t, server.Addr)}
			s.store = open(t, "redis://"+s.cutter.listener.Addr().String())
			s.th = throttler.New(s.store)
			s.other = throttler.New(open(t, "redis://"+server.Addr))
			c.Name, c.Value, c.Max = "c", "v", settlingMax
			s.rule = throttler.Rule{Identifier: "test", Either: []throttler.Condition{c}}
			s.call(t, s.other)
			s.rule.Either[0].Cost = 3
			s.d = s.call(t, s.th)
			s.rule.Either[0].Cost = 0
			test(t, s)
		})
	}
}

// call makes a call, which must be authorized.
func (s *settling) call(t assert.TestingT, th *throttler.Throttler) throttler.Decision {
	d, err := th.Authorize(context.Background(), s.rule)
	assert.NoError(t, err)
	assert.NoError(t, d.Err)
	assert.Equal(t, throttler.Authorized, d.Status)
	return d
}

// settle sets the total of the call.
func (s *settling) settle(t *testing.T, total int) throttler.Decision {
	t.Helper()
	d, err := s.th.Settle(context.Background(), s.d, map[string]int{"c": total})
	require.NoError(t, err)
	require.Equal(t, total, d.Outcomes[0].Cost, "the total stands")
	return d
}

// held returns how many hits are stored.
func (s *settling) held(t *testing.T) int {
	t.Helper()
	d, err := s.other.Peek(context.Background(), s.rule)
	require.NoError(t, err)
	require.NoError(t, d.Err)
	return settlingMax - d.Outcomes[0].Remaining - 1
}

// Whether the request or the answer is lost, the number of the write tells whether a Settle
// was carried out. It is, once.
func TestASettleWhoseAnswerIsLostIsCarriedOutOnce(t *testing.T) {
	settlings(t, func(t *testing.T, s *settling) {
		for i, total := range []int{5, 2, 9, 4, 0, 7} { // more and less, with both
			if i%4 < 2 {
				s.cutter.asked.cutIn("EVALSHA")
			} else {
				s.cutter.answered.cutIn(written)
			}
			d := s.settle(t, total)
			require.NoError(t, d.Err)
			require.EqualValues(t, i+1, s.cutter.cuts.Load())
			require.Equal(t, 1+total, s.held(t), "settled at %d", total)
		}
	})
}

// If another process has changed the record since, the number tells nothing. More hits may
// have been counted or not: Err says so, and no other try counts them again. What may be
// done twice is done: hits that are given back, and a lease, are known.
func TestASettleWhoseLostAnswerIsCoveredIsNotCarriedOutAgain(t *testing.T) {
	for _, carriedOut := range []bool{true, false} {
		t.Run(fmt.Sprintf("carried out=%t", carriedOut), func(t *testing.T) {
			settlings(t, func(t *testing.T, s *settling) {
				lose := func() {
					s.cutter.onCut = func() { s.call(t, s.other) }
					if carriedOut {
						s.cutter.answered.cutIn(written)
					} else {
						s.cutter.asked.cutIn("EVALSHA")
					}
				}
				lose()
				d := s.settle(t, 7)
				more := 7
				if algorithm := s.rule.Either[0].Algorithm; algorithm == throttler.InFlight {
					require.NoError(t, d.Err)
				} else {
					require.ErrorContains(t, d.Err, `it is unknown whether "c" has been settled at 7`)
					if !carriedOut {
						more = 3
					}
				}
				require.Equal(t, 1+more+1, s.held(t))
				s.cutter.onCut = nil
				d = s.settle(t, 7)
				require.NoError(t, d.Err)
				require.Equal(t, 1+more+1, s.held(t), "it stays at what it is taken to be")
			})
		})
	}
}

// A server that hangs carries a Settle out when it goes on. Another Settle at the same total
// does not do it twice.
func TestASettleOfAHungServerIsCarriedOutOnce(t *testing.T) {
	for _, total := range []int{7, 1} {
		t.Run(fmt.Sprintf("total=%d", total), func(t *testing.T) {
			settlings(t, func(t *testing.T, s *settling) {
				s.store.Timeout, s.store.BreakerFailures = 500*time.Millisecond, 1_000_000
				s.server.Pause()
				d, err := s.th.Settle(context.Background(), s.d, map[string]int{"c": total})
				s.server.Resume()
				require.NoError(t, err)
				require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
				if d.Outcomes[0].Cost == total {
					require.ErrorContains(t, d.Err, "it is unknown whether")
				}
				for begun := time.Now(); s.held(t) != 1+total; time.Sleep(time.Millisecond) {
					require.Less(t, time.Since(begun), 30*time.Second)
				}
				s.store.Timeout = 10 * time.Second
				require.NoError(t, s.settle(t, total).Err)
				require.Equal(t, 1+total, s.held(t))
			})
		})
	}
}

// A server without memory refuses, so nothing was carried out, and it may be tried again.
func TestWhatAServerWithoutMemoryRefusesIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket, throttler.Calendar} {
		server := redistest.Process(t, "--maxmemory-policy", "noeviction")
		s := open(t, "redis://"+server.Addr)
		th := throttler.New(s)
		ctx := context.Background()
		costly := func(value string) throttler.Rule {
			r := rule(value, 5)
			r.Either[0].Algorithm, r.Either[0].Cost = algorithm, 3
			if algorithm == throttler.Calendar {
				r.Either[0].TTL, r.Either[0].Period = 0, throttler.Period{Unit: throttler.Month}
			}
			return r
		}
		take := func(value string) throttler.Decision {
			d, err := th.Authorize(ctx, costly(value))
			require.NoError(t, err)
			require.NoError(t, d.Err)
			return d
		}
		canceled, settled := take("canceled"), take("settled")
		server.Command("CONFIG", "SET", "maxmemory", "1")
		for range 2 {
			err := th.Cancel(ctx, canceled)
			require.ErrorContains(t, err, "raise maxmemory")
			require.NotContains(t, err.Error(), "unknown")
			d, err := th.Settle(ctx, settled, map[string]int{"ip": 1})
			require.ErrorContains(t, errors.Join(err, d.Err), "raise maxmemory")
			require.NotContains(t, errors.Join(err, d.Err).Error(), "unknown")
		}
		server.Command("CONFIG", "SET", "maxmemory", "0")
		require.NoError(t, th.Cancel(ctx, canceled))
		_, err := th.Settle(ctx, settled, map[string]int{"ip": 1})
		require.NoError(t, err)
		for value, counted := range map[string]int{"canceled": 0, "settled": 1} {
			d, err := th.Peek(ctx, costly(value))
			require.NoError(t, err)
			require.Equal(t, 5-counted-3, d.Outcomes[0].Remaining, value)
		}
	}
}
