package login

import (
	"context"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The alarm.
//
// An attack on many names from many addresses stays below every limit. Only the
// number of failures over all names shows it. These records of identifier
// "…-siege", which all processes share, count them. Those of a single network
// that fails more than its share have its prefix as their value.
//
//   - "by-name" and "by-network" hold what one name and one network have
//     contributed in the last hour, at most a 20th of the threshold each. So an
//     alarm takes at least 20 networks and 20 names. Failures of a network
//     beyond that count against the network alone, as if it were a site of its
//     own.
//   - "failures" holds the failures that count, for an hour.
//   - "threshold" is a leaky bucket. Its level is the binary logarithm of
//     threshold/floor, in units of an octave/168. It leaks a unit an hour, so
//     the threshold halves in a week. A busy hour raises it towards three times
//     the failures of that hour.
//   - "history" is banned for as long as there is one.
//   - "young" is banned for the first 60 hours: there is little history to
//     compare with. After an hour of siege the threshold is then raised at once.
//   - "wait" is banned for the first hour, and for the first hour of a siege.
//     Nothing is learned meanwhile.
//   - "raised" is what was added to the threshold within a day. After the first
//     60 hours it is bounded, so that no slow ramp goes unnoticed.
//   - "hour" lets one process an hour raise the threshold.
//   - "alarm" is banned while the alarm lasts, so that all processes agree.
//   - "clock" is the latest time on any process's clock. A report with failures
//     sets it, and memcached keeps it for some seconds.
const (
	siegeWindow = time.Hour
	siegeLasts  = 10 * time.Minute // after it was last seen
	siegeShare  = 20               // the least number of names and of networks
	shareHits   = 40               // that a share has in its record, whatever it is
	siegeFactor = 3                // threshold/usual

	octave        = 168 // units of "threshold" for twice the size, of which 1 leaks an hour
	raisedInDay   = 47  // what leaks in a day, and a tenth more failures
	raisedInSiege = 15  // in an hour: twice the size in 12 hours of siege
	raisedYoung   = 30  // in an hour without a siege
	headroom      = 12  // of the level above the ceiling

	youngFor    = 60 * time.Hour // from Friday evening to Monday morning
	siegeWaits  = time.Hour
	historyKept = 60 * day // and renewed when half has passed

	clockRange  = time.Hour
	clockDiffer = 10 * time.Second // more than this is reported
)

// siegeRule returns a rule of conditions that refuses nothing.
func (g *Guard) siegeRule(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: g.identifier() + "-siege", Either: conditions, Shadow: true}
}

// value returns the value of the records of s.
func (s *scope) value() string {
	if s.network == everywhere {
		return ""
	}
	return s.network.String()
}

// The conditions of the alarm's shared state.

func (g *Guard) siegeFailures(s *scope, n int) throttler.Condition {
	return throttler.Condition{Name: "failures", Value: s.value(), Max: 2 * g.siegeCeiling(), TTL: siegeWindow, Cost: n}
}

func (g *Guard) siegeThreshold(s *scope, units int) throttler.Condition {
	most := g.mostUnits() + 1
	return throttler.Condition{
		Name: "threshold", Value: s.value(), Max: most, TTL: time.Duration(most) * time.Hour,
		Algorithm: throttler.LeakyBucket, Cost: units,
	}
}

func (s *scope) raised(units int) throttler.Condition {
	return throttler.Condition{
		Name: "raised", Value: s.value(), Max: raisedInDay, TTL: day,
		Algorithm: throttler.LeakyBucket, Cost: units,
	}
}

func (s *scope) hour() throttler.Condition {
	return throttler.Condition{Name: "hour", Value: s.value(), Max: 1, TTL: time.Hour}
}

// banned returns a condition of which only the ban is used.
func (s *scope) banned(name string) throttler.Condition {
	return throttler.Condition{Name: name, Value: s.value(), Max: 1, TTL: time.Minute}
}

// clock is a leaky bucket whose hits leak within a nanosecond. So it is empty at
// the latest time on any clock.
var clock = throttler.Condition{
	Name: "clock", Max: int(min(int64(clockRange), math.MaxInt)), TTL: clockRange, Algorithm: throttler.LeakyBucket,
}

// A situation is what the records of a scope say, beside the failures.
type situation struct {
	level  int           // of "threshold"
	raises int           // units that "raised" has room for
	young  time.Duration // how much longer
	wait   time.Duration // how much longer
	old    time.Duration // how much longer there is a history
	alarm  throttler.Outcome
	ahead  time.Duration // how far the latest clock is
}

// stateRule returns the rule whose Peek readState reads.
func (g *Guard) stateRule(s *scope) throttler.Rule {
	rule := g.siegeRule(g.siegeThreshold(s, 0), s.raised(0), s.banned("alarm"), s.banned("history"), s.banned("young"), s.banned("wait"))
	if s.network == everywhere {
		rule.Either = append(rule.Either, clock)
	}
	return rule
}

