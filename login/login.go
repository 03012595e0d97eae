// Package login protects a login form, or anything else that asks for a name
// and a password, from guessing.
//
//	guard := login.New(throttler.New(client))
//
//	result, decision, err := guard.Try(ctx, name, addr, func(ctx context.Context) (bool, error) {
//		return passwordIsRight(ctx, name, password)
//	})
//	switch {
//	case err != nil:
//		return err // no address, an invalid option, or the check's own error
//	case result == login.Refused: // the password was not looked at
//		return tooMany(decision.RetryAfter)
//	case result == login.Failed:
//		return wrongNameOrPassword()
//	}
//	return welcome()
//
// [Guard.Try] counts an attempt before the password is looked at, and takes it back
// if the password was right. So however many guesses arrive at once, no more of them
// are verified than the limits allow. If a burst fills two limits at the same time,
// fewer may be verified. It also means that of 50 right logins for one name at the
// same moment from one new address, 5 pass and the others are told to come back in
// some seconds: a program logs in once and keeps its session.
//
// [Guard.Begin] is the general way, for a check that does not fit into one function:
// it counts, and [Attempt.Succeed], [Attempt.Fail] or [Attempt.Cancel] ends.
//
// # By task
//
//   - Guard a form: [Guard.Try]; in steps [Guard.Begin], [Attempt.Succeed], [Attempt.Fail], [Attempt.Cancel].
//   - Guard the logins of another program: [Attempt.Keep].
//   - Choose limits: [Guard.Limits], [Guard.Validate]; try them by [Guard.Shadow].
//   - Let owners in: [WithDevice], [Guard.ConfirmDevice], [Guard.Forget]; by a mailed link [Guard.Recognize].
//   - Help a person who is locked out: [Guard.Peek], [Guard.Lift].
//   - Ask for a second step: [Attempt.HalfUsed], [Attempt.SecondStep], [Attempt.Challenge].
//   - Notice attacks: [Guard.Observe], [Guard.Alarm], [Attempt.Siege].
//   - End an attempt in another process: [Attempt.HandOver], [Guard.TakeOver].
//   - Guard one-time codes: [NewCodes]. Limit mail and messages: [NewSending].
//
// # What is counted
//
// Attempts that have not succeeded are counted by these limits. Any of them can
// block. See [Guard.Limits] for the numbers.
//
//   - name+address: one name from one address. When it is full, the two are
//     banned together, for longer each time.
//   - address: one address, whatever names it tries. It is banned likewise.
//   - address-day: one address over a day, against patient attackers. Never
//     banned.
//   - network-56, network-48, network-32: the networks of an IPv6 address. Never
//     banned.
//   - name: one name from all addresses. Never banned: a ban would let anyone
//     lock its owner out.
//   - name-long: the same over a long time, if [Guard.Limits] sets it.
//
// An attempt that one limit blocks is not counted by the others.
//
// An IPv6 address counts by its /64. An IPv4 address that is mapped into IPv6
// (::ffff:0:0/96) or translated (64:ff9b::/96) counts as the IPv4 address. One that
// a translator with a prefix of its own has made (64:ff9b:1::/48) counts whole, and
// in no network.
//
// # Known addresses and devices
//
// Attackers can fill the limit of a name. To let its owner in, a name is known
// where it has logged in before: from the same address, or with the same device
// (see [WithDevice]). There a full name limit and a full or banned
// address do not block. The limit name+address (or name+device) still holds,
// and a limit "known" for this name. A name stays known for at least
// [Guard.KnownFor] after the last success.
//
// # The alarm
//
// One guess at each of 10,000 names, from as many addresses, fills none of
// these limits. So the guard counts failures over all names too, and reports a
// siege to [Guard.Alarm] and in [Attempt.Siege]. The application can then ask
// strangers for a CAPTCHA or a second factor: see [Attempt.Challenge].
//
// # What the application does
//
// The guard does not know which names exist. So call Begin for every name,
// existing or not, give the same answer to both, and spend as much time on the
// password of an unknown name.
//
// A name must be counted as the application looks it up: see [Guard.Normalize].
// If users can log in by user name or e-mail address, begin with the number of
// the account: docs/login.md has the code.
//
// If the backend fails, attempts pass uncounted. Set
// [throttler.Throttler.Fallback] to count in each process meanwhile, or test
// [throttler.Decision.Err] to refuse.
//
// # What it costs
//
// An attempt takes 1 or 2 round trips, and its end 1 to 3 more. A blocked attempt takes up
// to 7, and so does a success that replaces a known device. The end of an attempt that was
// taken over takes one more, and one for the alarm if it fails or is challenged.
package login

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The defaults of a [Guard].
const (
	defaultIdentifier = "login"
	defaultKnownFor   = 30 * 24 * time.Hour
	defaultIPv6Bits   = 64
)

