// Package login protects a login form, or anything else that asks for a name
// and a password, from being guessed at.
//
//	guard := login.New(throttler.New(client))
//
//	attempt, err := guard.Begin(ctx, name, addr)
//	if err != nil {
//		return err // no address, or options that make no sense
//	}
//	if attempt.Decision.Status == throttler.Blocked {
//		return tooMany(attempt.Decision.RetryAfter) // and do not look at the password
//	}
//	if !passwordIsRight(name, password) {
//		return wrongNameOrPassword()
//	}
//	return attempt.Succeed(ctx)
//
// An attempt is counted before the password is looked at, and taken back if it
// was right. So however many guesses arrive at once, no more of them are
// verified than the limits allow. (Fewer may be, in a burst that takes two
// limits to their ends in the same moment.)
//
// # What is counted
//
// Attempts that have not succeeded are counted in these ways, each of which can
// block; see [Guard] for the numbers.
//
//   - name+address: one name, tried from one address. When it is full the two
//     are banned together, for longer each time.
//   - address: one address, whatever names it tries. It is banned as well.
//   - address-day: the same over a day, for those who are patient. It is never
//     banned, it opens again little by little.
//   - network-56, network-48: the networks of an IPv6 address. They are never
//     banned.
//   - name: one name, from whatever addresses. It is never banned either: a ban
//     would let anybody lock anybody out.
//
// An attempt that is blocked by one of them is not counted by the others. Or
// else somebody who is banned already, and has nothing to lose, could use up
// what is left for others of the same name, or at the same address.
//
// An IPv6 address is counted by its /64. An IPv4 address that is mapped into IPv6
// (::ffff:0:0/96), or that a translator has put there (64:ff9b::/96), is counted
// as the IPv4 address that it is.
//
// # Who is known
//
// An attacker with many addresses can keep a name full, and one at a shared
// address can have that banned. Both would lock out honest people. So where
// somebody has logged in to a name before, from the same address or with the
// same device (see [Guard.BeginDevice]), the limits that are shared with
// strangers do not hold: a full or banned address, and a full name. What holds
// is name+address, or name+device, and beside it the limit "known", a budget for
// that name from there alone. An address is known for [Guard.KnownFor] after the
// last success.
//
// # The alarm
//
// One guess at each of ten thousand names, from as many addresses, fills none of
// these limits. The guard counts failures over all names too, and reports a siege:
// to [Guard.Alarm], and in [Attempt.Siege], so that the application can ask
// strangers for a CAPTCHA or a second factor.
//
// # What the application does
//
// It answers known and unknown names alike: Guard does, as it does not know
// which exist. So it must call Begin before it looks for the account, or at
// least not only if there is one, and spend as much time on the password of an
// unknown name as on that of a known one.
//
// A name must be counted as what the application looks up: see
// [Guard.Normalize]. One who can log in by user name and by e-mail address has
// two names, and twice the guesses, unless the application looks for the account
// first and begins with its number, or with what was typed if there is none.
//
// Where backends fail, a Throttler lets pass what it cannot look at. For a login
// that is worth a second thought: see [throttler.Throttler.Fallback] and, for
// those who would rather refuse, [throttler.Decision.Err].
package login

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// The options of a [Guard] that are not set.
const (
	DefaultIdentifier    = "login"
	DefaultMessage       = "Too many attempts. Please try again later."
	DefaultLockoutGrowth = 2
	DefaultMaxLockout    = time.Hour
	DefaultKnownFor      = 30 * 24 * time.Hour
	DefaultIPv6Bits      = 64
)

// ErrNoAddress is the error of an attempt from the zero [netip.Addr]. Counting
// all of those as one address would let any of them ban the others, and not
// counting them would let them guess. It means that the application does not
// know who is calling: a RemoteAddr that was parsed with its port, or a proxy
// that does not say.
var ErrNoAddress = errors.New("login: an attempt from no address")

