package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A work is a kind of calls.
type work struct {
	name    string
	about   string // its values and their limit
	limit   limit
	allowed bool // the expected answer

	// values returns the function that yields the values of a caller's calls.
	values func(caller int) func() string

	// prepare makes calls in advance, unless it is nil.
	prepare func(limiter) error
}

var (
	spread = work{
		name: "spread", about: "4,000 values at random, none of which comes near its limit of 1,000 in 100 ms",
		limit: limit{1000, 100 * time.Millisecond}, allowed: true,
		values: anyOf(spreadNames),
	}
	fresh = work{
		name: "new", about: "every value is new, with a limit of 50 a minute",
		limit: limit{50, time.Minute}, allowed: true,
		values: func(int) func() string {
			return func() string { return "n" + strconv.FormatInt(freshNames.Add(1), 36) }
		},
	}
	hot = work{
		name: "hot", about: "one value for all callers that never reaches its limit of 4,000 in 1 ms (for buckets 4,000,000 in 1 s)",
		limit: limit{4000, time.Millisecond}, allowed: true,
		values: one("hot"),
	}
	full = work{
		name: "full", about: "one value for all callers whose 50 a day are used up",
		limit: limit{50, day}, allowed: false,
		values:  one("full"),
		prepare: func(l limiter) error { return use(l, "full", 50) },
	}
)

// works are for the systems with a server.
var works = []work{spread, fresh, hot, full}

// The works for the middlewares.
var (
	allowedRequests = work{
		name: "allowed", about: "10,000 addresses at random, none of which comes near its limit of 1,000 in 100 ms",
		limit: spread.limit, allowed: true,
		values: anyOf(addressNames),
	}
	refusedRequests = work{
		name: "refused", about: "one address for all callers whose 50 a day are used up",
		limit: full.limit, allowed: false,
		values:  one(addressNames[0]),
		prepare: func(l limiter) error { return use(l, addressNames[0], full.limit.Max) },
	}
)

var (
	spreadNames  = names(4000, func(i int) string { return fmt.Sprintf("value%04d", i) })
	addressNames = names(10_000, func(i int) string { return fmt.Sprintf("10.0.%d.%d:4711", i>>8, i&255) })
	freshNames   counter
)

func names(n int, name func(int) string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = name(i)
	}
	return all
}

// anyOf gives each caller random values, the same in each scene.
func anyOf(values []string) func(int) func() string {
	return func(caller int) func() string {
		random := rand.New(rand.NewPCG(uint64(caller), 0))
		return func() string { return values[random.IntN(len(values))] }
	}
}

func one(value string) func(int) func() string {
	return func(int) func() string { return func() string { return value } }
}

// use makes n calls for value that must be allowed, and one that must be
// refused.
func use(l limiter, value string, n int) error {
	allow := l.caller()
	for i := range n + 1 {
		allowed, err := allow(value)
		if err != nil {
			return err
		}
		l.flush()
		if want := i < n; allowed != want {
			return fmt.Errorf("call %d at a limit of %d: allowed is %t", i+1, n, allowed)
		}
	}
	return nil
}

// A round is the measurement of one system in one slice of time.
type round struct {
	decisions int
	wall      time.Duration // until all calls were done and flushed
	p99       time.Duration // of the time of a decision, seen by its caller
	cpu       time.Duration // of this process
	allocs    uint64
}

// each returns the inverse of the decisions a second.
func (r round) each() time.Duration { return r.wall / time.Duration(max(1, r.decisions)) }

// A crowd is the callers of one limiter.
type crowd struct {
	limiter limiter
	work    work
	callers []*caller
}

type caller struct {
	allow  func(string) (bool, error)
	value  func() string
	counts []time.Duration // the time of each decision
	err    error
}

func newCrowd(l limiter, w work, callers int) *crowd {
	c := &crowd{limiter: l, work: w}
	for i := range callers {
		c.callers = append(c.callers, &caller{allow: l.caller(), value: w.values(i)})
	}
	return c
}

// run lets all callers call, one decision after the other, until slice has
// passed. A wrong answer or an error ends it, so that no limiter is measured
// that does not limit.
func (c *crowd) run(ctx context.Context, slice time.Duration) (round, error) {
	runtime.GC() // collect the garbage of other systems first
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := processTime()
	begin := time.Now()
	c.all(ctx, func(ctx context.Context, one *caller) { one.run(ctx, begin.Add(slice), c.work.allowed) })
	r := round{wall: time.Since(begin), cpu: processTime() - cpu}
	runtime.ReadMemStats(&after)
	r.allocs = after.Mallocs - before.Mallocs
	counts, err := c.times()
	if err != nil {
		return round{}, err
	}
	r.decisions = len(counts)
	r.p99 = percentile(counts, 99)
	return r, ctx.Err()
}

// all has all callers make calls at once, and flushes. The first error of a caller ends
// the ctx of the others.
func (c *crowd) all(ctx context.Context, calls func(context.Context, *caller)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for _, one := range c.callers {
		running.Go(func() {
			if calls(ctx, one); one.err != nil {
				cancel()
			}
		})
	}
	running.Wait()
	c.limiter.flush()
}

// times returns the sorted times that the callers have noted, or the error of one.
func (c *crowd) times() ([]time.Duration, error) {
	var all []time.Duration
	for _, one := range c.callers {
		if one.err != nil {
			return nil, one.err
		}
		all = append(all, one.counts...)
	}
	slices.Sort(all)
	return all, nil
}

func (c *caller) run(ctx context.Context, until time.Time, want bool) {
	c.counts = c.counts[:0]
	for last := time.Now(); last.Before(until) && ctx.Err() == nil; {
		answered, ok := c.call(want)
		if !ok {
			return
		}
		c.counts = append(c.counts, answered.Sub(last))
		last = answered
	}
}

// call makes a call, and returns when it was answered. It sets c.err and returns false if
// the call failed or its answer is not the one that is wanted.
func (c *caller) call(want bool) (answered time.Time, ok bool) {
	allowed, err := c.allow(c.value())
	answered = time.Now()
	if err == nil && allowed != want {
		err = fmt.Errorf("allowed is %t", allowed)
	}
	c.err = err
	return answered, err == nil
}

// percentile returns the p-th percentile of sorted: see [quantile].
func percentile[T cmp.Ordered](sorted []T, p int) T { return quantile(sorted, p, 100) }

// quantile returns the least value of sorted that at least part of whole are not above, or 0
// if sorted is empty.
func quantile[T cmp.Ordered](sorted []T, part, whole int) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	return sorted[max(0, (len(sorted)*part+whole-1)/whole-1)]
}

// quartiles returns the first, second and third quartile of values.
func quartiles[T cmp.Ordered](values []T) (low, median, high T) {
	sorted := slices.Sorted(slices.Values(values))
	return percentile(sorted, 25), percentile(sorted, 50), percentile(sorted, 75)
}

// quartilesOf returns the quartiles of one value of each round.
func quartilesOf[Round any, T cmp.Ordered](rounds []Round, of func(Round) T) (low, median, high T) {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return quartiles(values)
}