// refusalMessage is the message of a blocked attempt.
const refusalMessage = "Too many attempts. Please try again later."

// ErrNoAddress is the error of an attempt from the zero [netip.Addr]. The
// application does not know the client's address: it parsed a RemoteAddr
// together with its port, or the proxy does not forward the address.
var ErrNoAddress = errors.New("login: addr is the zero netip.Addr, want the client's address")

// A Guard counts attempts to log in, and decides which may be made.
//
// The exported fields are options. They must be set before the first use, and a
// Guard must not be copied after it. All methods are safe for concurrent use.
// Guards with the same Identifier, Keys and backend count together, and must
// have the same options.
type Guard struct {
	// Identifier keeps this Guard's records apart from others'. Known addresses
	// and devices are stored under Identifier+"-known". Default: "login".
	Identifier string

	// Limits are limits other than the defaults, by the names of the conditions:
	//
	//	guard.Limits = map[string]login.Limit{"name": {Max: 10}, "name-long": {Max: 100}}
	//
	//   - name+address: one name from one address, or with one device. Default: 5 in 1
	//     minute, then a ban of 10 minutes.
	//   - address: one address. Default: 50 in 5 minutes, then a ban of 10 minutes.
	//   - address-day: one address over a longer time, by a leaky bucket. A second bucket
	//     of the same size limits all names known at that address, once the other limits
	//     of the address block. Default: 500 at once, then 500 a day, evenly.
	//   - network-56, network-48 and network-32: the /56, the /48 and the /32 of an IPv6
	//     address, by leaky buckets. They do not block a name where it is known. Default:
	//     1,000 at once, then 1,000 a day for a /56; 5,000 at once, then 5,000 a day for
	//     a /48; 20,000 at once, then 20,000 a day for a /32.
	//   - name: one name, by a leaky bucket. Default: 24 at once, then 1 an hour.
	//   - name-long: one name over a long time, by a window, against attackers who are
	//     more patient than name. Once it is full, strangers have to prove who they are
	//     before their password is looked at: see [Attempt.SecondStep]. It does not block a
	//     name where it is known: each address and device has a window of the same size.
	//     Zero means that there is no such limit. Default of TTL: 365 days.
	//   - known: one name where it is known, once the other limits would block it: over
	//     all addresses together, and for each device. It is a leaky bucket. Default: 12
	//     at once, then 1 in 2 hours.
	//   - siege: its Max is the least number of failures an hour, over all names and
	//     processes, that begins a siege. A siege begins when the failures of an hour
	//     reach half the number of names that logged in meanwhile, but never below this,
	//     and always at 20,000. One name counts at most a 20th of that, and so does one
	//     network (an IPv4 /16 or an IPv6 /32). Nothing is learned: when the records are
	//     lost, the alarm goes on with what is counted from then on. Negative disables
	//     the alarm. Default: 100.
	//
	// Only name+address and address are ever banned. Any other name is a mistake: see
	// [Guard.Validate].
	Limits map[string]Limit

	// MaxLockout bounds the length of a ban. Each further ban of a value is twice as
	// long as the one before; with MaxLockout no longer than Lockout, all are alike.
	// Default: 1 hour.
	MaxLockout time.Duration

	// KnownFor is how long an address or device stays known after a success. It
	// may stay known for up to twice as long. Zero means the default; negative
	// disables it: no name is known anywhere. Default: 30 days.
	KnownFor time.Duration

	// IPv6Bits is the number of bits of an IPv6 address that are counted, 1 to
	// 128. Default: 64, the smallest network that a customer has.
	IPv6Bits int

	// Exempt lists addresses that the limits of addresses and networks do not
	// apply to, such as those of monitoring or of the office. The limits of
	// names still apply, name+address among them. An exempt address can try any
	// number of names, so list no address that strangers share. Default: none.
	Exempt []netip.Prefix

	// Normalize maps all spellings of a name to one text. It must map two names
	// to the same text if the application finds the same account by both.
	// Otherwise each spelling has guesses of its own. Mapping more names
	// together does little harm. It is not called with a name of more than
	// [MaxName] bytes. Default: the function [Normalize].
	Normalize func(string) string

	// Keys keep names out of the backend and out of
	// [throttler.Throttler.Observe]: their HMAC-SHA-256 with the first key is stored
	// instead. Use 32 random bytes, the same in all processes. Default: none, names
	// are stored as they are.
	//
	// The others are former keys. Where a name was known under one of them it still
	// is. What was counted under them is not, so each name has its guesses once more.
	// To change the key, append the new one in all processes. Then exchange the two,
	// and drop the old one after twice KnownFor. An empty key stands for none: a site
	// that introduces its first has {nil, key}, and then {key, nil}.
	Keys [][]byte

	// Shadow lets every attempt pass, to try the limits out before they are
	// enforced. See [throttler.Rule.Shadow].
	Shadow bool

	// Observe, if set, is called once for each attempt, when it is refused or
	// ended, on the caller's goroutine. An attempt that is never ended is not
	// observed. To count attempts use this, not [throttler.Throttler.Observe]:
	// that is called for the guard's records, several times for one attempt.
	Observe func(ctx context.Context, e Event)

	// Alarm, if set, is called when a siege begins and when it ends. Each
	// process that makes attempts calls it once, on the goroutine of an attempt
	// that begins, or that was taken over and fails or is challenged.
	// [Attempt.Siege] says which users to ask for more meanwhile. A siege from a
	// single network has [Siege.Network] set, and may last while others begin and
	// end.
	Alarm func(ctx context.Context, s Siege)

	// ClockSkew, if set, is called once, on a goroutine as of Alarm, when the clock
	// of another process turns out to be more than 10 seconds ahead of this one's,
	// by the records of the alarm. If clocks differ by more than the TTL of a limit,
	// the processes do not count each other's attempts there.
	ClockSkew func(ctx context.Context, ahead time.Duration)

	account   Limit // of consecutive failures, of Codes
	throttler *throttler.Throttler
	localOnce sync.Once
	local     *throttler.Throttler // on the Fallback
	mistakes  mistakes
	siege     siege
}

