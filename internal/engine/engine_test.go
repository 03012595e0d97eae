package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/adapter"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newEngine(client adapter.Client) *Engine {
	return New(Config{Client: client, QueueTimeout: time.Second, Records: 100, Large: 1024})
}

func planOf(e *Engine, limits ...record.Limit) *Plan {
	rule := Rule{Identifier: "r"}
	for i, l := range limits {
		rule.Conditions = append(rule.Conditions, Condition{Name: fmt.Sprint(i), Message: "full", Limit: l})
	}
	return NewPlan(e, rule)
}

func authorize(t *testing.T, ctx context.Context, p *Plan) (*Receipt, []Outcome) {
	t.Helper()
	r, n := new(Receipt), len(p.Conditions)
	parts := make([]Counted, n)
	r.Use(&parts)
	out := make([]Outcome, n)
	p.Authorize(ctx, make([]Demand, n), r, out)
	return r, out
}

// A staged is a store that is not asked in process memory. It calls before ahead of each
// Exchange but those that it makes itself.
type staged struct {
	*memstore.Store
	before func()
}

func (s *staged) Inside(any) {} // of another type than memstore's

func (s *staged) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	s.Store.Exchange(ctx, xs...)
}

func TestOthersDoNotNoticeThatTheLeadersContextHasEnded(t *testing.T) {
	s := &staged{Store: memstore.New()}
	e := newEngine(s)
	p := planOf(e, record.Limit{Max: 5, TTL: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var others sync.WaitGroup
	s.before = func() {
		others.Go(func() {
			_, out := authorize(t, t.Context(), p)
			assert.NoError(t, out[0].Err)
		})
		assert.Eventually(t, func() bool { return e.main.Queued("r#0#") == 2 }, 20*time.Second, time.Millisecond)
		cancel()
	}
	r, _ := authorize(t, ctx, p)
	others.Wait()
	require.NoError(t, r.Cancel(t.Context(), e, nil), "it has counted or not")
	_, out := authorize(t, t.Context(), p)
	require.Equal(t, 3, out[0].Remaining, "the hit of the other, and this one")
}

// For whoever holds a lease it ends by the clock that comes first, with a tenth of its TTL to
// spare, although the other one was set back or has stood still.
func TestALeaseEndsByWhicheverClockComesFirst(t *testing.T) {
	for name, move := range map[string]func(s *held){
		"neither":                         func(*held) {},
		"the wall clock was set back":     func(s *held) { s.end.wall += record.Instant(time.Hour) },
		"the monotonic clock stood still": func(s *held) { s.end.mono = s.end.mono.Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &staged{Store: memstore.New()}
				e := newEngine(s)
				r, _ := authorize(t, t.Context(), planOf(e, record.Limit{Algorithm: record.Leases, Max: 1, TTL: time.Minute}))
				start := time.Now()
				l := r.Hold(t.Context(), e)
				e.holds.mu.Lock()
				move(l.held[0])
				l.held[0].by.resting = start.Add(time.Hour) // it cannot be renewed
				e.holds.schedule(l.held[0].by)
				e.holds.extend(l)
				e.holds.mu.Unlock()
				<-l.Context().Done()
				require.Equal(t, 54*time.Second, time.Since(start))
				require.ErrorIs(t, context.Cause(l.Context()), ErrLeaseLost)
			})
		})
	}
}

// A stopped process that goes on is told by the clocks, before its timers run.
func TestDoneIsClosedWhenAStoppedProcessGoesOn(t *testing.T) {
	for name, ask := range map[string]func(l *Lease) bool{
		"Err": func(l *Lease) bool { return l.Context().Err() != nil },
		"Done": func(l *Lease) bool {
			select {
			case <-l.Context().Done():
				return true
			default:
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(memstore.New())
			r, _ := authorize(t, t.Context(), planOf(e, record.Limit{Algorithm: record.Leases, Max: 1, TTL: time.Hour}))
			l := r.Hold(t.Context(), e)
			require.False(t, ask(l))
			e.holds.mu.Lock()
			l.timer.Stop() // as all timers of a process that is stopped
			l.held[0].end.wall -= record.Instant(time.Hour)
			until := l.held[0].lostAt()
			l.until.Store(&until)
			e.holds.mu.Unlock()
			require.True(t, ask(l))
		})
	}
}