// A Guard decides which attempts to log in may be made, and counts them.
//
// The exported fields are options. They must be set before the first use, and a
// Guard must not be copied after it. All methods are safe for concurrent use.
// Guards with the same Identifier, Key and backend count together, and must have
// the same options.
type Guard struct {
	// Identifier is that of the rule, which tells this Guard's records from
	// others'. Known addresses and devices are kept as Identifier+"-known".
	// Empty: "login".
	Identifier string

	// NameAddress limits one name from one address.
	// Unset: 5 in 1 minute, and then a ban of 10 minutes.
	NameAddress Limit

	// Address limits one address. Unset: 50 in 5 minutes, and then a ban of
	// 10 minutes.
	Address Limit

	// AddressDay limits one address for longer, and a second time those who
	// are known there, when the other limits would block them. It is a leaky
	// bucket. Unset: 500 at once, and then 500 a day, evenly. Never banned.
	AddressDay Limit

	// Network56 and Network48 limit the networks of an IPv6 address, of which
	// one customer may have all. They are leaky buckets, and hold for strangers
	// alone. Unset: 1,000 at once and then 1,000 a day for a /56, 5,000 at once
	// and then 5,000 a day for a /48. Never banned.
	Network56, Network48 Limit

	// Name limits one name. It is a leaky bucket. Unset: 24 at once, and then
	// 1 an hour. It should not be banned, lest anybody lock anybody out.
	Name Limit

	// Known limits one name from one address or device that it is known
	// from, when the other limits would block it. It is a leaky bucket.
	// Unset: 12 at once, and then 1 in 2 hours. Never banned.
	Known Limit

	// LockoutGrowth makes each further ban so many times longer, as
	// [throttler.Rule.LockoutGrowth]. 0: 2; 1: all bans are alike.
	LockoutGrowth float64

	// MaxLockout is where that ends. 0: 1 hour.
	MaxLockout time.Duration

	// KnownFor is how long at least an address or device is known after a
	// success; at most twice as long. 0: 30 days; negative: nobody is known
	// and the limits hold for everybody.
	KnownFor time.Duration

	// IPv6Bits is how many bits of an IPv6 address are counted, 1 to 128.
	// 0: 64, what one customer has at least.
	IPv6Bits int

	// Exempt are addresses for which the limits of addresses and networks do
	// not hold, such as those of monitoring or of the office. The limits of
	// names do, NameAddress among them. Whoever calls from there tries as many
	// names as they like, so exempt no address that strangers share. Unset: none.
	Exempt []netip.Prefix

	// Normalize returns what all spellings of one name have in common. It
	// must map two names to the same text if the application finds the same
	// account by them, or else each spelling has guesses of its own. To map
	// more together than that does little harm. nil: [Normalize]. It is not
	// called with a name of more than [MaxName] bytes.
	Normalize func(string) string

	// Key, if set, keeps names out of the backend and from
	// [throttler.Throttler.Observe]: what is stored is their HMAC-SHA-256
	// with this key, 32 random bytes that all processes share. Empty: names
	// are stored as they are.
	Key []byte

	// Message is the one that a blocked attempt is answered with, whatever
	// blocks it, so that it does not tell what that was.
	// Empty: "Too many attempts. Please try again later."
	Message string

	// Shadow lets every attempt pass, to try the limits out: see
	// [throttler.Rule.Shadow].
	Shadow bool

	// Observe, if set, is called once for each attempt, when it is refused or
	// ended, on the caller's goroutine. An attempt that is never ended is not
	// observed. [throttler.Throttler.Observe] sees the guard's records instead,
	// several of them for one attempt, and must not be used to count attempts.
	Observe func(ctx context.Context, e Event)

	// SiegeFloor and SiegeCeiling bound how many failures an hour, over all
	// names and by all processes, are a siege. Between them it is three times
	// what is usual. A 20th of SiegeFloor is the most that one name counts, or
	// one network: an IPv4 /16 or an IPv6 /32. If more than SiegeCeiling
	// failures an hour are usual, raise it. Unset: 100 and 2,000. Negative
	// SiegeFloor: there is no alarm.
	SiegeFloor, SiegeCeiling int

	// Alarm, if set, is called when a siege begins and when it ends, once in
	// each process that makes attempts, on the goroutine of an attempt that
	// begins. [Attempt.Siege] says whom to ask for more meanwhile.
	Alarm func(ctx context.Context, s Siege)

	throttler *throttler.Throttler
	mistakes  mistakes
	siege     siege
}

// A Limit is how many attempts a condition takes before it blocks. Fields that
// are 0 have the default of the [Guard]'s field.
type Limit struct {
	// Max is how many attempts count at once. Negative: there is no such
	// limit.
	Max int

	// TTL is how long an attempt counts, or how long a full bucket takes to
	// leak empty.
	TTL time.Duration

	// Lockout is how long the first ban is. Negative: no ban.
	Lockout time.Duration
}

// New returns a Guard that counts with t. It panics if t is nil.
func New(t *throttler.Throttler) *Guard {
	if t == nil {
		panic("login: New with a nil Throttler")
	}
	return &Guard{throttler: t}
}

// Begin counts an attempt to log in as name from addr, and says whether it may
// be made. If [Attempt.Decision] is Blocked the password must not be looked at.
// If it is Authorized and the password is right, the application calls
// [Attempt.Succeed].
//
// An empty name, after normalization, is no account's and counts for its address
// alone.
//
// The error is [ErrNoAddress] or [ErrNameTooLong], wraps
// [throttler.ErrInvalidRule] if options make no sense, or is ctx's if ctx has
// ended, by a cancel or its deadline: a client must not choose when its guesses
// are not counted. There is no Attempt then, nothing stays counted, and the
// password must not be looked at.
//
// A failure of the backend is not an error, and fails open; see
// [throttler.Decision.Err]. An overload ([throttler.ErrOverloaded]) without a
// [throttler.Throttler.Fallback] refuses the attempt for a few seconds, since
// whoever guesses can cause it.
func (g *Guard) Begin(ctx context.Context, name string, addr netip.Addr) (*Attempt, error) {
	return g.BeginDevice(ctx, name, addr, "")
}

