package rulefile

import (
	"cmp"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// This file reads how a condition counts: algorithm, and the keys that go with it.

// algorithms are the algorithms by their names in a file.
var algorithms = map[string]throttler.Algorithm{
	"window": throttler.SlidingWindow, "": throttler.SlidingWindow, "bucket": throttler.LeakyBucket,
	"in-flight": throttler.InFlight, "calendar": throttler.Calendar,
}

// counting sets the Algorithm of c, and how long its hits count.
func (p *parsing) counting(path string, raw *conditionYAML, c *throttler.Condition) {
	p.oneOf(path+".algorithm", raw.Algorithm, "window", "bucket", "in-flight", "calendar")
	c.Algorithm = algorithms[raw.Algorithm]
	if c.Algorithm != throttler.InFlight && raw.Lease != "" {
		p.problem(path+".lease", "only hits of algorithm: in-flight have a lease")
	}
	if c.Algorithm != throttler.Calendar && raw.Anchor != 0 {
		p.problem(path+".anchor", "only periods of algorithm: calendar have an anchor")
	}
	if c.Algorithm != throttler.Calendar && raw.Zone != "" {
		p.problem(path+".zone", "only periods of algorithm: calendar have a zone")
	}
	switch c.Algorithm {
	case throttler.InFlight:
		c.TTL = p.lease(path, raw)
	case throttler.Calendar:
		c.Period = p.period(path, raw)
	default:
		if _, ok := periods[raw.Per]; ok {
			p.problem(path+".per", "a %s is for algorithm: calendar: want 30s, 5m, 12h, 7d", raw.Per)
			return
		}
		c.TTL = p.duration(path+".per", raw.Per)
	}
}

// lease returns the lease of a condition in flight.
func (p *parsing) lease(path string, raw *conditionYAML) time.Duration {
	if raw.Per != "" {
		p.problem(path+".per", "max is how many are under way at once: want lease instead, for how long one counts unless it is renewed")
		return 0
	}
	if raw.Lease == "" {
		p.problem(path, "no lease: want for how long one counts unless it is renewed")
	}
	return p.duration(path+".lease", raw.Lease)
}

// needsEnds adds a problem for a rule that limits what is in flight and is for
// proxies, which do not tell when a request has ended.
func (p *parsing) needsEnds(path string, r *Rule) {
	for i := range r.conditions {
		if r.conditions[i].Algorithm == throttler.InFlight && !r.selector.apiOnly {
			p.problem(at(path, i)+".algorithm", "a proxy does not tell when a request has ended: add for: {api: true} to the rule, for programs that acquire and release")
		}
	}
}

// Lease returns for how long the hits in flight of r count unless they are renewed:
// the shortest lease of its conditions, or 0 if none is in flight.
func (r *Rule) Lease() (shortest time.Duration) {
	for i := range r.conditions {
		if c := &r.conditions[i]; c.Algorithm == throttler.InFlight && (shortest == 0 || c.TTL < shortest) {
			shortest = c.TTL
		}
	}
	return shortest
}

// banOf returns the length of the first ban of a condition, and how long its hits count,
// at most. The ban is 0 if there is none.
func (r *Rule) banOf(i int) (ban, counted time.Duration) {
	c := &r.conditions[i]
	if ban = cmp.Or(c.Lockout, r.template.Lockout); c.Algorithm == throttler.InFlight || ban < 0 {
		return 0, 0
	}
	switch {
	case c.Algorithm != throttler.Calendar:
		return ban, c.TTL
	case c.Period.Unit == throttler.Week:
		return ban, 7 * day
	case c.Period.Unit == throttler.Month:
		return ban, 31 * day
	}
	return ban, day
}

// inUnits returns a duration as a file has it: 1h, 10m, 1m30s.
func inUnits(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Shadow reports whether r lets every request pass.
func (r *Rule) Shadow() bool { return r.template.Shadow }
