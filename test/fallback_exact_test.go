package throttler_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A countedHit is what one call has counted in a condition.
type countedHit struct {
	at       time.Time
	cost     int
	fallback bool
}

// shareOf returns how many hits of a Max the fallback allows of its own, with that FallbackShare.
func shareOf(limit int, part float64) int {
	if part == 0 {
		return limit
	}
	return max(1, int(part*float64(limit)))
}

// holdsMore reports whether a window of c, or its bucket or period, has ever held more than most
// of hits.
func holdsMore(c throttler.Condition, most int, hits []countedHit) bool {
	if c.Algorithm == throttler.LeakyBucket {
		interval := c.TTL / time.Duration(most)
		var score time.Time
		for _, h := range hits {
			if score.Before(h.at) {
				score = h.at
			}
			if score = score.Add(time.Duration(h.cost) * interval); score.Sub(h.at) > c.TTL+10*time.Microsecond {
				return true
			}
		}
		return false
	}
	for i := range hits {
		n := 0
		for _, h := range hits[i:] {
			if c.Algorithm == throttler.Calendar {
				const day = 24 * time.Hour
				if !h.at.Truncate(day).Equal(hits[i].at.Truncate(day)) {
					break
				}
			} else if h.at.Sub(hits[i].at) >= c.TTL {
				break
			}
			n += h.cost
		}
		if n > most {
			return true
		}
	}
	return false
}

// A fallback that begins with what was last seen never admits more than its share, nor more than
// Max with what was seen. A call that it blocks is authorized at its RetryAfter, and not a
// nanosecond before. A ban ends when it was said to, and only a new hit can bring the next one.
func TestTheFallbackIsExactAndTellsWhenItOpens(t *testing.T) {
	check(t, func(rt *rapid.T) {
		part := rapid.SampledFrom([]float64{0, 0.25, 0.5, 0.75}).Draw(rt, "share")
		th, o := newCutOff(part)
		scale := rapid.SampledFrom([]int{1, 1, 200}).Draw(rt, "scale")
		var conditions []throttler.Condition
		for _, name := range []string{"a", "b"}[:rapid.IntRange(1, 2).Draw(rt, "conditions")] {
			c := condition(name, scale*rapid.IntRange(1, 8).Draw(rt, "max"), time.Duration(rapid.IntRange(1, 8).Draw(rt, "ttl"))*10*time.Second)
			c.Algorithm = rapid.SampledFrom([]throttler.Algorithm{
				throttler.SlidingWindow, throttler.LeakyBucket, throttler.InFlight, throttler.Calendar,
			}).Draw(rt, "algorithm")
			if c.Algorithm == throttler.Calendar {
				c.TTL = 0
			}
			conditions = append(conditions, c)
		}
		rule := throttler.Rule{Identifier: "test", CountAuthorizedOnly: rapid.Bool().Draw(rt, "atomic")}
		switch rapid.IntRange(0, 2).Draw(rt, "mode") {
		case 0:
			rule.Either = conditions
		case 1:
			rule.All = conditions
		default:
			rule.First = conditions
		}
		if rapid.IntRange(0, 2).Draw(rt, "lockout") == 0 {
			rule.Lockout = time.Duration(rapid.IntRange(1, 60).Draw(rt, "ban")) * time.Second
			rule.LockoutGrowth = float64(rapid.IntRange(0, 2).Draw(rt, "growth"))
		}
		most := 8 * scale
		for i := range conditions {
			most = min(most, conditions[i].Max)
		}
		counted := make([][]countedHit, len(conditions))
		call := func() throttler.Decision {
			for i := range conditions {
				c := &conditions[i]
				c.Cost, c.Least = scale*rapid.IntRange(1, most/scale).Draw(rt, "cost"), 0
				if c.Cost > 1 && rapid.Bool().Draw(rt, "partly") {
					c.Least = rapid.IntRange(1, c.Cost).Draw(rt, "least")
				}
			}
			d := authorize(t, th, rule)
			for i, out := range d.Outcomes {
				if out.Cost > 0 {
					counted[i] = append(counted[i], countedHit{time.Now(), out.Cost, o.off.Load()})
				}
			}
			return d
		}
		sleep := func() {
			time.Sleep(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "sleep")) * time.Millisecond)
		}
		for range rapid.IntRange(0, 10).Draw(rt, "seen") {
			call()
			sleep()
		}
		o.off.Store(true)
		for range rapid.IntRange(1, 10).Draw(rt, "calls") {
			d := call()
			for _, o := range d.Outcomes {
				require.Equal(rt, o.Blocked || o.Remaining == 0, o.RetryAfter > 0, "%+v", o)
			}
			if d.Status == throttler.Blocked {
				require.Positive(rt, d.RetryAfter)
				within := true // the share
				for i, c := range conditions {
					needed := c.Cost
					if c.Least > 0 {
						needed = c.Least
					}
					within = within && needed <= shareOf(conditions[i].Max, part)
				}
				start := time.Now()
				time.Sleep(d.RetryAfter - 1)
				require.Equal(rt, throttler.Blocked, peek(t, th, rule).Status, "%+v: %+v", d, rule)
				time.Sleep(time.Nanosecond)
				if within {
					require.Equal(rt, throttler.Authorized, peek(t, th, rule).Status, "after %v: %+v", time.Since(start), d)
				}
			}
			sleep()
		}
		for i, c := range conditions {
			if rule.Lockout > 0 {
				continue // after a ban counting starts anew
			}
			require.False(rt, holdsMore(c, c.Max, counted[i]), "with what was seen: %+v: %+v", c, counted[i])
			var own []countedHit
			for _, h := range counted[i] {
				if h.fallback {
					own = append(own, h)
				}
			}
			require.False(rt, holdsMore(c, shareOf(c.Max, part), own), "of its own: %+v: %+v", c, own)
		}
	})
}
