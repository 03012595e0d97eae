package login

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
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

	maxOpenGuesses = 4096
	maxLapsed      = 32   // attempts past their lease in one report
	maxScopes      = 1024 // watched by a process
	maxLooks       = 32   // scopes in one report

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

// A siege is what this process knows of failures over all names. The zero value
// is ready for use.
type siege struct {
	active atomic.Bool // there is a siege

	mu       sync.Mutex
	next     time.Time // when the next report is due
	scopes   map[netip.Prefix]*scope
	loggedIn *simplelru.LRU[string, time.Time] // when a name was counted
	open     []*guess                          // attempts under way, the oldest first
	handed   map[string]*guess                 // those that were handed over, by their id
	news     []Siege                           // of which the application is to be told
	ahead    time.Duration                     // how far another process's clock is, if the application is to be told
	told     bool                              // of a clock
}

// A scope is what the alarm watches: all networks together (the zero Prefix), or
// one network that fails more than its share.
type scope struct {
	network   netip.Prefix
	failures  int       // not reported yet; negative: more were taken back
	successes int       // not reported yet
	looked    time.Time // when last was found
	seen      time.Time // when there last was a siege
	last      Siege
}

// everywhere is the scope of all networks.
var everywhere netip.Prefix

// value returns the value of the records of s.
func (s *scope) value() string {
	if s.network == everywhere {
		return ""
	}
	return s.network.String()
}

// scope returns the scope of network, or nil if there are too many. There is always
// one of everywhere. The caller holds s.mu.
func (s *siege) scope(network netip.Prefix) *scope {
	if found := s.scopes[network]; found != nil {
		return found
	}
	if s.scopes == nil {
		s.scopes = make(map[netip.Prefix]*scope)
	}
	if len(s.scopes) >= maxScopes && network != everywhere {
		return nil
	}
	made := &scope{network: network}
	s.scopes[network] = made
	return made
}

// count counts n failures in the scope of network, for the next report. It takes
// -n back if n is negative.
func (s *siege) count(network netip.Prefix, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 && s.scopes[network] == nil {
		return
	}
	if counted := s.scope(network); counted != nil {
		counted.failures += n
	}
}

// countSuccess counts that p has logged in, for the next report.
func (s *siege) countSuccess(p party) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loggedIn == nil {
		s.loggedIn, _ = simplelru.NewLRU[string, time.Time](2*siegeCeiling, nil) // fails on a size below 1
	}
	if at, found := s.loggedIn.Get(p.name); p.name == "" || found && now.Sub(at) < siegeWindow {
		return
	}
	s.loggedIn.Add(p.name, now)
	s.scope(everywhere).successes++
	if one := s.scopes[provider(p.addr)]; one != nil && one.network != everywhere {
		one.successes++
	}
}

// A report is what a process tells the others.
type report struct {
	lapsed []lapse
	looks  []look
}

// A look is the part of a report about one scope.
type look struct {
	scope               *scope
	failures, successes int
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
	var r report
	for _, one := range s.watched() {
		r.looks = append(r.looks, look{one, min(max(one.failures, 0), ceiling), min(one.successes, ceiling)})
		one.failures, one.successes = min(one.failures, 0), 0
	}
	for len(s.open) > 0 && len(r.lapsed) < maxLapsed {
		if first := s.open[0]; !first.ended.Load() && now.Sub(first.at) < lease {
			break
		}
		if first, handed := s.shift(); first.end() {
			r.lapsed = append(r.lapsed, lapse{first.party, handed})
		}
	}
	return r, true
}

// watched returns the scopes that a report looks at: all networks together, and
// those single ones that something is known of, the longest unseen first. The
// caller holds s.mu.
func (s *siege) watched() []*scope {
	scopes := []*scope{}
	for network, one := range s.scopes {
		if network != everywhere {
			scopes = append(scopes, one)
		}
	}
	slices.SortFunc(scopes, func(a, b *scope) int { return a.looked.Compare(b.looked) })
	scopes = scopes[:min(len(scopes), maxLooks-1)]
	return append(scopes, s.scope(everywhere))
}

// set decides whether there is a siege, by what a report has found about a scope. A
// single network that did not fail within the hour is forgotten.
func (s *siege) set(about *scope, failures, threshold int) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if failures >= threshold || now.Sub(about.seen) < siegeLasts && 2*failures >= threshold {
		about.seen = now
	}
	found := Siege{On: now.Sub(about.seen) < siegeLasts, Failures: failures, Threshold: threshold, Network: about.network}
	if about.last.On != found.On {
		s.news = append(s.news, found)
	}
	about.last, about.looked = found, now
	if !found.On && failures == 0 && about.failures <= 0 && about.network != everywhere {
		delete(s.scopes, about.network)
	}
	active := false
	for _, one := range s.scopes {
		active = active || one.last.On
	}
	s.active.Store(active)
}

