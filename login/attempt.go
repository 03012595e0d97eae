package login

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// Succeed returns ErrSettled if the attempt was blocked, has failed, was
// canceled, kept or handed over. Cancel returns it if the attempt has failed,
// was kept or was handed over. Nothing is taken back. HandOver returns it if the
// attempt was blocked, has ended or was handed over.
var ErrSettled = errors.New("login: the attempt was blocked or has ended already")

// An Attempt is an attempt to log in that was begun. End it by
// [Attempt.Succeed] or [Attempt.Fail] right after the password is compared, by
// [Attempt.Challenge] if the user is asked for more first, by [Attempt.Cancel]
// if it could not be compared, or by [Attempt.Keep] if it may have been. An
// attempt that is not ended becomes a failure after 30 seconds. All methods are
// safe for concurrent use.
type Attempt struct {
	// Decision says whether the password may be looked at, and if not, when to
	// try again. Messages holds at most one message. Outcomes are for the
	// operator: do not show them to the client, since they tell what others do
	// with the same name.
	Decision throttler.Decision

	// Known says that the name is known from this address or device, so the
	// limits that it shares with strangers do not apply. It is set only if
	// those would have blocked.
	Known bool

	// HalfUsed says that a limit of the attempt is at least half used, this
	// attempt included. The limit name-long is left out: it would say so for months. The
	// application can ask for a CAPTCHA or a second factor before anyone is refused.
	HalfUsed bool

	// Siege says that a siege is on (see [Guard.Alarm]), from this network or
	// from many, and that the name is not known from this address or device.
	// The application can ask for a CAPTCHA or a second factor: see
	// [Attempt.Challenge].
	Siege bool

	// SecondStep says that the limit name-long blocks the attempt, and that waiting is
	// of no use. Let the user prove who they are in another way, such as by a link
	// sent to them, call [Guard.Recognize], and let them try again. Show the same
	// page whether there is an account of this name or not.
	SecondStep bool

	guard   *Guard
	party   party
	key     []byte // party is counted under it: the guard's, or that of the one that handed it over
	plan    plan
	decided throttler.Decision // Decision with all outcomes; the application cannot change it
	begun   time.Time
	alarms  atomic.Bool // the alarm is to count it if it fails
	handed  string      // its id if it was handed over; written with siege.mu held too
	claimed bool        // it is the one that ends what was handed over

	mu       sync.Mutex
	state    state
	observed bool
}

// state is how the application ended an attempt.
type state int

const (
	pending state = iota
	closed        // failed, was kept or handed over: its hits stay
	succeeded
	canceled
)

func newAttempt(g *Guard, p party, pl plan, d throttler.Decision) *Attempt {
	key, _ := g.keys()
	a := &Attempt{Decision: d, guard: g, key: key, party: p, plan: pl, decided: d, begun: time.Now()}
	a.Decision.Messages = slices.Compact(d.Messages)
	a.Decision.Outcomes = d.Outcomes[:len(pl.limits):len(pl.limits)]
	a.HalfUsed = slices.ContainsFunc(a.Decision.Outcomes, func(o throttler.Outcome) bool {
		return o.Blocked || 2*o.Remaining <= o.Limit && o.Name != byNameLong && o.Name != byKnownLong
	})
	a.SecondStep = blocks(&a.Decision, byNameLong, byKnownLong)
	return a
}

// settleTime is the time that the end of an attempt waits for the backend.
const settleTime = 5 * time.Second

// detach returns a ctx with the values of ctx that ends after settleTime and
// not with ctx: an attempt is ended although the client hangs up.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleTime)
}

// takeBack cancels the hits of a.
func (a *Attempt) takeBack(ctx context.Context) error {
	ctx, cancel := detach(ctx)
	defer cancel()
	a.alarms.Store(false)
	return a.guard.throttler.Cancel(ctx, a.decided)
}

// abandon cancels the hits of a, if a is not nil. If the backend fails, they
// stay until they expire.
func (a *Attempt) abandon(ctx context.Context) {
	if a != nil {
		a.takeBack(ctx)
	}
}

// refuse blocks a for wait. The caller cancels its hits.
func (a *Attempt) refuse(wait time.Duration) {
	a.decided.WouldBlock, a.Decision.WouldBlock = true, true
	if a.guard.Shadow {
		return
	}
	a.decided.Status, a.Decision.Status = throttler.Blocked, throttler.Blocked
	a.Decision.Messages, a.Decision.RetryAfter = []string{refusalMessage}, wait
}

