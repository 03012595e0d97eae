package throttler_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/require"
)

// A robot calls at a steady rate a rule of one window that takes max in ttl.
// The original let it make up to 30 calls in one second at 10 a second.
type robot struct {
	max    int
	ttl    time.Duration
	every  time.Duration // between two calls
	during time.Duration
}

// run calls rule through all clients in turn, and requires that exactly what
// fits was admitted.
func (r robot) run(t *testing.T, rule throttler.Rule, clients ...throttler.Client) {
	var recorders []*recorder
	for _, c := range clients {
		recorders = append(recorders, &recorder{Client: c})
	}
	calls := r.calls(t, rule, recorders)
	var admitted, refused []timedCall
	for _, c := range calls {
		require.NoError(t, c.Err)
		if c.Status == throttler.Authorized {
			admitted = append(admitted, c)
		} else {
			refused = append(refused, c)
		}
	}
	t.Logf("%d calls, %d admitted", len(calls), len(admitted))
	r.requireNeverMore(t, admitted)
	r.requireStampsApart(t, recorders, len(admitted))
	r.requireNeverLess(t, admitted, refused)
	require.GreaterOrEqual(t, 100*len(admitted), 95*r.ideal(calls), "%d admitted", len(admitted))
}

// calls returns the calls in the order in which they began.
func (r robot) calls(t *testing.T, rule throttler.Rule, recorders []*recorder) []timedCall {
	var (
		wg   sync.WaitGroup
		each = make([][]timedCall, len(recorders))
		errs = make([]error, len(recorders))
		from = wallClock()
	)
	for i, client := range recorders {
		wg.Go(func() {
			th := throttler.New(client)
			for n := i; ; n += len(recorders) {
				at := time.Duration(n) * r.every
				if at >= r.during || errs[i] != nil {
					return
				}
				sleepUntil(from.Add(at))
				c := timedCall{begin: wallClock()}
				c.Decision, errs[i] = th.Authorize(context.Background(), rule)
				c.end = wallClock()
				each[i] = append(each[i], c)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	calls := slices.Concat(each...)
	slices.SortFunc(calls, func(a, b timedCall) int { return a.begin.Compare(b.begin) })
	return calls
}

// requireNeverMore judges from outside. A hit is stamped between the begin and
// the end of its call, so calls that lie as a whole in a window have their
// stamps in it. It holds for every window if it does for those that begin with
// a call.
func (r robot) requireNeverMore(t *testing.T, admitted []timedCall) {
	for i, first := range admitted {
		inside := 0
		for _, c := range admitted[i:] {
			if c.end.Before(first.begin.Add(r.ttl)) {
				inside++
			}
		}
		require.LessOrEqual(t, inside, r.max, "calls within %v", r.ttl)
	}
}

// requireStampsApart judges by the stamps themselves, as they were stored: of
// any max+1 hits in a row, the last one came when the first had expired.
func (r robot) requireStampsApart(t *testing.T, recorders []*recorder, admitted int) {
	var expiries []time.Time
	for _, rec := range recorders {
		for _, value := range rec.stored {
			hits := inspect(t, value).Expiries
			expiries = append(expiries, hits[len(hits)-1])
		}
	}
	require.Len(t, expiries, admitted)
	slices.SortFunc(expiries, time.Time.Compare)
	for i := r.max; i < len(expiries); i++ {
		require.GreaterOrEqual(t, expiries[i].Sub(expiries[i-r.max]), r.ttl, "hits %d and %d", i-r.max, i)
	}
}

// requireNeverLess requires of every refused call that so many hits may have
// counted when it was decided.
func (r robot) requireNeverLess(t *testing.T, admitted, refused []timedCall) {
	for _, b := range refused {
		held := 0
		for _, a := range admitted {
			if !a.begin.After(b.end) && a.end.Add(r.ttl+tick).After(b.begin) {
				held++
			}
		}
		require.GreaterOrEqual(t, held, r.max, "hits that can have blocked a call")
	}
}

// ideal returns how many calls must at least have been admitted, given when the
// machine let the robot make them. It is max for each ttl if it was in time.
//
// There are max places, each taken for a ttl. When one opens, the next call to
// begin takes it, which has ended after late. So the first calls take the
// places 0 to max-1 within late each, and place j is taken for the k-th time no
// later than k*(ttl+late) + (j+1)*late after the first call.
func (r robot) ideal(calls []timedCall) int {
	late := tick
	for i := 1; i < len(calls); i++ {
		late = max(late, calls[i].end.Sub(calls[i-1].begin))
	}
	end := calls[len(calls)-1].begin.Sub(calls[0].begin)
	n := 0
	for j := range r.max {
		for at := time.Duration(j+1) * late; at <= end; at += r.ttl + late {
			n++
		}
	}
	return n
}
