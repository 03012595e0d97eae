package login

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The alarm.
//
// An attack on many names from many addresses stays below every limit. Only the
// number of failures over all names shows it. These records of identifier
// "…-siege", which all processes share, count them:
//
//   - "name" and "network" hold what one name and one network have contributed
//     in the last hour, at most a 20th of the floor each. Failures beyond that
//     do not count. So an alarm takes at least 20 networks and 20 names.
//   - "failures" holds the failures that count, for an hour.
//   - "usual" holds the threshold, as a leaky bucket. Its level is the binary
//     logarithm of threshold/floor, in units of an octave/80. It leaks a unit
//     an hour. An hour with more than a third of the threshold adds a net 10
//     units, so the threshold follows the busiest tenth of all hours. The
//     bucket is full at the ceiling, so no slow ramp gets beyond it.
//   - "hour" lets one process an hour add to "usual".
//   - "alarm" is banned while the alarm lasts, so that all processes agree.
//
// A process sums up its failures. An attempt that begins reports them, at most
// every siegePeriod, while the attempt itself is counted.
const (
	siegePeriod = 5 * time.Second
	siegeWindow = time.Hour
	siegeStale  = time.Minute      // findings older than this are dropped
	siegeLasts  = 10 * time.Minute // after it was last seen
	siegeShare  = 20               // the least number of names and of networks

	octave       = 80 // units of "usual" for a threshold of twice the size
	learnStep    = 11 // units that a busy hour adds to "usual", of which 1 leaks
	learnInSiege = 2  // the same in a siege
	busyShare    = 3  // an hour is busy from threshold/busyShare failures

	maxOpenGuesses = 4096
	maxLapsed      = 32 // attempts past their lease in one report
)

// The defaults of a [Guard]'s alarm.
const (
	DefaultSiegeFloor   = 100
	DefaultSiegeCeiling = 2000
)

// A Siege tells [Guard.Alarm] that a siege has begun or ended.
type Siege struct {
	// On says that a siege has begun. False: it has ended.
	On bool

	// Failures is the number of failed attempts that were counted in the last
	// hour, over all names and processes. Of names and networks that fail often
	// only a part is counted.
	Failures int

	// Threshold is the number of failures an hour that begins a siege now. A
	// siege ends 10 minutes after the failures fall below half of it.
	Threshold int
}

// A siege is what this process knows of failures over all names. The zero value
// is ready for use.
type siege struct {
	active atomic.Bool // there is a siege

	mu       sync.Mutex
	next     time.Time                     // when the next report is due
	learn    time.Time                     // do not learn before
	failures int                           // not reported yet
	open     []*guess                      // attempts under way, the oldest first
	todo     []func(context.Context) error // for the next report
	found    time.Time                     // when todo and last were found
	last     Siege
	rung     bool // the On that the application was last told
}

// A guess is an attempt whose password is being looked at.
type guess struct {
	party party
	at    time.Time
	ended atomic.Bool
}

// end reports whether this call is the first to end g. g may be nil.
func (g *guess) end() bool {
	return g != nil && g.ended.CompareAndSwap(false, true)
}

// opened remembers an attempt of p until it or its lease ends: an application
// may never call Fail.
func (s *siege) opened(p party) *guess {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) > 0 && s.open[0].ended.Load() {
		s.open = s.open[1:]
	}
	g := &guess{party: p, at: time.Now()}
	if len(s.open) < maxOpenGuesses {
		s.open = append(s.open, g)
	}
	return g
}

// A report is what a process tells the others.
type report struct {
	failures int
	lapsed   []*guess                      // past their lease: to be counted as failures
	todo     []func(context.Context) error // done instead of a look at the state
}

// due returns the report if it is time for one. The caller must then make it.
func (s *siege) due(ceiling int) (report, bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) {
		return report{}, false
	}
	s.next = now.Add(siegePeriod)
	if now.Sub(s.found) > siegeStale {
		s.todo = nil
	}
	r := report{failures: min(s.failures, ceiling), todo: s.todo}
	s.failures, s.todo = 0, nil
	for len(s.open) > 0 && len(r.lapsed) < maxLapsed {
		first := s.open[0]
		if !first.ended.Load() && now.Sub(first.at) < lease {
			break
		}
		s.open = s.open[1:]
		if first.end() {
			r.lapsed = append(r.lapsed, first)
		}
	}
	return r, true
}

// count counts a failure, for the next report.
func (s *siege) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures++
}

// learns reports whether this process may learn what is usual.
func (s *siege) learns() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.learn)
}

