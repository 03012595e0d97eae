package login

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/adaptivethrottler/throttler"
)

// The alarm.
//
// An attack on many names from many addresses stays below every limit. Only the
// failures over all names show it, and that hardly any name logs in meanwhile: when
// people are busy, both grow. So a siege begins when, within an hour, half as many
// failures are counted as names have logged in, and never below a floor. There is
// nothing to learn, so no attack can teach it, and a site whose records are lost
// begins with the floor.
//
// These records of identifier "…-siege" are shared by all processes. Those of a
// single network that fails more than its share have its prefix as their value.
//
//   - "by-name" and "by-network" hold what one name and one network have
//     contributed in the last hour, at most a 20th of the threshold each. So an
//     alarm takes at least 20 networks and 20 names. Failures of a network
//     beyond that count against the network alone, as if it were a site of its
//     own.
//   - "failures" holds the failures that count, for an hour, and "successes" the names
//     that have logged in. A process counts a name once an hour, so that attackers
//     gain nothing by logging in to one account again and again.
//   - "clock" is the latest time on any process's clock. A report sets it, and
//     memcached keeps it for some seconds.
//
// A process sums up what it counts. An attempt that begins reports it, at most every
// siegePeriod, while the attempt itself is counted. So does one that was taken over
// when it has failed, since the process may begin none.
const (
	siegePeriod  = 5 * time.Second
	siegeWindow  = time.Hour
	siegeLasts   = 10 * time.Minute // after it was last seen
	siegeShare   = 20               // the least number of names and of networks
	shareHits    = 40               // that a share has in its record, whatever it is
	siegeCeiling = 20_000

	maxPending = 4096 // attempts of a process
	maxLapsed  = 32   // of these in one report
	maxScopes  = 32   // siegeShare networks beyond their share are a siege of all

	clockRange  = time.Hour
	clockDiffer = 10 * time.Second // more than this is reported
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

	// Network is the network that the siege comes from, if it comes from a
	// single one: an IPv4 /16 or an IPv6 /32. Failures are those beyond its
	// share, and [Attempt.Siege] is set for strangers from there. The zero
	// Prefix: the siege comes from many networks.
	Network netip.Prefix
}

// A siege is what this process knows of failures over all names.
type siege struct {
	mu       sync.Mutex
	next     time.Time // when the next report is due
	scopes   map[netip.Prefix]*scope
	loggedIn *simplelru.LRU[string, time.Time] // when a name was counted
	pending  []*Attempt                        // the oldest first: an application may never end one
	calls    []func(context.Context)           // to make of Alarm and ClockSkew
	skewed   bool                              // there was one of ClockSkew
}

// A scope is what the alarm watches: all networks together (the zero Prefix), or
// one network that fails more than its share.
type scope struct {
	network   netip.Prefix
	failures  int       // not reported yet; negative: more were taken back
	successes int       // not reported yet
	seen      time.Time // when there last was a siege
	last      Siege     // as last found
}

// everywhere is the scope of all networks.
var everywhere netip.Prefix

func newSiege() siege {
	loggedIn, _ := simplelru.NewLRU[string, time.Time](2*siegeCeiling, nil) // fails on a size below 1
	return siege{scopes: map[netip.Prefix]*scope{everywhere: {}}, loggedIn: loggedIn}
}

// count counts n failures in the scope of network, for the next report. It takes
// -n back if n is negative.
func (s *siege) count(network netip.Prefix, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scopes[network] == nil && len(s.scopes) < maxScopes {
		s.scopes[network] = &scope{network: network}
	}
	if counted := s.scopes[network]; counted != nil {
		counted.failures += n
	}
}

// countSuccess counts that p has logged in, for the next report.
func (s *siege) countSuccess(p party) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, found := s.loggedIn.Get(p.name); p.name == "" || found && now.Sub(at) < siegeWindow {
		return
	}
	s.loggedIn.Add(p.name, now)
	s.scopes[everywhere].successes++
	if one := s.scopes[provider(p.addr)]; one != nil && one.network != everywhere {
		one.successes++
	}
}

// besieges reports whether strangers from network are to be asked for more.
func (s *siege) besieges(network netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.scopes[network]
	return s.scopes[everywhere].last.On || one != nil && one.last.On
}

