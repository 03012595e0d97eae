package pages

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The limit of all pictures.
const (
	limit = 10
	ttl   = time.Minute
)

// A limiter is called at its time and says whether it lets the call through.
type limiter func() bool

// run makes calls at their times, and returns which get through, and when.
func run(t *testing.T, calls []time.Duration, newLimiter func() limiter) (through Line) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// A bubble's time begins at a full minute, as those of fixedWindow do.
		start, allow := time.Now(), newLimiter()
		for _, at := range calls {
			time.Sleep(time.Until(start.Add(at)))
			if allow() {
				through = append(through, at)
			}
		}
	})
	return through
}

// authorizing returns a limiter that authorizes by rule, of this package.
func authorizing(rule throttler.Rule) func() limiter {
	return func() limiter {
		th := throttler.New(memstore.New())
		return func() bool {
			d, err := th.Authorize(context.Background(), rule)
			return err == nil && d.Status == throttler.Authorized
		}
	}
}

// fixedWindow is an algorithm that throttler does not have: a count that starts
// again every full minute.
func fixedWindow() limiter {
	var window time.Time
	count := 0
	return func() bool {
		if w := time.Now().Truncate(ttl); w != window {
			window, count = w, 0
		}
		count++
		return count <= limit
	}
}

// waiting returns when calls get through that wait for it.
func waiting(t *testing.T, calls []time.Duration, rule throttler.Rule) (through Line) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		th, start := throttler.New(memstore.New()), time.Now()
		passed := make(chan time.Duration, len(calls))
		for _, at := range calls {
			time.Sleep(time.Until(start.Add(at)))
			go func() {
				_, err := th.Wait(t.Context(), rule)
				assert.NoError(t, err)
				passed <- time.Since(start)
			}()
		}
		for range calls {
			through = append(through, <-passed)
		}
	})
	slices.Sort(through)
	return through
}

func rule(algorithm throttler.Algorithm) throttler.Rule {
	return throttler.Rule{Identifier: "picture", Either: []throttler.Condition{
		{Name: "calls", Max: limit, TTL: ttl, Algorithm: algorithm},
	}}
}

// most returns the most calls of a line in any minute.
func most(line Line) int {
	n := 0
	for i := range line {
		for j := i; j < len(line) && line[j]-line[i] < ttl; j++ {
			n = max(n, j-i+1)
		}
	}
	return n
}

// every returns the times from one to another, a pause apart.
func every(pause, from, to time.Duration) (times []time.Duration) {
	for at := from; at < to; at += pause {
		times = append(times, at)
	}
	return times
}

// random returns n times up to span, from a source that is always the same.
func random(n int, span time.Duration) (times []time.Duration) {
	source := rand.NewPCG(1, 7)
	for range n {
		times = append(times, time.Duration(source.Uint64()%uint64(span/time.Millisecond))*time.Millisecond)
	}
	slices.Sort(times)
	return times
}

// limits is the picture of the ways to count.
func limits(t *testing.T) *Picture {
	const span = 4 * time.Minute
	p := &Picture{
		Title:   "What a fixed window, a sliding window and a leaky bucket let through of the same calls",
		Columns: 2,
		Keys: []Key{
			{"Fixed window", "counts from each full minute on; for comparison, not in this package"},
			{"Sliding window", "counts the last 60 s, whenever they began"},
			{"Leaky bucket", "takes a burst of 10, then one every 6 s"},
		},
		Charts: []Chart{
			{Title: "Steady", Subtitle: "a call every 10 s", Calls: every(10*time.Second, 0, span)},
			{Title: "Bursts", Subtitle: "30 calls in 6 s, at the turn of a minute", Calls: append(
				every(200*time.Millisecond, 57*time.Second, 63*time.Second),
				every(200*time.Millisecond, 177*time.Second, 183*time.Second)...)},
			{Title: "At the limit", Subtitle: "40 calls at random times", Calls: random(40, span)},
			{Title: "Double the limit", Subtitle: "a call every 3 s", Calls: every(3*time.Second, 0, span)},
		},
	}
	for i := range p.Charts {
		c := &p.Charts[i]
		c.Span, c.Top = span, 50
		c.Lines = []Line{
			run(t, c.Calls, fixedWindow),
			run(t, c.Calls, authorizing(rule(throttler.SlidingWindow))),
			run(t, c.Calls, authorizing(rule(throttler.LeakyBucket))),
		}
		c.Notes = []string{
			Figures("let through", len(c.Lines[0]), len(c.Lines[1]), len(c.Lines[2])),
			Figures("most in any 60 s", most(c.Lines[0]), most(c.Lines[1]), most(c.Lines[2])),
		}
	}
	return p
}

// excess is the picture of what becomes of calls beyond the limit.
func excess(t *testing.T) *Picture {
	calls := every(3*time.Second, 0, 10*time.Minute)
	banned := rule(throttler.SlidingWindow)
	banned.Lockout = time.Minute
	growing := banned
	growing.LockoutGrowth = 2
	lines := []Line{
		waiting(t, calls, rule(throttler.SlidingWindow)),
		run(t, calls, authorizing(rule(throttler.SlidingWindow))),
		run(t, calls, authorizing(banned)),
		run(t, calls, authorizing(growing)),
	}
	return &Picture{
		Title:   "What becomes of calls beyond the limit: they wait, are refused, or lead to bans",
		Columns: 1,
		Keys: []Key{
			{"Wait", "none is refused, each gets through in its turn"},
			{"No lockout", "refused until the window has room"},
			{"Lockout of 1 min", "the first call that is refused closes the limit for a minute"},
			{"Growing lockout", "for 1 min, then 2, then 4, then 8"},
		},
		Charts: []Chart{{
			Title:    "Double the limit, for 10 minutes",
			Subtitle: "a call every 3 s, at most 10 in 60 s",
			Span:     20 * time.Minute, Top: 200,
			Calls: calls, Lines: lines,
			Notes: []string{Figures("let through", len(lines[0]), len(lines[1]), len(lines[2]), len(lines[3]))},
		}},
	}
}

func TestPicturesAreDrawnFromTheseRuns(t *testing.T) {
	requireShows(t, "../../docs/limits.svg", limits(t).SVG())
	requireShows(t, "../../docs/excess.svg", excess(t).SVG())
}

// What the pictures are there to show.
func TestLimitersKeepTheirPromisesInThePictures(t *testing.T) {
	for _, c := range limits(t).Charts {
		require.LessOrEqual(t, most(c.Lines[1]), limit, c.Title)
		require.LessOrEqual(t, most(c.Lines[2]), 2*limit, c.Title)
	}
	bursts := limits(t).Charts[1]
	require.Equal(t, 2*limit, most(bursts.Lines[0]), "the fixed window lets twice the limit through in 6 s")
}
