package login

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// ErrNoAccount is the error of an empty account or recipient. Nothing was counted.
// Do not look at the code, and send nothing.
var ErrNoAccount = errors.New("login: the account or recipient is empty")

// Codes guards one-time codes and second factors, which are short enough to guess for
// someone who has the password. It counts by account, whatever code, session
// or login an attempt belongs to: a new code or another login buys no guess.
//
//   - account: consecutive failures of one account. A success forgets them.
//   - name: failures of one account over a long time. A success takes back only
//     its own typos of the last minute, up to 4, from the same address.
//   - address, address-day, and the networks: as of a [Guard].
//
// No account is banned. But an attacker who has its password can use up its
// guesses, and then its owner waits too: tell the owner that somebody has the
// password, and let them in by a recovery code after a new password.
//
// The exported fields are options. They must be set before the first use, and
// Codes must not be copied after it. All methods are safe for concurrent use.
type Codes struct {
	// Identifier keeps the records apart from others'. Default: "login-code".
	Identifier string

	// Limits are limits other than the defaults, by the names of the conditions:
	//
	//   - account: consecutive failures of one account. Default: 10 in 1 hour.
	//   - name: all failures of one account, by a leaky bucket. Of six-digit codes, three
	//     of them valid at a time, an attacker finds one within a year with a probability
	//     of less than 0.1 %. Default: 60 at once, then 60 in 90 days.
	//   - address, address-day and the networks: as in [Guard.Limits].
	Limits map[string]Limit

	// Keys, Shadow and Observe are as in [Guard].
	Keys    [][]byte
	Shadow  bool
	Observe func(ctx context.Context, e Event)

	throttler *throttler.Throttler
	once      sync.Once
	guard     *Guard
}

// NewCodes returns Codes that count with t. It panics if t is nil.
func NewCodes(t *throttler.Throttler) *Codes {
	if t == nil {
		panic("login: NewCodes with a nil Throttler")
	}
	return &Codes{throttler: t}
}

// Begin counts an attempt to enter a code for account from addr, and decides
// whether the code may be looked at. The rest is as for [Guard.Begin]: end the
// attempt by [Attempt.Succeed] or [Attempt.Fail] right after the comparison, or by
// [Attempt.Cancel] if there was none. Call it after the password was right, with
// the number of the account, not with what was typed. Its spelling is counted as
// it is.
//
// The error is [ErrNoAccount], or one of [Guard.Begin].
func (c *Codes) Begin(ctx context.Context, account string, addr netip.Addr) (*Attempt, error) {
	if account == "" {
		return nil, ErrNoAccount
	}
	return c.guarded().Begin(ctx, account, addr)
}

// Lift forgets what was counted for account. Call it when its second factor is
// replaced. The error is as of [Guard.Lift].
func (c *Codes) Lift(ctx context.Context, account string) error {
	return c.guarded().Lift(ctx, account, netip.Addr{})
}

// Validate returns an error that wraps [throttler.ErrInvalidRule], if an option is
// invalid. The error names fields as those of a [Guard].
func (c *Codes) Validate() error {
	return c.guarded().Validate()
}

// guarded returns the Guard that counts for c.
func (c *Codes) guarded() *Guard {
	c.once.Do(func() {
		g := New(c.throttler)
		g.Identifier = cmp.Or(c.Identifier, "login-code")
		g.account = c.Limits[byAccount].or(Limit{Max: 10, TTL: time.Hour, Lockout: -1})
		g.Limits, g.KnownFor = map[string]Limit{byNameAddress: {Max: -1}, byKnown: {Max: -1}}, -1
		maps.Copy(g.Limits, c.Limits)
		g.Limits[byName] = c.Limits[byName].or(Limit{Max: 60, TTL: 90 * day, Lockout: -1})
		delete(g.Limits, byAccount)
		g.Keys, g.Shadow, g.Observe = c.Keys, c.Shadow, c.Observe
		g.Normalize = func(account string) string { return account }
		c.guard = g
	})
	return c.guard
}