// BeginDevice is [Guard.Begin] for somebody whose device the application tells
// from others: by a cookie with at least 16 random bytes, that it gives to every
// visitor who has none, keeps through logouts, and replaces at each success: see
// [Attempt.SucceedDevice]. It is what a person
// is known by whose address changes, or who shares it with an attacker.
//
// A device is worth nothing before a success with it, so it needs no signature,
// and nothing after that to another name. An empty one is none. It is stored as
// a hash.
func (g *Guard) BeginDevice(ctx context.Context, name string, addr netip.Addr, device string) (*Attempt, error) {
	if err := g.check(name, addr); err != nil {
		return nil, err
	}
	if err := ended(ctx); err != nil {
		return nil, err
	}
	if err := g.checkSiege(); err != nil {
		return nil, err
	}
	a, err := g.inTime(ctx, func(ctx context.Context) (*Attempt, error) {
		p := g.party(name, addr, device)
		return g.alert(ctx, p, func() (*Attempt, error) { return g.attempt(ctx, p) })
	})
	g.ring(ctx)
	if err == nil && a.Decision.Status == throttler.Blocked {
		a.observe(ctx, Refused)
	}
	return a, err
}

// inTime returns the attempt that begin makes, or ctx's error as soon as that has
// ended, and then has taken back what begin counts. begin itself does not end
// with ctx: of a write that is left on its way nobody knows whether it counted.
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

// attempt begins an attempt by p, as a stranger's or as that of one who is known.
func (g *Guard) attempt(ctx context.Context, p party) (*Attempt, error) {
	a, err := g.begin(ctx, p, p.anybody(g))
	if err == nil && a.decided.WouldBlock && p.mayBeKnown(&a.Decision) {
		a, err = g.beginKnown(ctx, p, a)
	}
	if err == nil && g.overloaded(a) {
		a.refuse(comeBack)
		a.abandon(ctx)
	}
	if err == nil {
		g.open(a)
	}
	return a, err
}

// comeBack is when to come back after what is over soon.
const comeBack = 5 * time.Second

// overloaded reports whether a would be let pass because the backend could not
// be asked in time.
func (g *Guard) overloaded(a *Attempt) bool {
	return a.decided.Status == throttler.Authorized && !g.Shadow &&
		g.throttler.Fallback == nil && errors.Is(a.decided.Err, throttler.ErrOverloaded)
}

// ended returns why ctx has ended, even where its timer is late.
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

// begin authorizes an attempt by p as planned.
func (g *Guard) begin(ctx context.Context, p party, pl plan) (*Attempt, error) {
	rule := g.planned(pl)
	if len(rule.Either) == 0 { // no name, from an exempt address
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

// Recognize has the limits that are shared with strangers no longer hold for
// name from addr, and with device unless that is empty, and lifts the ban of
// name+address and name+device, unless other spellings of name have been tried
// there. It is for somebody who has proved in another way
// who they are: by a link that was sent to them, or by a second factor. The
// error says what the backend failed at, or is [ErrNoAddress] or
// [ErrNameTooLong].
func (g *Guard) Recognize(ctx context.Context, name string, addr netip.Addr, device string) error {
	if err := g.check(name, addr); err != nil {
		return err
	}
	p := g.party(name, addr, device)
	return errors.Join(g.clear(ctx, p, p.address), g.clear(ctx, p, p.device), g.remember(ctx, p))
}

// Lift forgets all attempts that are counted, and lifts all bans: of name, of
// addr, and of the two together. It is for an operator who has been asked for
// help, and for a password that was set anew. An empty name, or the zero addr,
// stands for none. The error says what the backend failed at, is
// [ErrNameTooLong], or wraps [throttler.ErrInvalidRule].
func (g *Guard) Lift(ctx context.Context, name string, addr netip.Addr) error {
	if len(name) > MaxName {
		return ErrNameTooLong
	}
	if err := g.Validate(); err != nil {
		return err
	}
	p := g.party(name, addr, "")
	p.exempt = false // it may not have been
	return g.forget(ctx, p.anybody(g), p.known(g, p.address, true))
}

// forget deletes what plans count by.
func (g *Guard) forget(ctx context.Context, plans ...plan) error {
	var counted, failed []throttler.Condition
	seen := make(map[string]bool)
	for _, pl := range plans {
		for _, c := range g.planned(pl).Either {
			if !seen[c.Name] {
				counted = append(counted, c)
			}
			seen[c.Name] = true
		}
		for _, w := range pl.watched {
			if w.bans && !seen[w.failed.Name+failedSuffix] {
				failed = append(failed, w.failed)
				seen[w.failed.Name+failedSuffix] = true
			}
		}
	}
	steps := []func() error{}
	if len(counted) > 0 {
		steps = append(steps, func() error { return g.throttler.Reset(ctx, g.rule(counted)) })
	}
	if len(failed) > 0 {
		steps = append(steps, func() error { return g.throttler.Reset(ctx, g.failedRule(failed)) })
	}
	return together(steps...)
}
