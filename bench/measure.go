package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A work is a kind of calls.
type work struct {
	name    string
	about   string // its values and their limit
	limit   limit
	refused bool // the expected answer

	// values returns the function that yields the values of a caller's calls.
	values func(caller int) func() string

	used string // a value whose limit is used up in advance, unless it is empty
}

// named returns w with another name, that says what it is about.
func (w work) named(name string) work {
	w.name, w.about = name, ""
	return w
}

var (
	spreadWork = work{
		name: "spread", about: "4,000 values at random, none of which comes near its limit of 1,000 in 100 ms",
		limit: limit{1000, 100 * time.Millisecond}, values: anyOf(spreadNames),
	}
	newWork = work{
		name: "new", about: "every value is new, with a limit of 50 a minute",
		limit: limit{50, time.Minute}, values: func(int) func() string {
			return func() string { return "n" + strconv.FormatInt(freshNames.Add(1), 36) }
		},
	}
	hotWork = work{
		name: "hot", about: "one value for all callers that never reaches its limit of 4,000 in 1 ms (for buckets 4,000,000 in 1 s)",
		limit: limit{4000, time.Millisecond}, values: one("hot"),
	}
	fullWork = usedUp("full", "one value for all callers whose 50 a day are used up", limit{50, day}, "full")

	// A crowd calls for one value at once, each caller 4 times, and for another
	// one in the next round.
	crowded = work{name: "crowd", limit: limit{50, day}, values: func(int) func() string {
		calls := -1
		return func() string {
			calls++
			return "crowd" + strconv.Itoa(calls/crowdCalls)
		}
	}}
)

const crowdCalls = 4

// usedUp is calls for one value that are refused.
func usedUp(name, about string, l limit, value string) work {
	return work{name: name, about: about, limit: l, refused: true, values: one(value), used: value}
}

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
	call := l.caller()
	for i := range n + 1 {
		allowed, err := call(context.Background(), value)
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
	decisions       int
	answered        time.Duration // until all calls were answered
	wall            time.Duration // until all were flushed, too
	half, p99, p999 time.Duration // that half, 99 % and 99.9 % of the decisions took at most, seen by their callers
	cpu, storeCPU   time.Duration // of this process, or of a service and its store
	allocs          uint64
	late            int // decisions that came after the system's deadline

	// Of a rush.
	admitted, errors int
}

// each returns the inverse of the decisions a second.
func (r round) each() time.Duration { return r.per(r.wall) }

// per returns d for each decision.
func (r round) per(d time.Duration) time.Duration { return d / time.Duration(max(1, r.decisions)) }

// A crowd is the callers of one limiter.
type crowd struct {
	limiter limiter
	refused bool
	callers []*caller
}

type caller struct {
	allow      allow
	value      func() string
	ownCtx     bool // makes a ctx for each call, as a server does for each request
	background bool // calls with context.Background() all the same
	deadline   time.Duration

	times          []time.Duration // of the decisions
	late           int
	admitted, lost int
	err            error
}

func newCrowd(l limiter, s system, w work, callers int) *crowd {
	c := &crowd{limiter: l, refused: w.refused}
	for i := range callers {
		c.callers = append(c.callers, &caller{
			allow: l.caller(), value: w.values(i),
			ownCtx: s.backend != inProcess, background: s.background, deadline: s.deadline,
		})
	}
	return c
}

// A turn is how a crowd calls in a round.
type turn func(c *crowd, ctx context.Context, slice time.Duration) (round, error)

// run lets all callers call, one decision after the other, until slice has
// passed. A wrong answer or an error ends it, so that no limiter is measured
// that does not limit.
func (c *crowd) run(ctx context.Context, slice time.Duration) (round, error) {
	return c.all(ctx, func(ctx context.Context, one *caller, begin time.Time) {
		for last := time.Now(); last.Sub(begin) < slice && ctx.Err() == nil && one.call(c.refused, last); {
			last = last.Add(one.times[len(one.times)-1])
		}
	})
}

// arriving has calls come at a steady rate, whether those before them have been
// answered or not, as the requests of many users do. Whoever stalls for a moment
// delays all that come meanwhile. Callers in turn, which wait for each answer,
// would hardly notice that. A call counts from the time at which it is due. One
// that has not begun when twice the slice has passed never does, and counts as
// if it had ended then.
func arriving(rate int) turn {
	return func(c *crowd, ctx context.Context, slice time.Duration) (round, error) {
		apart := time.Second / time.Duration(rate)
		var next atomic.Int64
		return c.all(ctx, func(ctx context.Context, one *caller, begin time.Time) {
			for ctx.Err() == nil {
				after := time.Duration(next.Add(1)-1) * apart
				if after >= slice {
					return
				}
				time.Sleep(time.Until(begin.Add(after)))
				if now := time.Since(begin); now > 2*slice {
					one.times = append(one.times, now-after)
				} else if !one.call(c.refused, begin.Add(after)) {
					return
				}
			}
		})
	}
}