func readState(d throttler.Decision) situation {
	o := d.Outcomes
	s := situation{
		level: heldBefore(o[0]), raises: o[1].Limit - heldBefore(o[1]),
		alarm: o[2], old: bannedFor(o[3]), young: bannedFor(o[4]), wait: bannedFor(o[5]),
	}
	if len(o) > 6 {
		s.ahead = time.Duration(heldBefore(o[6]))
	}
	return s
}

func bannedFor(o throttler.Outcome) time.Duration {
	if !o.Banned {
		return 0
	}
	return o.RetryAfter
}

// siegeUnits returns the least level of "threshold" at which the threshold is n
// or more.
func (g *Guard) siegeUnits(n int) int {
	return int(math.Ceil(octave * math.Log2(max(1, float64(n)/float64(g.siegeFloor())))))
}

// mostUnits returns the highest level of "threshold".
func (g *Guard) mostUnits() int { return g.siegeUnits(g.siegeCeiling()) + headroom }

// threshold returns the failures an hour that begin a siege.
func (g *Guard) threshold(s *scope, level int) int {
	t := min(int(float64(g.siegeFloor())*math.Exp2(float64(level)/octave)), g.siegeCeiling())
	if s.network != everywhere {
		t = max(t, 2*g.siege.threshold()/siegeShare)
	}
	return t
}

// An alarmed is a failure that the alarm has counted, and its part of the shares
// of its name and network.
type alarmed struct {
	network netip.Prefix
	counted bool
	share   throttler.Decision
}

// countGuess counts a failure of p. If its network has contributed its share, the
// failure counts against the network alone; if its name has, not at all.
func (g *Guard) countGuess(ctx context.Context, p party) (alarmed, error) {
	share := max(g.siege.threshold(), g.siegeFloor()) / siegeShare
	part := throttler.Condition{Max: shareHits, TTL: siegeWindow, Cost: max(1, shareHits/share)}
	byNetwork, byName := part, part
	network := provider(p.addr)
	byNetwork.Name, byNetwork.Value = "by-network", network.String()
	byName.Name, byName.Value = "by-name", p.name
	rule := g.siegeRule(byNetwork)
	if p.name != "" {
		rule.Either = append(rule.Either, byName)
	}
	rule.CountAuthorizedOnly = true // a network beyond its share stores no records of names
	ask := g.throttler.Authorize
	if share > shareHits && rand.IntN(share) >= shareHits {
		ask = g.throttler.Peek // one hit stands for several failures
	}
	d, err := ask(ctx, rule)
	counted := alarmed{share: d, counted: true}
	switch {
	case err != nil || !g.answered(d.Err):
		return alarmed{}, err
	case d.Outcomes[0].Blocked:
		counted.network = network
	case d.WouldBlock:
		return alarmed{}, nil
	}
	g.siege.count(counted.network, 1)
	return counted, nil
}

// countLapse counts an attempt that was never ended.
func (g *Guard) countLapse(ctx context.Context, l lapse) error {
	if l.handed != "" {
		d, err := g.throttler.Peek(ctx, g.endedRule(l.handed))
		if err != nil || d.Status == throttler.Blocked {
			return err // another process has ended it
		}
	}
	_, err := g.countGuess(ctx, l.party)
	return err
}

// uncount takes back what the alarm has counted.
func (g *Guard) uncount(ctx context.Context, a alarmed) error {
	if !a.counted {
		return nil
	}
	g.siege.count(a.network, -1)
	return g.throttler.Cancel(ctx, a.share)
}

// provider returns the network that addr contributes to: about as much as one
// owner can easily have.
func provider(addr netip.Addr) netip.Prefix {
	bits := 16
	if addr.Is6() {
		bits = 32
	}
	network, err := addr.Prefix(bits)
	if err != nil {
		return everywhere // there is no address
	}
	return network
}

// answered reports whether what has err was decided by the backend or its fallback.
func (g *Guard) answered(err error) bool {
	return err == nil || g.throttler.Fallback != nil
}

// lookOut makes the report r.
func (g *Guard) lookOut(ctx context.Context, r report) {
	var steps []func() error
	for _, l := range r.lapsed {
		steps = append(steps, func() error { return g.countLapse(ctx, l) })
	}
	for _, l := range r.looks {
		steps = append(steps, func() error { return g.lookAt(ctx, l) })
	}
	together(steps...) // a step that fails is found again if it is still needed
}