// New returns a Guard that counts with t. It panics if t is nil.
func New(t *throttler.Throttler) *Guard {
	if t == nil {
		panic("login: New with a nil Throttler")
	}
	return &Guard{throttler: t, mistakes: newMistakes(), siege: newSiege()}
}

// Begin counts an attempt to log in as name from addr, and decides whether it
// may be made. If [Attempt.Decision] is Blocked, do not look at the password.
// Otherwise end the attempt by [Attempt.Succeed], [Attempt.Fail] or
// [Attempt.Cancel].
//
// The error is [ErrNoAddress] or [ErrNameTooLong], wraps
// [throttler.ErrInvalidRule] if an option is invalid, or is ctx's error if ctx
// has ended. Then there is no Attempt and nothing stays counted. Do not look at
// the password.
//
// An empty name, after normalization, counts for its address alone.
//
// A failure of the backend is not an error, and fails open: see
// [throttler.Decision.Err]. An overload ([throttler.ErrOverloaded]) without a
// [throttler.Throttler.Fallback] refuses the attempt for 5 seconds, since an
// attacker can cause it.
func (g *Guard) Begin(ctx context.Context, name string, addr netip.Addr) (*Attempt, error) {
	if err := g.check(name, addr); err != nil {
		return nil, err
	}
	if err := ended(ctx); err != nil {
		return nil, err
	}
	// In time for ctx, with an eye on a siege (alert), decide authorizes the attempt, by a plan of
	// limits for strangers or for who is known.
	a, err := g.inTime(ctx, func(ctx context.Context) (*Attempt, error) {
		device, _ := deviceIn(ctx)
		p := g.party(name, addr, device)
		return g.alert(ctx, p, func() (*Attempt, error) { return g.decide(ctx, p) })
	})
	g.ring(ctx)
	if err == nil && a.Decision.Status == throttler.Blocked {
		a.observe(ctx, Event{Result: Refused})
	}
	return a, err
}

