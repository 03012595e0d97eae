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
// Attempts that have not succeeded are counted in four ways, each of which can
// block; see [Guard] for the numbers.
//
//   - name+address: one name, tried from one address. When it is full the two
//     are banned together, for longer each time.
//   - address: one address, whatever names it tries. It is banned as well.
//   - address-day: the same over a day, for those who are patient. It is never
//     banned, it opens again little by little.
//   - name: one name, from whatever addresses. It is never banned either: a ban
//     would let anybody lock anybody out.
//
// An attempt that is blocked by one of them is not counted by the others. Or
// else somebody who is banned already, and has nothing to lose, could use up
// what is left for others of the same name, or at the same address.
//
// An IPv6 address is counted by its /64, and an IPv4 address that is mapped into
// IPv6 as the IPv4 address that it is.
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

	// Normalize returns what all spellings of one name have in common. It
	// must map two names to the same text if the application finds the same
	// account by them, or else each spelling has guesses of its own. To map
	// more together than that does little harm. nil: [Normalize].
	//
	// Of a name that is longer than 1,024 bytes only those are looked at.
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

	// Observe, if not nil, is called once for each attempt, when it is refused
	// or ended.
	Observe func(ctx context.Context, e Event)

	throttler *throttler.Throttler
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
// The error is [ErrNoAddress], wraps [throttler.ErrInvalidRule] if options make
// no sense, or is ctx's if that was canceled: nobody waits for the answer, and a
// client that hangs up must not have guesses that are not counted. There is no
// Attempt then, and the password must not be looked at. A failure of the backend
// is no error, nor is a deadline of ctx; see [throttler.Decision.Err].
func (g *Guard) Begin(ctx context.Context, name string, addr netip.Addr) (*Attempt, error) {
	return g.BeginDevice(ctx, name, addr, "")
}

// BeginDevice is [Guard.Begin] for somebody whose device the application tells
// from others: by a cookie with at least 16 random bytes, that it gives to every
// visitor who has none and keeps through logins and logouts. It is what a person
// is known by whose address changes, or who shares it with an attacker.
//
// A device is worth nothing before a success with it, so it needs no signature,
// and nothing after that to another name. An empty one is none. It is stored as
// a hash.
func (g *Guard) BeginDevice(ctx context.Context, name string, addr netip.Addr, device string) (*Attempt, error) {
	if !addr.IsValid() {
		return nil, ErrNoAddress
	}
	p := g.party(name, addr, device)
	a, err := g.begin(ctx, g.rule(p.anybody(g)), p, p.address)
	if err == nil && a.Decision.WouldBlock && p.mayBeKnown(&a.Decision) {
		a, err = g.beginKnown(ctx, p, a)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// begin authorizes an attempt by p under rule. from is where p is known from, if
// it succeeds.
func (g *Guard) begin(ctx context.Context, rule throttler.Rule, p party, from origin) (*Attempt, error) {
	d, err := g.throttler.Authorize(ctx, rule)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return nil, err
	}
	return newAttempt(g, p, from, d), nil
}

// Recognize has the limits that are shared with strangers no longer hold for
// name from addr, and with device unless that is empty, and lifts the ban of
// name+address and name+device. It is for somebody who has proved in another way
// who they are: by a link that was sent to them, or by a second factor. The
// error says what the backend failed at, or is [ErrNoAddress].
func (g *Guard) Recognize(ctx context.Context, name string, addr netip.Addr, device string) error {
	if !addr.IsValid() {
		return ErrNoAddress
	}
	p := g.party(name, addr, device)
	return errors.Join(g.clear(ctx, p, p.address), g.clear(ctx, p, p.device), g.remember(ctx, p))
}

// Lift forgets all attempts that are counted, and lifts all bans: of name, of
// addr, and of the two together. It is for an operator who has been asked for
// help, and for a password that was set anew. An empty name, or the zero addr,
// stands for none. The error says what the backend failed at.
func (g *Guard) Lift(ctx context.Context, name string, addr netip.Addr) error {
	p := g.party(name, addr, "")
	conditions := append(p.anybody(g), p.known(g, p.address, true)...)
	if len(conditions) == 0 {
		return nil
	}
	rule := g.rule(nil)
	seen := make(map[string]bool)
	for _, c := range conditions {
		if !seen[c.Name] {
			rule.Either = append(rule.Either, c)
		}
		seen[c.Name] = true
	}
	return g.throttler.Reset(ctx, rule)
}