// begin remembers a, which begins. If it is not ended in time, it lapses.
func (s *siege) begin(a *Attempt) {
	a.alarms.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) > 0 && !s.pending[0].alarms.Load() {
		s.pending = s.pending[1:]
	}
	if len(s.pending) < maxPending {
		s.pending = append(s.pending, a)
	}
}

// handOver gives a an id to be handed over by. If it is never ended, it lapses here.
func (s *siege) handOver(a *Attempt, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.handed = id
}

// takeOver remembers a, which was handed over, in place of the attempt that it was. If
// that is another process's, it lapses there, and nowhere else.
func (s *siege) takeOver(a *Attempt) {
	a.alarms.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.pending, func(own *Attempt) bool { return own.handed == a.handed }); i >= 0 {
		s.pending[i] = a
	}
}

// lapse forgets the attempts that have ended or lapse, and returns the latter. The
// caller holds s.mu.
func (s *siege) lapse(now time.Time) (lapsed []*Attempt) {
	for len(s.pending) > 0 && len(lapsed) < maxLapsed {
		first := s.pending[0]
		if first.alarms.Load() && now.Sub(first.begun) < attemptTimeout {
			break
		}
		s.pending = s.pending[1:]
		if first.alarms.CompareAndSwap(true, false) {
			lapsed = append(lapsed, first)
		}
	}
	return lapsed
}

// share returns how many failures an hour of one name or network count.
func (g *Guard) share() int {
	g.siege.mu.Lock()
	defer g.siege.mu.Unlock()
	return max(g.siege.scopes[everywhere].last.Threshold, g.siegeFloor()) / siegeShare
}

func (g *Guard) siegeFloor() int   { return cmp.Or(g.Limits[bySiege].Max, defaultSiegeFloor) }
func (g *Guard) siegeCeiling() int { return max(siegeCeiling, g.siegeFloor()) }
func (g *Guard) noAlarm() bool     { return g.Limits[bySiege].Max < 0 }

// alarmed reports whether the alarm counts a if it fails.
func (g *Guard) alarmed(a *Attempt) bool {
	return !g.noAlarm() && !a.party.exempt && !a.decided.WouldBlock
}

// alert calls begin for an attempt by p. At the same time it makes the report,
// if one is due, and during a siege finds out whether p is a stranger.
func (g *Guard) alert(ctx context.Context, p party, begin func() (*Attempt, error)) (a *Attempt, err error) {
	stranger, steps := false, g.report(ctx)
	if g.siege.besieges(provider(p.addr)) {
		steps = append(steps, func() error {
			known, _ := g.knownFrom(ctx, p) // ctx has not ended yet
			stranger = len(known) == 0
			return nil
		})
	}
	err = together(append(steps, func() (err error) { a, err = begin(); return err })...)
	if a != nil {
		a.Siege = stranger && !a.Known
	}
	return a, err
}

// report makes the report if one is due and a was taken over.
func (a *Attempt) report(ctx context.Context) {
	if a.handed != "" {
		together(a.guard.report(ctx)...)
		a.guard.ring(ctx)
	}
}

// report returns the steps of a report, if one is due. They return no error: what one
// report does not find, the next one does.
func (g *Guard) report(ctx context.Context) (steps []func() error) {
	s, now, ceiling := &g.siege, time.Now(), g.siegeCeiling()
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.noAlarm() || now.Before(s.next) {
		return nil
	}
	s.next = now.Add(siegePeriod)
	for _, one := range s.scopes {
		failures, successes := min(max(one.failures, 0), ceiling), min(one.successes, ceiling)
		one.failures, one.successes = min(one.failures, 0), 0
		steps = append(steps, func() error { g.look(ctx, one, failures, successes); return nil })
	}
	for _, a := range s.lapse(now) {
		p, handed := a.party, a.handed
		steps = append(steps, func() error {
			if handed != "" {
				d, err := g.throttler.Peek(ctx, g.endedRule(handed))
				if err != nil || d.Status == throttler.Blocked {
					return nil // another process has ended it
				}
			}
			g.countGuess(ctx, p)
			return nil
		})
	}
	return steps
}

// ring makes the calls of [Guard.Alarm] and [Guard.ClockSkew].
func (g *Guard) ring(ctx context.Context) {
	g.siege.mu.Lock()
	calls := g.siege.calls
	g.siege.calls = nil
	g.siege.mu.Unlock()
	for _, call := range calls {
		call(ctx)
	}
}

