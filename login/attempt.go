package login

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// ErrSettled is the error of a Succeed or Cancel that comes too late: the attempt
// was blocked, has failed, or was canceled before it succeeded. Nothing is taken
// back.
var ErrSettled = errors.New("login: the attempt was blocked or has ended already")

// An Attempt is one that was begun. The application ends it by [Attempt.Succeed] or
// [Attempt.Fail] right after it has compared the password, or by [Attempt.Cancel]
// if it could not compare. One that is not ended becomes a failure after 30
// seconds. Its methods are safe for concurrent use.
type Attempt struct {
	// Decision says whether the password may be looked at, and if not, when
	// to try again. Messages holds one message at most. Outcomes are for the
	// operator: to tell the one who tries would tell an attacker what others
	// do with the same name.
	Decision throttler.Decision

	// Known says that the name is known from there, so that the limits which
	// it shares with strangers do not hold. It is false if those would not
	// have blocked: then nobody has asked.
	Known bool

	// HalfUsed says that one of the limits which hold for the attempt is at
	// least half used, this attempt included: the time to ask for more, a
	// CAPTCHA or a second factor, before anybody is refused.
	HalfUsed bool

	// Siege says that a siege is on (see [Guard.Alarm]), and that the name is
	// not known from there: ask for a CAPTCHA or a second factor. Those who
	// are known need not be asked.
	Siege bool

	guard   *Guard
	guess   *guess
	party   party
	plan    plan
	decided throttler.Decision // as Decision, whatever becomes of that

	mu       sync.Mutex
	state    state
	observed bool
}

// state is what the application made of an attempt.
type state int

const (
	open state = iota
	failed
	succeeded
	canceled
)

func newAttempt(g *Guard, p party, pl plan, d throttler.Decision) *Attempt {
	a := &Attempt{Decision: d, guard: g, party: p, plan: pl, decided: d}
	a.Decision.Messages = slices.Compact(d.Messages)
	a.Decision.Outcomes = d.Outcomes[:len(pl.limits):len(pl.limits)]
	a.HalfUsed = slices.ContainsFunc(a.Decision.Outcomes, func(o throttler.Outcome) bool {
		return o.Blocked || 2*o.Remaining <= o.Limit
	})
	return a
}

// settleTime is how long an attempt that ends waits for the backend.
const settleTime = 5 * time.Second

// detach returns a ctx with the values of ctx that does not end with it: a
// client that hangs up must not keep an attempt from being ended.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleTime)
}

// takeBack takes back what a has counted.
func (a *Attempt) takeBack(ctx context.Context) error {
	ctx, cancel := detach(ctx)
	defer cancel()
	a.guess.end()
	return a.guard.throttler.Cancel(ctx, a.decided)
}

// abandon takes back what a has counted, if there is an attempt. Where the backend
// fails, that expires in its time.
func (a *Attempt) abandon(ctx context.Context) {
	if a != nil {
		a.takeBack(ctx)
	}
}

// refuse blocks a for a while. What it has counted is to be taken back.
func (a *Attempt) refuse(wait time.Duration) {
	a.decided.WouldBlock, a.Decision.WouldBlock = true, true
	if a.guard.Shadow {
		return
	}
	a.decided.Status, a.Decision.Status = throttler.Blocked, throttler.Blocked
	a.Decision.Messages, a.Decision.RetryAfter = []string{or(a.guard.Message, DefaultMessage)}, wait
}

// Succeed says that the password was right. It takes back what the attempt has
// counted, forgets the failures of name+address (or name+device) with their
// bans, and has the name known from there. Up to 4 failures of this spelling within
// the last minute, from the same device or address, are given back to the address
// as well. If another spelling of the name was
// tried from there within a day, which may be another account, its failures and
// bans stay. What others have counted against the
// address, and all that counts against the name, stays: or else an attacker would log in to an account of
// his own every now and then.
//
// It does not end with ctx, but takes no longer than 5 seconds. A second call
// does nothing. If there is an error of the backend, some of it
// may be undone, and Succeed may be called again; the person is to be logged in
// all the same. [ErrSettled] is an error of the application: the password should
// never have been looked at.
func (a *Attempt) Succeed(ctx context.Context) error {
	return a.succeed(ctx, a.party.device)
}

// succeed is [Attempt.Succeed] of somebody whose device is next from now on.
func (a *Attempt) succeed(ctx context.Context, next origin) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.decided.Status != throttler.Authorized || a.state == failed || a.state == canceled:
		return ErrSettled
	case a.state == succeeded:
		return nil
	}
	a.observe(ctx, Succeeded)
	a.guess.end()
	if a.decided.WouldBlock { // in Shadow: it would not have come so far
		a.state = succeeded
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	g := a.guard
	err := together(
		func() error { return errors.Join(g.throttler.Cancel(ctx, a.decided), g.giveBack(ctx, a.party)) },
		func() error { return g.clear(ctx, a.party, a.plan.from) },
		func() error { return g.replace(ctx, a.party, next) },
	)
	if err == nil {
		a.state = succeeded
	}
	return err
}

// Fail says that the password was wrong. The attempt stays counted, and too many
// failures are banned. It does not end with ctx, but takes no longer than 5 seconds.
//
// After another end, or if the attempt was blocked, Fail does nothing. The error
// is the backend's; the attempt has failed all the same.
func (a *Attempt) Fail(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != open || a.decided.Status != throttler.Authorized {
		return nil
	}
	a.state = failed
	a.observe(ctx, Failed)
	if a.decided.WouldBlock { // in Shadow: it would not have come so far
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	return a.countFailure(ctx)
}

// Cancel says that the password was neither right nor wrong: the accounts could
// not be read, or the attempt was given up before the password was looked at. It
// takes back all that the attempt has counted. It must not be deferred: whatever
// ends a handler early would then end guesses that are not counted.
//
// It does not end with ctx, but takes no longer than 5 seconds. After a success,
// or if the attempt was blocked, it does nothing. The error is [ErrSettled] after
// Fail, or the backend's; then Cancel may be called again.
func (a *Attempt) Cancel(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.state == failed:
		return ErrSettled
	case a.state == succeeded || a.decided.Status != throttler.Authorized:
		return nil
	}
	a.state = canceled
	a.observe(ctx, Canceled)
	return a.takeBack(ctx)
}

// together calls all steps at once, to save round trips, and returns the errors of
// all.
func together(steps ...func() error) error {
	errs := make([]error, len(steps))
	var running sync.WaitGroup
	for i, step := range steps {
		running.Go(func() { errs[i] = step() })
	}
	running.Wait()
	return errors.Join(errs...)
}
