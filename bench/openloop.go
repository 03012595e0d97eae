package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// The open loop: calls come at a steady rate, whether those before them have been answered
// or not, as the requests of many users do. Whoever stalls for a moment delays all that come
// meanwhile. Callers in turn, which wait for each answer, would hardly notice that.
const (
	openCallers = 512 // the most that are under way at once
	openSlice   = time.Second
	openRounds  = 5
)

// openRates are how many calls come in a second.
var openRates = []int{10_000, 20_000}

// openSystems are those of the open loop.
var openSystems = []system{poolWindow, redisWindow, getAndSwap, rueidisBucket, rueidisLog}

// A wait is how long the calls of one round took, from the time at which each was due.
type wait struct {
	half, p99, p999 time.Duration // that half, 99 % and 99.9 % of them took at most
}

// An openResult is the measurement of one system at one rate.
type openResult struct {
	system system
	waits  []wait // of each round
}

// playAllOpen measures openSystems at each of openRates.
func (st *stage) playAllOpen(ctx context.Context, o options, out io.Writer) error {
	var byRate [][]openResult
	slice, rounds := openSlice, openRounds
	if o.short {
		slice, rounds = openSlice/5, 1
	}
	for _, rate := range openRates {
		st.report("open loop, %d calls a second", rate)
		results, err := st.playOpen(ctx, spread, openSystems, rate, slice, rounds)
		if err != nil {
			return err
		}
		byRate = append(byRate, results)
	}
	openTable(byRate).write(out)
	return nil
}

// playOpen measures the systems at rate calls a second of a work.
func (st *stage) playOpen(ctx context.Context, w work, systems []system, rate int, slice time.Duration, rounds int) ([]openResult, error) {
	sc := scene{work: w, callers: openCallers, systems: st.playable(systems)}
	crowds := make([]*crowd, len(sc.systems))
	results := make([]openResult, len(sc.systems))
	for i, s := range sc.systems {
		var err error
		if crowds[i], err = st.gather(ctx, s, sc, nil); err != nil {
			return nil, failed(s, sc, err)
		}
		defer crowds[i].limiter.close()
		results[i].system = s
	}
	for range rounds {
		for _, i := range rand.Perm(len(crowds)) {
			w, err := crowds[i].arrive(ctx, rate, slice)
			if err != nil {
				return nil, failed(sc.systems[i], sc, err)
			}
			results[i].waits = append(results[i].waits, w)
		}
	}
	return results, nil
}

// arrive has calls come for slice, rate of them in a second. A call that has not begun when
// twice that time has passed never does, and counts as if it had ended then.
func (c *crowd) arrive(ctx context.Context, rate int, slice time.Duration) (wait, error) {
	begin, apart := time.Now(), time.Second/time.Duration(rate)
	var next atomic.Int64
	due := func() (at time.Time, ok bool) {
		after := time.Duration(next.Add(1)-1) * apart
		return begin.Add(after), after < slice
	}
	c.all(ctx, func(ctx context.Context, one *caller) { one.arrive(ctx, due, begin.Add(2*slice), c.work.allowed) })
	took, err := c.times()
	if err != nil {
		return wait{}, err
	}
	return wait{quantile(took, 1, 2), quantile(took, 99, 100), quantile(took, 999, 1000)}, ctx.Err()
}

// arrive makes calls when they are due, as long as there are any, and notes how long after
// that each has ended.
func (c *caller) arrive(ctx context.Context, due func() (time.Time, bool), until time.Time, want bool) {
	c.counts = c.counts[:0]
	for ctx.Err() == nil {
		at, ok := due()
		if !ok {
			return
		}
		time.Sleep(time.Until(at))
		if now := time.Now(); now.After(until) {
			c.counts = append(c.counts, now.Sub(at))
			continue
		}
		answered, ok := c.call(want)
		if !ok {
			return
		}
		c.counts = append(c.counts, answered.Sub(at))
	}
}

// openTable has the results for each of openRates.
func openTable(byRate [][]openResult) table {
	t := table{
		title: "Open loop",
		note: "Calls of the work spread come at a steady rate, whether those before them have been answered or not. " +
			"Milliseconds from the time at which a call was due to its answer, medians of the rounds: half of the calls / 99 % / 99.9 % took no longer.",
		head: []string{"limiter", "algorithm"},
	}
	for _, rate := range openRates {
		t.head = append(t.head, fmt.Sprintf("%d,%03d a second", rate/1000, rate%1000))
	}
	for i, r := range byRate[0] {
		row := []string{r.system.name, r.system.how}
		for _, results := range byRate {
			row = append(row, results[i].String())
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// String returns the medians of the rounds, in milliseconds.
func (r openResult) String() string {
	median := func(of func(wait) time.Duration) string {
		_, median, _ := quartilesOf(r.waits, of)
		return short(float64(median) / float64(time.Millisecond))
	}
	return fmt.Sprintf("%s / %s / %s",
		median(func(w wait) time.Duration { return w.half }),
		median(func(w wait) time.Duration { return w.p99 }),
		median(func(w wait) time.Duration { return w.p999 }))
}