// learnsAfter keeps this process from learning for wait.
func (s *siege) learnsAfter(wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learn = time.Now().Add(wait)
}

// set stores what a report has found, and what the next one is to do.
func (s *siege) set(found Siege, todo []func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.todo, s.found = found, todo, time.Now()
	s.active.Store(found.On)
}

// changed returns the last finding, and once for each change of On whether the
// application is to be told.
func (s *siege) changed() (Siege, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.rung != s.last.On
	s.rung = s.last.On
	return s.last, changed
}

func (g *Guard) siegeFloor() int { return or(g.SiegeFloor, DefaultSiegeFloor) }
func (g *Guard) siegeCeiling() int {
	return or(g.SiegeCeiling, max(DefaultSiegeCeiling, g.siegeFloor()))
}
func (g *Guard) noAlarm() bool { return g.SiegeFloor < 0 }

// validateSiege returns the error of invalid options of the alarm.
func (g *Guard) validateSiege() error {
	const largest = throttler.MaxHits / 2
	floor, ceiling := g.siegeFloor(), g.siegeCeiling()
	switch {
	case g.noAlarm():
		return nil
	case floor < siegeShare || floor > largest:
		return invalid("SiegeFloor", floor, fmt.Sprintf("%d to %d, 0 or negative", siegeShare, largest))
	case ceiling < floor || ceiling > largest:
		return invalid("SiegeCeiling", ceiling, fmt.Sprintf("%d (SiegeFloor) to %d, or 0", floor, largest))
	}
	return nil
}

// ring calls [Guard.Alarm] if a siege has begun or ended.
func (g *Guard) ring(ctx context.Context) {
	if g.Alarm == nil {
		return
	}
	if found, changed := g.siege.changed(); changed {
		g.Alarm(ctx, found)
	}
}

// open makes a, which passed, count as a failure unless it is ended in time.
func (g *Guard) open(a *Attempt) {
	if !g.noAlarm() && !a.party.exempt && !a.decided.WouldBlock {
		a.guess = g.siege.opened(a.party)
	}
}

// alert calls begin for an attempt by p. At the same time it makes the report,
// if one is due, and during a siege finds out whether p is a stranger.
func (g *Guard) alert(ctx context.Context, p party, begin func() (*Attempt, error)) (a *Attempt, err error) {
	if g.noAlarm() {
		return begin()
	}
	stranger := false
	steps := []func() error{}
	if r, due := g.siege.due(g.siegeCeiling()); due {
		steps = append(steps, func() error { g.lookOut(ctx, r); return nil })
	}
	if g.siege.active.Load() {
		steps = append(steps, func() error { stranger = !g.isKnown(ctx, p); return nil })
	}
	if len(steps) == 0 {
		return begin()
	}
	err = together(append(steps, func() (err error) { a, err = begin(); return err })...)
	if a != nil {
		a.Siege = stranger && !a.Known
	}
	return a, err
}

// isKnown reports whether p is known from one of its origins.
func (g *Guard) isKnown(ctx context.Context, p party) bool {
	rule, possible := g.familiar(p)
	if !possible {
		return false
	}
	d, err := g.throttler.Peek(ctx, rule)
	for i := range d.Outcomes {
		if err == nil && d.Outcomes[i].Err == nil && d.Outcomes[i].Remaining == 0 {
			return true
		}
	}
	return false
}

// siegeRule returns a rule of conditions that refuses nothing.
func (g *Guard) siegeRule(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: or(g.Identifier, DefaultIdentifier) + "-siege", Either: conditions, Shadow: true}
}

// countGuess counts a failure of p, unless its name or network has contributed
// its share.
func (g *Guard) countGuess(ctx context.Context, p party) error {
	share := g.siegeFloor() / siegeShare
	rule := g.siegeRule(
		throttler.Condition{Name: "name", Value: p.name, Max: share, TTL: siegeWindow},
		throttler.Condition{Name: "network", Value: provider(p.addr), Max: share, TTL: siegeWindow},
	)
	rule.CountAuthorizedOnly = true // a network beyond its share stores no records of names
	d, err := g.throttler.Authorize(ctx, rule)
	if err == nil && !d.WouldBlock && g.answered(d) {
		g.siege.count()
	}
	return err
}

// provider returns the network that addr contributes to: about as much as one
// owner can easily have.
func provider(addr netip.Addr) string {
	bits := 16
	if addr.Is6() {
		bits = 32
	}
	network, err := addr.Prefix(bits)
	if err != nil {
		return "" // there is no address
	}
	return network.String()
}