// inTime returns the attempt that begin makes. If ctx ends first, inTime
// returns its error at once, and what begin counts is taken back later. begin
// itself runs without ctx's end: after a write that is left on its way, it
// would be unknown whether it counted.
func (g *Guard) inTime(ctx context.Context, begin func(context.Context) (*Attempt, error)) (*Attempt, error) {
	if ctx.Done() == nil {
		return begin(ctx)
	}
	type result struct {
		a   *Attempt
		err error
	}
	begun := make(chan result)
	go func() {
		a, err := begin(context.WithoutCancel(ctx))
		select {
		case begun <- result{a, err}:
		case <-ctx.Done():
			a.abandon(ctx)
		}
	}()
	select {
	case r := <-begun:
		if err := ended(ctx); err != nil {
			r.a.abandon(ctx)
			return nil, err
		}
		return r.a, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// decide returns an attempt by p, which is authorized first as a stranger's and then, if that
// is blocked, as that of somebody known.
func (g *Guard) decide(ctx context.Context, p party) (*Attempt, error) {
	a, err := g.asStranger(ctx, p)
	if err == nil && a.decided.WouldBlock && p.mayBeKnown(&a.Decision) {
		a, err = g.asKnown(ctx, p, a)
	}
	if err == nil && g.overloaded(a) {
		a.refuse(comeBack)
		a.abandon(ctx)
	}
	if err == nil && g.alarmed(a) {
		g.siege.begin(a)
	}
	return a, err
}

// asStranger authorizes an attempt by p with the limits of strangers. At the same time it makes
// the device leave that p's device has replaced.
func (g *Guard) asStranger(ctx context.Context, p party) (a *Attempt, err error) {
	if p.device.value == "" {
		return g.authorize(ctx, p, p.anybody(g))
	}
	together(
		func() error { a, err = g.authorize(ctx, p, p.anybody(g)); return err },
		func() error { return g.confirm(ctx, p) }, // the next attempt confirms it if this one cannot
	)
	return a, err
}

// answered reports whether what has err was decided by the backend or its fallback.
func (g *Guard) answered(err error) bool {
	return err == nil || g.throttler.Fallback != nil
}

// comeBack is the RetryAfter of a refusal that may soon be over.
const comeBack = 5 * time.Second

// overloaded reports whether a would pass only because the backend could not be
// asked in time.
func (g *Guard) overloaded(a *Attempt) bool {
	return a.decided.Status == throttler.Authorized && !g.Shadow &&
		g.throttler.Fallback == nil && errors.Is(a.decided.Err, throttler.ErrOverloaded)
}

// ended returns ctx's error, also if the deadline has passed and its timer is
// late.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// check returns the error of an attempt that can never be counted.
func (g *Guard) check(name string, addr netip.Addr) error {
	switch {
	case !addr.IsValid():
		return ErrNoAddress
	case len(name) > MaxName:
		return ErrNameTooLong
	}
	return g.Validate()
}

// authorize counts an attempt by p against the limits of pl.
func (g *Guard) authorize(ctx context.Context, p party, pl plan) (*Attempt, error) {
	rule := g.planned(pl)
	if len(rule.Either) == 0 { // an exempt address and no name
		return newAttempt(g, p, pl, throttler.Decision{Status: throttler.Authorized}), nil
	}
	d, err := g.throttler.Authorize(ctx, rule)
	if err != nil {
		return nil, err
	}
	a := newAttempt(g, p, pl, d)
	if d.WouldBlock {
		return a, g.explain(ctx, a)
	}
	return a, g.catch(ctx, a)
}

// Recognize makes name known from addr and, unless it is empty, from device. It
// also empties the limit Known of these, and lifts the bans of name+address and
// name+device, unless other spellings of name were tried there. Call it for a
// user who has proved their identity in another way: by a link sent to them, or
// by a second factor.
//
// The error is the backend's, [ErrNoAddress] or [ErrNameTooLong], or wraps
// [throttler.ErrInvalidRule] if an option is invalid.
func (g *Guard) Recognize(ctx context.Context, name string, addr netip.Addr, device string) error {
	if err := g.check(name, addr); err != nil {
		return err
	}
	p := g.party(name, addr, device)
	return errors.Join(g.clear(ctx, p, p.address), g.clear(ctx, p, p.device), g.refill(ctx, p), g.remember(ctx, p))
}

// Lift forgets all attempts counted against name, against addr, and against the
// two together, and lifts their bans. Call it for a user who asks an operator
// for help, and after a password reset. An empty name or the zero addr is left
// out.
//
// The error is the backend's or [ErrNameTooLong], or wraps
// [throttler.ErrInvalidRule] if an option is invalid.
func (g *Guard) Lift(ctx context.Context, name string, addr netip.Addr) error {
	if len(name) > MaxName {
		return ErrNameTooLong
	}
	if err := g.Validate(); err != nil {
		return err
	}
	p := g.party(name, addr, "")
	p.exempt = false // it may have become exempt since
	return g.forget(ctx, p.anybody(g), p.known(g, p.address, true))
}

// forget deletes the records of plans.
func (g *Guard) forget(ctx context.Context, plans ...plan) error {
	var counted, failures []throttler.Condition
	seen := make(map[string]bool)
	for _, pl := range plans {
		for _, c := range g.planned(pl).Either {
			if !seen[c.Name] {
				counted = append(counted, c)
			}
			seen[c.Name] = true
		}
		for _, w := range pl.evidence {
			if w.bans && !seen[w.failures.Name+failuresSuffix] {
				failures = append(failures, w.failures)
				seen[w.failures.Name+failuresSuffix] = true
			}
		}
	}
	steps := []func() error{}
	if len(counted) > 0 {
		steps = append(steps, func() error { return g.throttler.Reset(ctx, g.rule(counted)) })
	}
	if len(failures) > 0 {
		steps = append(steps, func() error { return g.throttler.Reset(ctx, g.failuresRule(failures)) })
	}
	return together(steps...)
}
