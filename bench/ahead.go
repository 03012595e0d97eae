package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// This file measures hits that are taken ahead: see throttler.Condition.Prefetch.

// Their windows have 10 s, so that a hit may be spent within a second.
var (
	aheadSpread = work{
		name: "spread", about: "4,000 values at random, none of which comes near its limit of 20,000 in 10 s",
		limit: limit{20_000, 10 * time.Second}, allowed: true,
		values: anyOf(spreadNames),
	}
	aheadHot = work{
		name: "hot", about: "one value for all callers that never reaches its limit of 1,000,000 in 100 ms (for buckets 10,000,000 in 1 s)",
		limit: limit{throttler.MaxHits, 100 * time.Millisecond}, allowed: true,
		values: one("hot"),
	}
)

var (
	aheadWindow = system{"throttler, pool, Prefetch", "sliding window", onMemcached, takingAhead(throttler.SlidingWindow)}
	aheadBucket = system{"throttler, pool, Prefetch", "leaky bucket", onMemcached, takingAhead(throttler.LeakyBucket)}

	aheadSystems = []system{poolWindow, aheadWindow, poolBucket, aheadBucket}
)

// takingAhead opens a rule whose condition takes up to a tenth of its Max ahead.
func takingAhead(algorithm throttler.Algorithm) func(env, limit) (limiter, error) {
	return func(e env, l limit) (limiter, error) {
		th, end, err := poolThrottler(e)
		if err != nil {
			return nil, err
		}
		rule := ruleOf(e, l, algorithm)
		rule.Either[0].Prefetch = max(1, rule.Either[0].Max/10)
		return deciders{th, rule, end, new(endings)}, nil
	}
}

const (
	aheadSlice  = time.Second // in which hits are spent that were taken in it
	aheadRounds = 5
	aheadRate   = 20_000 // calls a second of the open loop
)

// playAhead measures what hits taken ahead save, and how much of its limit a fleet gets.
func (st *stage) playAhead(ctx context.Context, o options, out io.Writer) error {
	if st.servers[onMemcached] == nil {
		return nil
	}
	long := *st
	if long.slice, long.rounds = aheadSlice, aheadRounds; o.short {
		long.slice, long.rounds = aheadSlice/10, 1
	}
	for _, w := range []work{aheadSpread, aheadHot} {
		played, err := long.playAll(ctx, w, aheadSystems, []int{maxCallers})
		if err != nil {
			return err
		}
		aheadTable(w, played[0]).write(out)
	}
	st.report("hits taken ahead, open loop, %d calls a second", aheadRate)
	waits, err := long.playOpen(ctx, aheadSpread, aheadSystems, aheadRate, long.slice, long.rounds)
	if err != nil {
		return err
	}
	var shares []share
	for _, s := range aheadSystems {
		st.report("a fleet at twice its limit, %s (%s)", s.name, s.how)
		sh, err := long.shareOf(ctx, s, long.slice)
		if err != nil {
			return err
		}
		shares = append(shares, sh)
	}
	st.spaces = long.spaces
	fleetAheadTable(waits, shares).write(out)
	return nil
}

// aheadTable has the results of each of aheadSystems, beside those without Prefetch.
func aheadTable(w work, results []result) table {
	t := table{
		title: "Hits taken ahead: " + w.name,
		note:  fmt.Sprintf("%d callers; %s. The ratio is that of the times of a decision to those of the row above.", maxCallers, w.about),
		head:  []string{"limiter", "algorithm", "µs", "p99, µs", "client's CPU, µs", "decisions in a round trip", "ratio"},
	}
	for i, r := range results {
		ratio := "1"
		if i%2 == 1 {
			ratio = beside(r, results[i-1]).String()
		}
		t.rows = append(t.rows, []string{
			r.system.name, r.system.how, inMicros(r.median(round.each)), inMicros(r.median(round.tail)), inMicros(r.median(round.cpuEach)),
			short(1 / max(r.trips, 1e-9)), ratio,
		})
	}
	return t
}

// The fleet of shareOf, which calls for one value at twice the limit.
var shareLimit = limit{4000, time.Second}

// A share is how much of its limit a fleet gets while it asks for twice that, after the first
// window.
type share struct {
	system   system
	admitted float64 // part of the limit
	emptiest float64 // that of the emptiest window
}

// shareOf measures fleetClients clients, of fleetCallers callers each, for some windows of slice.
func (st *stage) shareOf(ctx context.Context, s system, slice time.Duration) (share, error) {
	const windows = 4
	l := limit{int(int64(shareLimit.Max) * int64(slice) / int64(shareLimit.Window)), slice}
	f, err := fleetOf(s).open(st.env(s, nil), l)
	if err != nil {
		return share{}, err
	}
	defer f.close()
	begin, apart := time.Now(), slice/time.Duration(2*l.Max)
	var next atomic.Int64
	var mu sync.Mutex
	var admitted []time.Duration
	var failure error
	var callers sync.WaitGroup
	for range fleetClients * fleetCallers {
		allow := f.caller()
		callers.Go(func() {
			var own []time.Duration
			var err error
			for at := time.Duration(0); at < windows*slice && err == nil && ctx.Err() == nil; {
				at = apart * time.Duration(next.Add(1)-1)
				time.Sleep(time.Until(begin.Add(at)))
				var ok bool
				if ok, err = allow("shared"); ok {
					own = append(own, time.Since(begin))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			admitted = append(admitted, own...)
			if failure == nil {
				failure = err
			}
		})
	}
	callers.Wait()
	if failure != nil {
		return share{}, fmt.Errorf("%s (%s): %w", s.name, s.how, failure)
	}
	slices.Sort(admitted)
	sh := shareBetween(admitted, slice, windows*slice, l)
	sh.system = s
	return sh, ctx.Err()
}

// shareBetween returns the share of l that was admitted at those times from from to until.
func shareBetween(admitted []time.Duration, from, until time.Duration, l limit) share {
	first, _ := slices.BinarySearch(admitted, from)
	last, _ := slices.BinarySearch(admitted, until)
	within := admitted[first:last]
	most := float64(l.Max) * float64(until-from) / float64(l.Window)
	sh := share{admitted: float64(len(within)) / most, emptiest: 1}
	end := 0
	for i := -1; i < len(within); i++ { // windows that begin just after an admission
		at := from
		if i >= 0 {
			at = within[i]
		}
		if at+l.Window >= until {
			break
		}
		for end < len(within) && within[end] <= at+l.Window {
			end++
		}
		sh.emptiest = min(sh.emptiest, float64(end-i-1)/float64(l.Max))
	}
	return sh
}

// fleetAheadTable has the open loop and the shares of aheadSystems.
func fleetAheadTable(waits []openResult, shares []share) table {
	t := table{
		title: "Hits taken ahead: at a steady rate",
		note: fmt.Sprintf("Calls of the work spread, %d a second: milliseconds that half of the calls / 99 %% / 99.9 %% took at most, from when each was due. "+
			"And %d clients that ask together for twice a limit of %d a second, on one value: the part of the limit that they get, and the part in the emptiest window.",
			aheadRate, fleetClients, shareLimit.Max),
		head: []string{"limiter", "algorithm", "waits, ms", "of the limit", "in the emptiest window"},
	}
	for i, w := range waits {
		t.rows = append(t.rows, []string{
			w.system.name, w.system.how, w.String(), fmt.Sprintf("%.2f", shares[i].admitted), fmt.Sprintf("%.2f", shares[i].emptiest),
		})
	}
	return t
}