// Succeed says that the password was right. It
//
//   - takes back the hits of the attempt,
//   - forgets the failures and bans of name+address (or name+device),
//   - gives up to 4 failures back to the limits of the address, its networks and
//     name-long: those of this spelling, from the same device or address, within the
//     last minute,
//   - makes the name known from there, and from the device of [WithDevice].
//
// Other hits stay, and so do all failures in the limits name and known: otherwise an
// attacker would reset them by logging in to an account of their own. The failures and
// bans of name+address stay if another spelling of the name, which may be
// another account, was tried from there within a day.
//
// The error is the backend's, that two devices could not be linked, or [ErrSettled], which is a mistake of the
// application: it should not have looked at the password. After an error of the
// backend, log the user in all the same; Succeed may be called again. After a
// success, a second call does nothing.
//
// Succeed does not end with ctx. It takes 5 seconds at most.
func (a *Attempt) Succeed(ctx context.Context) error {
	next := a.party.device
	if device, found := deviceIn(ctx); found {
		next = deviceUnder(a.key, device)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.decided.Status != throttler.Authorized || a.state == closed || a.state == canceled:
		return ErrSettled
	case a.state == succeeded:
		return nil
	}
	if err := a.claim(ctx); err != nil {
		return err
	}
	a.observe(ctx, Event{Result: Succeeded})
	a.alarms.Store(false)
	if a.decided.WouldBlock { // in Shadow: it would not have come so far
		a.state = succeeded
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	g := a.guard
	if g.alarmed(a) {
		g.siege.countSuccess(a.party)
	}
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

// Fail says that the password was wrong. The attempt stays counted, and too
// many failures are banned.
//
// The error is the backend's; the attempt has failed all the same. Fail does
// nothing if the attempt was blocked or has ended. It does not end with ctx. It
// takes 5 seconds at most.
func (a *Attempt) Fail(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.close(ctx) {
		return nil
	}
	a.observe(ctx, Event{Result: Failed})
	if a.decided.WouldBlock { // in Shadow: it would not have come so far
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	return a.countFailure(ctx)
}

// close ends a as an attempt that stays counted. It reports false if a was blocked or has
// ended.
func (a *Attempt) close(ctx context.Context) bool {
	if a.state != pending || a.decided.Status != throttler.Authorized || errors.Is(a.claim(ctx), ErrSettled) {
		return false
	}
	a.state = closed
	return true
}

// Keep says that the password may have been looked at, and that the result is
// unknown: another program compares it, and has answered with an error or not at
// all. The attempt stays counted until it expires, so that no guess is free. It is
// no failure: it does not lead to a ban, and the alarm does not count it.
//
// If an error comes again for the same name, password and address, that is no
// further guess: Cancel it. So an outage locks out nobody who tries again.
//
// The error is the backend's; the attempt stays counted all the same, and may
// become a failure. Keep does nothing if the attempt was blocked or has ended. It
// does not end with ctx. It takes 5 seconds at most.
func (a *Attempt) Keep(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.close(ctx) {
		return nil
	}
	a.observe(ctx, Event{Result: Canceled, Kept: true})
	a.alarms.Store(false)
	if len(a.plan.evidence) == 0 || a.decided.WouldBlock {
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	return a.guard.throttler.CancelOnly(ctx, a.decided, a.pendingRule())
}

// Cancel says that the password was neither right nor wrong: the accounts could
// not be read, or the attempt was given up before the password was looked at.
// It takes back all hits of the attempt. Do not defer it: a handler that
// ends early would leave a guess uncounted.
//
// The error is [ErrSettled] after Fail or Keep, or the backend's; then Cancel may
// be called again. It does nothing if the attempt was blocked or has succeeded. It
// does not end with ctx. It takes 5 seconds at most.
func (a *Attempt) Cancel(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ends, err := a.withdraw(ctx, Event{Result: Canceled}); !ends {
		return err
	}
	return a.takeBack(ctx)
}

// Challenge says that the user was asked for more before the password was looked
// at: for a CAPTCHA or a second factor, because of [Attempt.Siege] or
// [Attempt.HalfUsed]. Begin another attempt when the answer comes back. Challenge
// takes back all hits of the attempt, as Cancel does, but the alarm counts it as a
// failure, so that a siege goes on while the attackers are challenged. A success
// of the same name from there, within 10 minutes, takes that back.
//
// The error is [ErrSettled] after Fail or Keep, or the backend's; then Challenge
// may be called again. It does nothing if the attempt was blocked or has succeeded. It
// does not end with ctx. It takes 5 seconds at most.
func (a *Attempt) Challenge(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	ends, err := a.withdraw(ctx, Event{Result: Canceled, Challenged: true})
	if !ends {
		return err
	}
	if !a.alarms.CompareAndSwap(true, false) {
		return a.takeBack(ctx)
	}
	counting, cancel := detach(ctx)
	defer cancel()
	err = together(
		func() error { return a.takeBack(ctx) },
		func() error {
			uncount, err := a.guard.countGuess(counting, a.party)
			a.mistaken(nil, uncount)
			return err
		},
	)
	a.report(counting)
	return err
}

// withdraw ends a as e says. If it does not, because a was blocked, has ended or
// the backend failed, it returns false and the answer of the method that ends a.
func (a *Attempt) withdraw(ctx context.Context, e Event) (ends bool, err error) {
	switch {
	case a.state == closed:
		return false, ErrSettled
	case a.state == succeeded || a.decided.Status != throttler.Authorized:
		return false, nil
	}
	if err := a.claim(ctx); err != nil {
		return false, err
	}
	a.state = canceled
	a.observe(ctx, e)
	return true, nil
}

// together runs all steps at once, which takes fewer round trips, and returns
// their errors.
func together(steps ...func() error) error {
	if len(steps) == 1 {
		return steps[0]()
	}
	errs := make([]error, len(steps))
	var running sync.WaitGroup
	for i, step := range steps {
		running.Go(func() { errs[i] = step() })
	}
	running.Wait()
	return errors.Join(errs...)
}