// inTime is t with timers that are finer than what is measured.
func inTime(t turn) turn {
	return func(c *crowd, ctx context.Context, slice time.Duration) (round, error) {
		defer fineTimers()()
		return t(c, ctx, slice)
	}
}

// rush lets each caller make its calls for one value, and counts what is
// admitted.
func (c *crowd) rush(ctx context.Context, _ time.Duration) (round, error) {
	return c.all(ctx, func(_ context.Context, one *caller, _ time.Time) {
		for range crowdCalls {
			switch allowed, err := one.ask(); {
			case err != nil:
				one.lost++
			case allowed:
				one.admitted++
			}
			one.times = append(one.times, 0)
		}
	})
}

// all has all callers make calls at once, from now on, and flushes. The first
// error of a caller ends the ctx of the others.
func (c *crowd) all(ctx context.Context, calls func(context.Context, *caller, time.Time)) (round, error) {
	runtime.GC() // collect the garbage of other systems first
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, storeCPU := c.cpu()
	begin := time.Now()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	var callers sync.WaitGroup
	for _, one := range c.callers {
		one.times, one.late, one.admitted, one.lost = one.times[:0], 0, 0, 0
		callers.Go(func() {
			if calls(running, one, begin); one.err != nil {
				cancel()
			}
		})
	}
	callers.Wait()
	r := round{answered: time.Since(begin)}
	c.limiter.flush()
	r.wall = time.Since(begin)
	r.cpu, r.storeCPU = c.cpu()
	r.cpu, r.storeCPU = r.cpu-cpu, r.storeCPU-storeCPU
	runtime.ReadMemStats(&after)
	r.allocs = after.Mallocs - before.Mallocs
	return r, errors.Join(c.sum(&r), ctx.Err())
}

// cpu returns the processor time so far, of this process or of a service and
// its store.
func (c *crowd) cpu() (own, store time.Duration) {
	if c.limiter.cpu != nil {
		return c.limiter.cpu()
	}
	return processTime(), 0
}

// sum adds what the callers have noted to r, or returns the error of one.
func (c *crowd) sum(r *round) error {
	var times []time.Duration
	for _, one := range c.callers {
		if one.err != nil {
			return one.err
		}
		times = append(times, one.times...)
		r.late, r.admitted, r.errors = r.late+one.late, r.admitted+one.admitted, r.errors+one.lost
	}
	slices.Sort(times)
	r.decisions = len(times)
	r.half, r.p99, r.p999 = quantile(times, 1, 2), quantile(times, 99, 100), quantile(times, 999, 1000)
	return nil
}

// call makes a call, and notes how long after begin it was answered. It sets
// c.err and returns false if the call failed or its answer is not the one that
// is wanted.
func (c *caller) call(refused bool, begin time.Time) (ok bool) {
	allowed, err := c.ask()
	c.times = append(c.times, time.Since(begin))
	switch {
	case c.deadline > 0 && errors.Is(err, context.DeadlineExceeded):
		c.late++
	case err == nil && allowed == refused:
		c.err = fmt.Errorf("allowed is %t", allowed)
	default:
		c.err = err
	}
	return c.err == nil
}

// ask makes a call, with a ctx of its own that ends after it.
func (c *caller) ask() (bool, error) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	switch {
	case c.deadline > 0:
		ctx, cancel = context.WithTimeout(ctx, c.deadline)
	case c.ownCtx:
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	if c.background {
		ctx = context.Background()
	}
	return c.allow(ctx, c.value())
}

// quantile returns the least value of sorted that at least part of whole are not above, or 0
// if sorted is empty.
func quantile[T cmp.Ordered](sorted []T, part, whole int) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	return sorted[max(0, (len(sorted)*part+whole-1)/whole-1)]
}

// quartiles returns the first, second and third quartile of one value of each
// round.
func quartiles[Round any, T cmp.Ordered](rounds []Round, of func(Round) T) (low, median, high T) {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	slices.Sort(values)
	return quantile(values, 25, 100), quantile(values, 50, 100), quantile(values, 75, 100)
}