// siegeRule returns a rule of conditions that refuses nothing.
func (g *Guard) siegeRule(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: g.identifier() + "-siege", Either: conditions, Shadow: true}
}

// clock is a leaky bucket whose hits leak within a nanosecond. So it is empty at
// the latest time on any clock.
var clock = throttler.Condition{
	Name: "clock", Max: int(min(int64(clockRange), math.MaxInt)), TTL: clockRange, Algorithm: throttler.LeakyBucket,
}

// look reports what was counted in a scope, and finds out whether there is a siege.
// If the backend fails, that stays as it was.
func (g *Guard) look(ctx context.Context, s *scope, failures, successes int) {
	add, read := g.siegeRule(), g.siegeRule()
	for name, n := range map[string]int{"failures": failures, "successes": successes} {
		c := throttler.Condition{Name: name, Max: 2 * g.siegeCeiling(), TTL: siegeWindow, Cost: n}
		if s.network != everywhere {
			c.Value = s.network.String()
		}
		if n > 0 {
			add.Either = append(add.Either, c)
		} else {
			read.Either = append(read.Either, c)
		}
	}
	var counted, found throttler.Decision
	var steps []func() error
	if len(add.Either) > 0 {
		add.Either = append(add.Either, clock)
		steps = append(steps, func() (err error) { counted, err = g.throttler.Authorize(ctx, add); return err })
	}
	read.Either = append(read.Either, clock)
	steps = append(steps, func() (err error) { found, err = g.throttler.Peek(ctx, read); return err })
	err := together(steps...)
	if err != nil || !g.answered(counted.Err) || !g.answered(found.Err) {
		return
	}
	held := map[string]int{}
	for _, o := range counted.Outcomes {
		held[o.Name] = o.Limit - o.Remaining // a report that does not fit counts as a full record
	}
	for _, o := range found.Outcomes {
		held[o.Name] = heldBefore(o)
	}
	g.conclude(s, min(held["failures"], g.siegeCeiling()), held["successes"], time.Duration(held[clock.Name]))
}

// conclude decides whether there is a siege, by what was found about a scope, and
// whether another process's clock is ahead of this one's. A single network that did not
// fail within the hour is forgotten.
func (g *Guard) conclude(about *scope, failures, successes int, ahead time.Duration) {
	threshold := min(max(g.siegeFloor(), successes/2), g.siegeCeiling())
	if about.network != everywhere {
		threshold = max(threshold, 2*g.share())
	}
	s, now := &g.siege, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if failures >= threshold || now.Sub(about.seen) < siegeLasts && 2*failures >= threshold {
		about.seen = now
	}
	found := Siege{On: now.Sub(about.seen) < siegeLasts, Failures: failures, Threshold: threshold, Network: about.network}
	if about.last.On != found.On && g.Alarm != nil {
		s.calls = append(s.calls, func(ctx context.Context) { g.Alarm(ctx, found) })
	}
	about.last = found
	if !found.On && failures == 0 && about.failures <= 0 && about.network != everywhere {
		delete(s.scopes, about.network)
	}
	if ahead > clockDiffer && !s.skewed && g.ClockSkew != nil {
		s.skewed = true
		s.calls = append(s.calls, func(ctx context.Context) { g.ClockSkew(ctx, ahead) })
	}
}

// countGuess counts a failure of p. If its network has contributed its share, the
// failure counts against the network alone; if its name has, not at all. uncount takes
// back what was counted; it is nil if nothing was.
func (g *Guard) countGuess(ctx context.Context, p party) (uncount func(context.Context) error, err error) {
	share := g.share()
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
	switch {
	case err != nil || !g.answered(d.Err):
		return nil, err
	case d.WouldBlock && !d.Outcomes[0].Blocked:
		return nil, nil
	case !d.WouldBlock:
		network = everywhere
	}
	g.siege.count(network, 1)
	return func(ctx context.Context) error {
		g.siege.count(network, -1)
		return g.throttler.Cancel(ctx, d)
	}, nil
}

// provider returns the network that addr contributes to: about as much as one
// owner can easily have.
func provider(addr netip.Addr) netip.Prefix {
	bits := 16
	if addr.Is6() {
		bits = 32
	}
	network, _ := addr.Prefix(bits) // of no address it is everywhere
	return network
}
