package throttler_test

import (
	"math"
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

// A besideModel is what the conditions of a rule hold, as far as they are no buckets.
type besideModel struct {
	conditions []throttler.Condition
	part       float64 // FallbackShare
	counted    [][]countedHit
}

// expiry returns when h expires, which condition i has counted.
func (m *besideModel) expiry(i int, h countedHit) time.Time {
	if c := m.conditions[i]; c.Algorithm != throttler.Calendar {
		return h.at.Add(c.TTL)
	}
	const day = 24 * time.Hour
	return h.at.Truncate(day).Add(day)
}

// room returns how many hits fit into condition i at a time: if it is the fallback that decides,
// beside those that were seen.
func (m *besideModel) room(i int, fallback bool, at time.Time) int {
	c, seen, own := m.conditions[i], 0, 0
	for _, h := range m.counted[i] {
		switch {
		case !m.expiry(i, h).After(at):
		case h.fallback:
			own += h.cost
		default:
			seen += h.cost
		}
	}
	if fallback {
		return min(c.Max-seen-own, shareOf(c.Max, m.part)-own)
	}
	return c.Max - seen
}

// until returns the time until n hits fit, which is that of an expiry.
func (m *besideModel) until(i int, fallback bool, n int) time.Duration {
	wait := time.Duration(math.MaxInt64)
	for _, h := range m.counted[i] {
		if at := m.expiry(i, h); at.After(time.Now()) && m.room(i, fallback, at) >= n {
			wait = min(wait, time.Until(at))
		}
	}
	return wait
}

// agrees requires that d has decided as m would, and notes what it has counted.
func (m *besideModel) agrees(t require.TestingT, d throttler.Decision, fallback bool) {
	for i, o := range d.Outcomes {
		c := m.conditions[i]
		room, needed := m.room(i, fallback, time.Now()), c.Cost
		if c.Least > 0 {
			needed = c.Least
		}
		cost := 0
		if needed <= room {
			cost = min(c.Cost, room)
		}
		exact := c.Algorithm != throttler.LeakyBucket
		if exact {
			require.Equal(t, []int{c.Max, cost, max(0, room-cost)}, []int{o.Limit, o.Cost, o.Remaining}, "%+v: %+v", c, m.counted[i])
			require.Equal(t, cost == 0, o.Blocked)
			require.Equal(t, fallback, o.Err != nil)
		}
		m.note(i, o, fallback)
		switch {
		case !exact || o.Blocked && fallback && needed > shareOf(c.Max, m.part): // it never fits
		case o.Blocked:
			require.Equal(t, m.until(i, fallback, needed), o.RetryAfter)
		case o.Remaining == 0:
			require.Equal(t, m.until(i, fallback, 1), o.RetryAfter)
		}
	}
}

// note notes what condition i has counted.
func (m *besideModel) note(i int, o throttler.Outcome, fallback bool) {
	if o.Cost > 0 {
		m.counted[i] = append(m.counted[i], countedHit{time.Now(), o.Cost, fallback})
	}
}

// A fallback that begins with what was last seen never admits more than its share, nor more than
// Max with what was seen. A call that it blocks is authorized at its RetryAfter, and not a
// nanosecond before. A ban ends when it was said to, and only a new hit can bring the next one.
// Where nothing is banned or rounded, each window, lease and period holds what a model holds. A server
// that flaps grants nothing more: what the fallback has counted in one outage counts in the next one.
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
		model := &besideModel{conditions, part, make([][]countedHit, len(conditions))}
		counted := model.counted
		simple := scale == 1 && rule.Lockout == 0 && rule.First == nil && !rule.CountAuthorizedOnly
		call := func() throttler.Decision {
			for i := range conditions {
				c := &conditions[i]
				c.Cost, c.Least = scale*rapid.IntRange(1, most/scale).Draw(rt, "cost"), 0
				if c.Cost > 1 && rapid.Bool().Draw(rt, "partly") {
					c.Least = rapid.IntRange(1, c.Cost).Draw(rt, "least")
				}
			}
			d := authorize(t, th, rule)
			if simple {
				model.agrees(rt, d, o.off.Load())
				return d
			}
			for i, out := range d.Outcomes {
				model.note(i, out, o.off.Load())
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
		flaps := false
		for range rapid.IntRange(1, 10).Draw(rt, "calls") {
			if rapid.IntRange(0, 3).Draw(rt, "flap") == 0 {
				flaps = true
				o.off.Store(false)
				call()
				o.off.Store(true)
			}
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
			require.False(rt, !flaps && holdsMore(c, c.Max, counted[i]), "with what was seen: %+v: %+v", c, counted[i])
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