func TestATryIsCutShortOnlyByTheEndOfItsContext(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	down := errors.New("down")
	for _, tt := range []struct {
		ctx  context.Context
		err  error
		want bool
	}{
		{ended, nil, false},
		{ended, down, false},
		{ended, context.Canceled, true},
		{ended, Join(down, context.Canceled), true},
		{t.Context(), context.Canceled, false},
		{t.Context(), nil, false},
	} {
		require.Equal(t, tt.want, cutShort(tt.ctx, []Outcome{{}, {Err: tt.err}}), "%v", tt.err)
	}
}

func TestASimulationForgetsWhatHasEnded(t *testing.T) {
	var s Simulation
	p := planOf(nil, record.Limit{Max: 1, TTL: time.Minute})
	for i := range 5000 {
		s.Authorize(record.Instant(i+1)*record.Instant(time.Second), p, []Demand{{Value: fmt.Sprint(i)}}, make([]Outcome, 1))
	}
	require.LessOrEqual(t, len(s.records), 1001)
}

// A renewal notes the ends of leases while others take them back: each has a lock that the other
// one needs.
func TestLeasesAreRenewedWhileTheyAreGivenBack(t *testing.T) {
	e := newEngine(memstore.New())
	p := planOf(e, record.Limit{Algorithm: record.Leases, Max: 10, TTL: time.Hour})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				r, _ := authorize(t, t.Context(), p)
				l := r.Hold(t.Context(), e)
				e.holds.mu.Lock()
				by := e.holds.byRecord[recordID{e.main, "r#0#"}]
				e.holds.mu.Unlock()
				all.Go(func() {
					e.holds.mu.Lock()
					defer e.holds.mu.Unlock()
					e.holds.note(by, map[uint64]record.Instant{l.receipt.open().all[0].first[0].ID: record.InstantOf(time.Now().Add(time.Hour))}, time.Now())
				})
				assert.NoError(t, r.Cancel(t.Context(), e, nil))
				assert.ErrorIs(t, context.Cause(l.Context()), ErrLeaseLost)
			}
		})
	}
	all.Wait()
	_, out := authorize(t, t.Context(), p)
	require.Equal(t, 9, out[0].Remaining)
}

func TestRecordsOfAClockAheadAreCounted(t *testing.T) {
	store := &staged{Store: memstore.New()}
	limit := record.Limit{Algorithm: record.Bucket, Max: 3, TTL: time.Hour}
	for ahead, want := range map[time.Duration]uint64{0: 0, 10 * time.Second: 2} {
		var r record.Record
		new(record.Verdict).Decide(record.InstantOf(time.Now().Add(ahead)), &limit, record.Lockout{}, &r, true)
		store.Delete("r#0#")
		require.NoError(t, store.Add(&memcache.Item{Key: "r#0#", Value: r.Append(nil)}))
		e := newEngine(store)
		for range 2 {
			authorize(t, t.Context(), planOf(e, limit))
		}
		require.Equal(t, want, e.Stats().ClockAhead, "%v", ahead)
	}
}

// No time zone is read while a record is locked: what the period is has been looked up before.
func TestThePeriodOfACalendarIsKnownBeforeItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		berlin, err := time.LoadLocation("Europe/Berlin")
		require.NoError(t, err)
		of := &record.Period{Unit: record.Week, Location: berlin}
		p := planOf(newEngine(memstore.New()), record.Limit{Algorithm: record.Calendar, Max: 5, Period: of})
		for range 3 {
			near := p.limit(0, &Demand{}).Near
			require.Equal(t, of.Near(record.InstantOf(time.Now())), near)
			require.Same(t, near, p.limit(0, &Demand{}).Near, "looked up once")
			time.Sleep(7 * 24 * time.Hour)
		}
		s := newReservation(p.engine.main, "k", &p.Conditions[0], record.Hit{}).settlement(0)
		require.NotNil(t, s.Limit.Near)
	})
}

func TestHitsAreTakenAheadOfSoManyRecordsAtMost(t *testing.T) {
	var hs hands
	for i := range maxHands + 10 {
		hs.add(fmt.Sprint(i)).hits = []record.Hit{{Cost: 2}}
	}
	require.Len(t, hs.all, maxHands)
	require.EqualValues(t, 2*10, hs.expired)
}