// answered reports whether d comes from the backend or its fallback.
func (g *Guard) answered(d throttler.Decision) bool {
	return d.Err == nil || g.throttler.Fallback != nil
}

// The conditions of the alarm's shared state.
func (g *Guard) siegeFailures(n int) throttler.Condition {
	return throttler.Condition{Name: "failures", Max: 2 * g.siegeCeiling(), TTL: siegeWindow, Cost: n}
}

func (g *Guard) siegeUsual(n int) throttler.Condition {
	units := g.siegeUnits() + learnStep
	return throttler.Condition{
		Name: "usual", Max: units, TTL: time.Duration(units) * time.Hour,
		Algorithm: throttler.LeakyBucket, Cost: n,
	}
}

var (
	siegeHour  = throttler.Condition{Name: "hour", Max: 1, TTL: time.Hour}
	siegeAlarm = throttler.Condition{Name: "alarm", Max: 1, TTL: time.Minute}
)

// siegeUnits returns the level of "usual" at which the threshold is the
// ceiling.
func (g *Guard) siegeUnits() int {
	return int(math.Ceil(octave * math.Log2(float64(g.siegeCeiling())/float64(g.siegeFloor()))))
}

// threshold returns the failures an hour that begin a siege.
func (g *Guard) threshold(level int) int {
	t := float64(g.siegeFloor()) * math.Exp2(float64(level)/octave)
	return min(int(t), g.siegeCeiling())
}

// lookOut makes the report r. It also does what the last report left to do or,
// if that is nothing, finds out whether there is a siege. It does not do both,
// since the attempt that waits for it would take longer. If the backend fails,
// the state stays as it is.
func (g *Guard) lookOut(ctx context.Context, r report) {
	steps := make([]func() error, 0, 2+len(r.lapsed)+len(r.todo))
	for _, lapsed := range r.lapsed {
		steps = append(steps, func() error { return g.countGuess(ctx, lapsed.party) })
	}
	for _, do := range r.todo {
		steps = append(steps, func() error { return do(ctx) })
	}
	var counted, state throttler.Decision
	steps = append(steps, func() (err error) {
		ask := g.throttler.Peek
		if r.failures > 0 {
			ask = g.throttler.Authorize
		}
		counted, err = ask(ctx, g.siegeRule(g.siegeFailures(r.failures)))
		return err
	})
	if len(r.todo) > 0 {
		together(steps...) // a step that fails is found again if it is still needed
		return
	}
	steps = append(steps, func() (err error) {
		state, err = g.throttler.Peek(ctx, g.siegeRule(g.siegeUsual(0), siegeAlarm))
		return err
	})
	if err := together(steps...); err != nil || !g.answered(counted) || !g.answered(state) {
		return
	}
	failures := held(counted.Outcomes[0])
	if r.failures == 0 {
		failures = heldBefore(counted.Outcomes[0])
	}
	g.judge(min(failures, g.siegeCeiling()), heldBefore(state.Outcomes[0]), state.Outcomes[1])
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

// judge decides whether there is a siege, and what the next report must write.
func (g *Guard) judge(failures, level int, alarm throttler.Outcome) {
	threshold := g.threshold(level)
	seen := failures >= threshold || alarm.Banned && 2*failures >= threshold
	on := seen || alarm.Banned
	var todo []func(context.Context) error
	if seen && alarm.RetryAfter < siegeLasts/2 {
		todo = append(todo, func(ctx context.Context) error {
			return g.throttler.Ban(ctx, g.siegeRule(siegeAlarm), siegeLasts)
		})
	}
	if busyShare*failures >= threshold && g.siege.learns() {
		todo = append(todo, func(ctx context.Context) error { return g.learnUsual(ctx, on) })
	}
	g.siege.set(Siege{On: on, Failures: failures, Threshold: threshold}, todo)
}

// learnUsual raises the threshold after a busy hour, unless another process has
// done so.
func (g *Guard) learnUsual(ctx context.Context, inSiege bool) error {
	step := learnStep
	if inSiege {
		step = learnInSiege
	}
	rule := g.siegeRule(siegeHour, g.siegeUsual(step))
	rule.Shadow, rule.CountAuthorizedOnly = false, true
	d, err := g.throttler.Authorize(ctx, rule)
	wait := siegeHour.TTL
	if err == nil && d.Outcomes[0].Blocked {
		wait = d.Outcomes[0].RetryAfter
	}
	g.siege.learnsAfter(wait)
	return err
}
