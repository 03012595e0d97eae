package login

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A guess is an attempt whose password is being looked at. The alarm counts it as a
// failure if it is not ended: an application may never call Fail.
type guess struct {
	party party
	at    time.Time
	ended atomic.Bool

	listed bool   // it lapses if it is not ended
	handed string // its id, if it was handed over; guarded by siege.mu
}

// A lapse is an attempt past its lease, to be counted as a failure.
type lapse struct {
	party  party
	handed string // the id of an attempt that another process may have ended
}

// end reports whether this call is the first to end g. g may be nil.
func (g *guess) end() bool {
	return g != nil && g.ended.CompareAndSwap(false, true)
}

// open makes a, which passed, count as a failure unless it is ended in time.
func (g *Guard) open(a *Attempt) {
	if g.alarmed(a) {
		a.guess = g.siege.opened(a.party)
	}
}

// opened remembers an attempt of p until it or its lease ends.
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

// handOver returns the id of an attempt that is handed over: id, or a new one.
// If it is never ended, its guess lapses here.
func (s *siege) handOver(g *guess, id string) string {
	id = cmp.Or(id, rand.Text())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handed == nil {
		s.handed = make(map[string]*guess)
	}
	if g != nil && g.listed {
		g.handed, s.handed[id] = id, g
	}
	return id
}

// takeOver returns the guess of an attempt that was handed over. If that was in
// another process, the guess lapses there, and nowhere else.
func (s *siege) takeOver(id string, p party) *guess {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.handed[id]; own != nil {
		delete(s.handed, id)
		own.handed = ""
		return own
	}
	return &guess{party: p}
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
