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
const (
	giveBackMax    = 4
	giveBackWithin = time.Minute
	maxMistyped    = 10_000 // accounts
)

// A mistake is a failed attempt.
type mistake struct {
	at      time.Time
	attempt throttler.Decision
	failure throttler.Decision
	rule    throttler.Rule // the conditions of attempt that are given back
}

// mistakes are the last failures of each account. The zero value is empty.
type mistakes struct {
	mu     sync.Mutex
	recent *simplelru.LRU[string, []mistake]
}

// add remembers m.
func (ms *mistakes) add(who string, m mistake) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.recent == nil {
		ms.recent, _ = simplelru.NewLRU[string, []mistake](maxMistyped, nil) // fails on a size below 1
	}
	made, _ := ms.recent.Get(who)
	made = append(made[max(0, len(made)-giveBackMax+1):], m)
	ms.recent.Add(who, slices.Clone(made))
}

// take removes the mistakes of who and returns those within giveBackWithin.
func (ms *mistakes) take(who string) []mistake {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.recent == nil {
		return nil
	}
	made, _ := ms.recent.Get(who)
	ms.recent.Remove(who)
	return slices.DeleteFunc(made, func(m mistake) bool { return time.Since(m.at) >= giveBackWithin })
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

// mistaken remembers that a has failed.
func (a *Attempt) mistaken(failure throttler.Decision) {
	var back []throttler.Condition
	for _, c := range a.plan.limits {
		if c.Name != byName && c.Name != byKnown {
			back = append(back, c)
		}
	}
	if a.party.name != "" && len(back) > 0 {
		a.guard.mistakes.add(a.party.who(), mistake{time.Now(), a.decided, failure, a.guard.rule(back)})
	}
}

// giveBack cancels p's mistakes for all limits but the name's. It starts with
// the newest: in that order a leaky bucket refunds all.
func (g *Guard) giveBack(ctx context.Context, p party) error {
	var errs []error
	for _, m := range slices.Backward(g.mistakes.take(p.who())) {
		errs = append(errs, together(
			func() error { return g.throttler.CancelOnly(ctx, m.attempt, m.rule) },
			func() error { return g.throttler.Cancel(ctx, m.failure) },
		))
	}
	return errors.Join(errs...)
}