// besieges reports whether strangers from network are to be asked for more.
func (s *siege) besieges(network netip.Prefix) bool {
	if !s.active.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range []*scope{s.scopes[everywhere], s.scopes[network]} {
		if one != nil && one.last.On {
			return true
		}
	}
	return false
}

// threshold returns the threshold of all networks that was last found, or 0.
func (s *siege) threshold() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.scopes[everywhere]; all != nil {
		return all.last.Threshold
	}
	return 0
}

// compare notes that another process's clock is ahead of this one's.
func (s *siege) compare(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ahead > clockDiffer && !s.told {
		s.ahead, s.told = ahead, true
	}
}

// tell returns of what the application is to be told, once.
func (s *siege) tell() (news []Siege, ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news, ahead = s.news, s.ahead
	s.news, s.ahead = nil, 0
	return news, ahead
}

func (g *Guard) siegeFloor() int   { return cmp.Or(g.SiegeFloor, defaultLimits.SiegeFloor) }
func (g *Guard) siegeCeiling() int { return max(siegeCeiling, g.siegeFloor()) }
func (g *Guard) noAlarm() bool     { return g.SiegeFloor < 0 }

// threshold returns the failures an hour that begin a siege of s.
func (g *Guard) threshold(s *scope, successes int) int {
	t := min(max(g.siegeFloor(), successes/2), g.siegeCeiling())
	if s.network != everywhere {
		t = max(t, 2*g.siege.threshold()/siegeShare)
	}
	return t
}

// ring calls [Guard.Alarm] if a siege has begun or ended, and [Guard.ClockSkew].
func (g *Guard) ring(ctx context.Context) {
	news, ahead := g.siege.tell()
	for _, found := range news {
		if g.Alarm != nil {
			g.Alarm(ctx, found)
		}
	}
	if ahead > 0 && g.ClockSkew != nil {
		g.ClockSkew(ctx, ahead)
	}
}

// alarmed reports whether the alarm counts a if it fails.
func (g *Guard) alarmed(a *Attempt) bool {
	return !g.noAlarm() && !a.party.exempt && !a.decided.WouldBlock
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
	if g.siege.besieges(provider(p.addr)) {
		steps = append(steps, func() error {
			known, _ := g.knownFrom(ctx, p) // ctx has not ended yet
			stranger = len(known) == 0
			return nil
		})
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

// report makes the report if one is due and a was taken over.
func (a *Attempt) report(ctx context.Context) {
	if a.handed == "" || a.guard.noAlarm() {
		return
	}
	if r, due := a.guard.siege.due(a.guard.siegeCeiling()); due {
		a.guard.lookOut(ctx, r)
	}
	a.guard.ring(ctx)
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

// lookOut makes the report r.
func (g *Guard) lookOut(ctx context.Context, r report) {
	var steps []func() error
	for _, l := range r.lapsed {
		steps = append(steps, func() error { return g.countLapse(ctx, l) })
	}
	for _, l := range r.looks {
		steps = append(steps, func() error { return g.lookAt(ctx, l) })
	}
	together(steps...) // what fails is found again
}

// lookAt reports what was counted in a scope, and finds out whether there is a siege.
// If the backend fails, that stays as it was.
func (g *Guard) lookAt(ctx context.Context, l look) error {
	add, read := g.siegeRule(), g.siegeRule()
	for name, n := range map[string]int{"failures": l.failures, "successes": l.successes} {
		c := throttler.Condition{Name: name, Value: l.scope.value(), Max: 2 * g.siegeCeiling(), TTL: siegeWindow, Cost: n}
		if n > 0 {
			add.Either = append(add.Either, c)
		} else {
			read.Either = append(read.Either, c)
		}
	}
	if l.scope.network == everywhere {
		read.Either = append(read.Either, clock)
		if len(add.Either) > 0 {
			add.Either = append(add.Either, clock)
		}
	}
	var counted, found throttler.Decision
	ask := func(d *throttler.Decision, rule throttler.Rule, how func(context.Context, throttler.Rule) (throttler.Decision, error)) func() error {
		return func() (err error) {
			if len(rule.Either) > 0 {
				*d, err = how(ctx, rule)
			}
			return err
		}
	}
	err := together(ask(&counted, add, g.throttler.Authorize), ask(&found, read, g.throttler.Peek))
	if err != nil || !g.answered(counted.Err) || !g.answered(found.Err) {
		return err
	}
	held := map[string]int{}
	for _, o := range counted.Outcomes {
		held[o.Name] = o.Limit - o.Remaining // a report that does not fit counts as a full record
	}
	for _, o := range found.Outcomes {
		held[o.Name] = heldBefore(o)
	}
	g.siege.compare(time.Duration(held[clock.Name]))
	g.siege.set(l.scope, min(held["failures"], g.siegeCeiling()), g.threshold(l.scope, held["successes"]))
	return nil
}

// heldBefore returns the number of hits in the record of o, of a Peek, whose outcome
// includes one more hit.
func heldBefore(o throttler.Outcome) int {
	if o.Blocked {
		return o.Limit
	}
	return o.Limit - o.Remaining - 1
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
