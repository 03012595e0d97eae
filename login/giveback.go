package login

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/adaptivethrottler/throttler"
)

// A success gives back the last failures of the same account, from the same
// device or address, so that typos do not use up the limits that an office
// shares. They are few, and of the last minute, so that an insider who guesses
// at colleagues' names gains next to nothing when these log in.
//
// Failures are kept in the memory of the process that counted them. If it
// forgets one, that stays counted until it expires.
//
// The alarm takes back what it has counted for them a little longer: a CAPTCHA
// takes time.
const (
	giveBackMax    = 4
	giveBackWithin = time.Minute
	uncountWithin  = 10 * time.Minute
	maxMistyped    = 10_000 // accounts
)

// A mistake is an attempt that has failed or was challenged.
type mistake struct {
	at      time.Time
	attempt throttler.Decision
	failure throttler.Decision
	rule    throttler.Rule              // the conditions of attempt that are given back
	uncount func(context.Context) error // takes back what the alarm has counted; may be nil
}

// mistakes are the last failures of each account.
type mistakes struct {
	mu     sync.Mutex
	recent *simplelru.LRU[string, []mistake]
}

func newMistakes() mistakes {
	recent, _ := simplelru.NewLRU[string, []mistake](maxMistyped, nil) // fails on a size below 1
	return mistakes{recent: recent}
}

// add remembers m.
func (ms *mistakes) add(who string, m mistake) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	made, _ := ms.recent.Get(who)
	made = append(made[max(0, len(made)-giveBackMax+1):], m)
	ms.recent.Add(who, slices.Clone(made))
}

// take removes the mistakes of who and returns those within uncountWithin.
func (ms *mistakes) take(who string) []mistake {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	made, _ := ms.recent.Get(who)
	ms.recent.Remove(who)
	return slices.DeleteFunc(made, func(m mistake) bool { return time.Since(m.at) >= uncountWithin })
}

// who returns the key of p's mistakes: the exact spelling of a name, on a
// device or else at an address.
func (p party) who() string {
	from := p.device.value
	if from == "" {
		from = p.address.value
	}
	return from + "#" + p.variant + "#" + p.name
}

// mistaken remembers that a has failed or, if failure is nil, was challenged.
func (a *Attempt) mistaken(failure *throttler.Decision, uncount func(context.Context) error) {
	m := mistake{at: time.Now(), uncount: uncount}
	if failure != nil {
		var back []throttler.Condition
		for _, c := range a.plan.limits {
			if c.Name != byName && c.Name != byKnown || a.guard.limits().account.Max > 0 {
				back = append(back, c)
			}
		}
		m.attempt, m.failure, m.rule = a.decided, *failure, a.guard.rule(back)
	}
	if a.party.name != "" {
		a.guard.mistakes.add(a.party.who(), m)
	}
}

// giveBack cancels p's mistakes for all limits but Name and Known, or of Codes for
// all, and for the alarm. It starts with the newest: in that order a leaky bucket
// refunds all.
func (g *Guard) giveBack(ctx context.Context, p party) error {
	var errs []error
	for _, m := range slices.Backward(g.mistakes.take(p.who())) {
		errs = append(errs, together(
			func() error { return g.giveBackLimits(ctx, m) },
			func() error {
				if m.uncount == nil {
					return nil
				}
				return m.uncount(ctx)
			},
		))
	}
	return errors.Join(errs...)
}

// giveBackLimits cancels m for the limits, if it is recent.
func (g *Guard) giveBackLimits(ctx context.Context, m mistake) error {
	if len(m.rule.Either) == 0 || time.Since(m.at) >= giveBackWithin {
		return nil
	}
	return together(
		func() error { return g.throttler.CancelOnly(ctx, m.attempt, m.rule) },
		func() error { return g.throttler.Cancel(ctx, m.failure) },
	)
}
