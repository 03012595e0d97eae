package login

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A process sums up the failures that the alarm counts. An attempt that begins
// reports them, at most every siegePeriod, while the attempt itself is counted. So
// does one that was taken over when it has failed, since the process may begin none.
const (
	siegePeriod = 5 * time.Second
	siegeStale  = time.Minute // findings older than this are found anew

	maxOpenGuesses = 4096
	maxLapsed      = 32   // attempts past their lease in one report
	maxScopes      = 1024 // watched by a process
	maxLooks       = 32   // scopes in one report
)

// The defaults of a [Guard]'s alarm.
const (
	DefaultSiegeFloor   = 100
	DefaultSiegeCeiling = 20_000
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

	mu     sync.Mutex
	next   time.Time // when the next report is due
	scopes map[netip.Prefix]*scope
	open   []*guess          // attempts under way, the oldest first
	handed map[string]*guess // those that were handed over, by their id
	news   []Siege           // of which the application is to be told
	ahead  time.Duration     // how far another process's clock is, if the application is to be told
	told   bool              // of a clock
}

// A scope is what the alarm watches: all networks together (the zero Prefix), or
// one network that fails more than its share.
type scope struct {
	network  netip.Prefix
	failures int                           // not reported yet; negative: more were taken back
	learn    time.Time                     // do not learn before
	todo     []func(context.Context) error // for the next report
	found    time.Time                     // when todo and last were found
	last     Siege
}

// everywhere is the scope of all networks.
var everywhere netip.Prefix

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

// A guess is an attempt whose password is being looked at.
type guess struct {
	party party
	at    time.Time
	ended atomic.Bool

	listed bool   // it lapses if it is not ended
	handed string // its id, if it was handed over; guarded by siege.mu
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
		s.shift()
	}
	g := &guess{party: p, at: time.Now()}
	if g.listed = len(s.open) < maxOpenGuesses; g.listed {
		s.open = append(s.open, g)
	}
	return g
}

// shift removes the oldest open guess, and returns it and its id if it was
// handed over. The caller holds s.mu.
func (s *siege) shift() (first *guess, handed string) {
	first = s.open[0]
	s.open = s.open[1:]
	delete(s.handed, first.handed)
	return first, first.handed
}

// A report is what a process tells the others.
type report struct {
	lapsed []lapse
	looks  []look
}

// A lapse is an attempt past its lease, to be counted as a failure.
type lapse struct {
	party  party
	handed string // the id of an attempt that another process may have ended
}

// A look is the part of a report about one scope.
type look struct {
	scope    *scope
	failures int
	learns   bool                          // this process may learn what is usual
	atOnce   bool                          // do what is found at once: the next report may be far
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
	var r report
	for _, watched := range s.watched() {
		r.looks = append(r.looks, watched.look(now, ceiling))
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
	slices.SortFunc(scopes, func(a, b *scope) int { return a.found.Compare(b.found) })
	scopes = scopes[:min(len(scopes), maxLooks-1)]
	return append(scopes, s.scope(everywhere))
}

// look takes what s has to report.
func (s *scope) look(now time.Time, ceiling int) look {
	stale := now.Sub(s.found) > siegeStale
	if stale {
		s.todo = nil
	}
	l := look{
		scope: s, todo: s.todo,
		failures: min(max(s.failures, 0), ceiling),
		learns:   !now.Before(s.learn),
		atOnce:   stale && !s.found.IsZero(),
	}
	s.failures, s.todo = min(s.failures, 0), nil
	return l
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

// learnsAfter keeps this process from learning about a scope for wait.
func (s *siege) learnsAfter(about *scope, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	about.learn = time.Now().Add(wait)
}

// set stores what a report has found about a scope, and what the next one is to
// do. A single network that is quiet again is forgotten.
func (s *siege) set(about *scope, found Siege, todo []func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if about.last.On != found.On {
		s.news = append(s.news, found)
	}
	about.last, about.todo, about.found = found, todo, time.Now()
	if !found.On && about.failures <= 0 && len(todo) == 0 && about.network != everywhere {
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

// tell returns of what the application is to be told, once.
func (s *siege) tell() (news []Siege, ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news, ahead = s.news, s.ahead
	s.news, s.ahead = nil, 0
	return news, ahead
}

func (g *Guard) siegeFloor() int { return cmp.Or(g.SiegeFloor, DefaultSiegeFloor) }
func (g *Guard) siegeCeiling() int {
	return cmp.Or(g.SiegeCeiling, max(DefaultSiegeCeiling, g.siegeFloor()))
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

// open makes a, which passed, count as a failure unless it is ended in time.
func (g *Guard) open(a *Attempt) {
	if g.alarmed(a) {
		a.guess = g.siege.opened(a.party)
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
