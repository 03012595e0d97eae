package coalesce_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trip is about how long an exchange with a distantServer takes.
const trip = time.Millisecond

// A distantServer carries out exchanges at the same time, half a trip after they were
// proposed and half a trip before they are done.
type distantServer struct{ *server }

func newDistantServer() distantServer { return distantServer{&server{Client: memstore.New()}} }

func (d distantServer) Exchange(_ context.Context, xs ...exchange.Exchange) {
	for _, x := range xs {
		d.carryOut(x)
	}
}

func (d distantServer) Start(xs ...exchange.Exchange) { go d.Exchange(context.Background(), xs...) }

func (d distantServer) carryOut(x exchange.Exchange) {
	item := x.Propose(exchange.Turn{Conn: 1})
	onTheWay()
	r := exchange.Result{Conn: 1, Read: true}
	if item != nil {
		r.Stored = d.put(item) == nil
	}
	r.Found = d.at(x.Key())
	onTheWay()
	x.Done(r)
}

// onTheWay takes half a trip, more or less.
func onTheWay() { time.Sleep(trip/4 + rand.N(trip/2)) }

// A fleet is processes that share a server.
type fleet struct {
	server distantServer
	tables []*coalesce.Table
	counts coalesce.Counts // of all of them
}

func newFleet(processes int) *fleet {
	f := &fleet{server: newDistantServer()}
	for range processes {
		f.tables = append(f.tables, coalesce.NewTable(f.server, coalesce.Config{Remembered: 100, Timeout: time.Minute, Counts: &f.counts}))
	}
	return f
}

// hammer has callers of each process count hits on one record for so long, one after the
// other. It returns how long each took, sorted.
func (f *fleet) hammer(t *testing.T, callers int, long time.Duration) (took []time.Duration) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	begin := time.Now()
	for _, table := range f.tables {
		for range callers {
			wg.Go(func() {
				for time.Since(begin) < long {
					one := f.count(t, table)
					mu.Lock()
					took = append(took, one)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	slices.Sort(took)
	return took
}

// count counts a hit, and returns how long it took.
func (f *fleet) count(t *testing.T, table *coalesce.Table) time.Duration {
	begin := time.Now()
	e := ask(context.Background(), table, &counter{max: manyHits})[0]
	assert.NoError(t, e.Failed())
	return time.Since(begin)
}

const manyHits = 100_000

// counted returns how many hits the record has.
func (f *fleet) counted() int {
	c := &counter{max: manyHits}
	ask(context.Background(), f.tables[0], c)
	return manyHits - c.verdict.Outcome.Remaining - 1
}

// Without pauses a hit takes 1.4 exchanges, and one of a hundred hits takes 80 trips.
func TestProcessesThatWriteOneRecordTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(8)
		took := f.hammer(t, 8, 1000*trip)
		require.Greater(t, len(took), 5000)
		require.Less(t, float64(f.counts.Exchanges.Load())/float64(len(took)), 0.8)
		require.Less(t, took[len(took)*99/100], 40*trip)
		require.Equal(t, len(took), f.counted())
	})
}

func TestALostRaceDelaysTheNextCallLittle(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		s.overtaken(2, 0) // a wrong guess, and a race
		e := ask(t.Context(), mine, &counter{max: 1000})[0]
		require.Equal(t, 1, e.LostRaces)
		begin := time.Now()
		require.NoError(t, ask(t.Context(), mine, &counter{max: 1000})[0].Failed())
		require.Less(t, time.Since(begin), 3*trip/2)
	})
}

func TestAProcessThatIsAloneAgainPausesNoMore(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, counts := table(s)
		s.overtaken(100, 0)
		ask(t.Context(), mine, &counter{max: 1000})
		begin := time.Now()
		for range 20 { // each pause is shorter than the one before
			require.NoError(t, ask(t.Context(), mine, &counter{max: 1000})[0].Failed())
		}
		require.Greater(t, time.Since(begin), 35*trip)
		require.Less(t, time.Since(begin), 85*trip)
		begin = time.Now()
		for range 20 {
			require.NoError(t, ask(t.Context(), mine, &counter{max: 1000})[0].Failed())
		}
		require.Equal(t, 20*trip, time.Since(begin))
		require.EqualValues(t, 99, counts.LostRaces.Load())
		require.Equal(t, 141, s.hits(t))
	})
}

func TestACallThatIsLeftDuringAPauseIsNotSent(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		s.overtaken(100, 0)
		ask(t.Context(), mine, &counter{max: 1000})
		for _, stays := range []bool{false, true} { // another call, which came first
			trips, hits := s.trips, s.hits(t)
			var wg sync.WaitGroup
			if stays {
				wg.Go(func() { assert.NoError(t, ask(context.Background(), mine, &counter{max: 1000})[0].Failed()) })
				hits++
				trips++
			}
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), trip)
			e := ask(ctx, mine, &counter{max: 1000})[0]
			cancel()
			require.ErrorIs(t, e.Left, context.DeadlineExceeded)
			require.True(t, e.Unsent)
			wg.Wait()
			time.Sleep(longestPause)
			require.Equal(t, hits, s.hits(t))
			require.Equal(t, trips, s.trips)
			_, used := mine.Size()
			require.Zero(t, used)
			s.overtaken(100, 0)
			ask(t.Context(), mine, &counter{max: 1000})
		}
	})
}

// longestPause is half again as long as the longest average.
const longestPause = 15 * time.Millisecond