// lookAt reports the failures of a scope. It also does what the last report left
// to do or, if that is nothing, finds out whether there is a siege. It does not
// do both, since the attempt that waits for it would take longer. If the backend
// fails, the state stays as it is.
func (g *Guard) lookAt(ctx context.Context, l look) error {
	var counted, found throttler.Decision
	count := func() (err error) {
		counted, err = g.report(ctx, l)
		return err
	}
	if len(l.todo) > 0 {
		return together(append(bind(ctx, l.todo), count)...)
	}
	err := together(count, func() (err error) {
		found, err = g.throttler.Peek(ctx, g.stateRule(l.scope))
		return err
	})
	if err != nil || !g.answered(counted.Err) || !g.answered(found.Err) {
		return err
	}
	failures := held(counted.Outcomes[0])
	if l.failures == 0 {
		failures = heldBefore(counted.Outcomes[0])
	}
	now := readState(found)
	g.siege.compare(now.ahead)
	siege, todo := g.judge(l, min(failures, g.siegeCeiling()), now)
	if l.atOnce {
		err, todo = together(bind(ctx, todo)...), nil
	}
	g.siege.set(l.scope, siege, todo)
	return err
}

// bind returns steps with ctx.
func bind(ctx context.Context, steps []func(context.Context) error) (bound []func() error) {
	for _, step := range steps {
		bound = append(bound, func() error { return step(ctx) })
	}
	return bound
}

// report adds the failures of l to the record of its scope, or reads it if there
// are none.
func (g *Guard) report(ctx context.Context, l look) (throttler.Decision, error) {
	rule := g.siegeRule(g.siegeFailures(l.scope, l.failures))
	if l.failures == 0 {
		return g.throttler.Peek(ctx, rule)
	}
	if l.scope.network == everywhere {
		rule.Either = append(rule.Either, clock)
	}
	return g.throttler.Authorize(ctx, rule)
}

// compare notes that another process's clock is ahead of this one's.
func (s *siege) compare(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ahead > clockDiffer && !s.told {
		s.ahead, s.told = ahead, true
	}
}

// held returns the number of hits in the record of o, after an Authorize. A
// report that does not fit counts as a full record. That is at least the
// ceiling: "failures" has room for twice the ceiling, and a report is no larger
// than it.
func held(o throttler.Outcome) int {
	if o.Blocked {
		return o.Limit
	}
	return o.Limit - o.Remaining
}

// heldBefore is held for a Peek, whose outcome includes one more hit.
func heldBefore(o throttler.Outcome) int {
	if o.Blocked {
		return o.Limit
	}
	return o.Limit - o.Remaining - 1
}

// judge decides whether there is a siege, and what is to be written then.
func (g *Guard) judge(l look, failures int, now situation) (Siege, []func(context.Context) error) {
	threshold := g.threshold(l.scope, now.level)
	seen := failures >= threshold || now.alarm.Banned && 2*failures >= threshold
	on := seen || now.alarm.Banned
	var todo []func(context.Context) error
	ban := func(name string, length time.Duration) {
		todo = append(todo, func(ctx context.Context) error {
			return g.throttler.Ban(ctx, g.siegeRule(l.scope.banned(name)), length)
		})
	}
	if seen && now.alarm.RetryAfter < siegeLasts/2 {
		ban("alarm", siegeLasts)
	}
	if seen && !now.alarm.Banned || now.old == 0 {
		ban("wait", siegeWaits)
	}
	if now.old == 0 {
		ban("young", youngFor)
	}
	if now.old < historyKept/2 {
		ban("history", historyKept)
	}
	if step, slow := g.step(failures, now, on); step > 0 && l.learns {
		todo = append(todo, func(ctx context.Context) error { return g.raise(ctx, l.scope, step, slow) })
	}
	return Siege{On: on, Failures: failures, Threshold: threshold, Network: l.scope.network}, todo
}

// step returns by how many units an hour with failures raises the threshold, and
// whether that counts against what a day may raise it by.
func (g *Guard) step(failures int, now situation, on bool) (units int, slow bool) {
	missing := min(g.siegeUnits(siegeFactor*failures), g.mostUnits()) - now.level
	switch young := now.young > 0; {
	case failures == 0 || now.old == 0 || now.wait > 0:
		return 0, false
	case young && on:
		return missing, false
	case young:
		return min(missing, raisedYoung), false
	case on:
		return min(missing, raisedInSiege), false
	}
	return min(missing, now.raises), true
}

// raise raises the threshold of s, unless another process has done so within
// the hour.
func (g *Guard) raise(ctx context.Context, s *scope, units int, slow bool) error {
	rule := g.siegeRule(s.hour(), g.siegeThreshold(s, units))
	if slow {
		rule.Either = append(rule.Either, s.raised(units))
	}
	rule.Shadow, rule.CountAuthorizedOnly = false, true
	d, err := g.throttler.Authorize(ctx, rule)
	wait := time.Hour
	if err == nil && d.Outcomes[0].Blocked {
		wait = d.Outcomes[0].RetryAfter
	}
	g.siege.learnsAfter(s, wait)
	return err
}
