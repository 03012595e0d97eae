package login

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
)

// Result is how an attempt ended.
type Result int

const (
	Refused   Result = iota // the password was not looked at
	Succeeded               // the password was right
	Failed                  // the password was wrong
	Canceled                // the password was neither right nor wrong
)

// String returns "refused", "succeeded", "failed" or "canceled".
func (r Result) String() string {
	names := [...]string{"refused", "succeeded", "failed", "canceled"}
	if r < 0 || int(r) >= len(names) {
		return fmt.Sprintf("Result(%d)", int(r))
	}
	return names[r]
}

// An Event describes an attempt to log in that was refused or ended.
type Event struct {
	// Name is the name as it is counted: normalized, and with [Guard.Keys] its
	// HMAC.
	Name string

	// Addr is the address as it is counted: an IPv4 address that is mapped or
	// translated into IPv6 is the IPv4 one.
	Addr netip.Addr

	// Known says that the name is known from there, and that the limits which
	// it shares with strangers would have blocked.
	Known bool

	// Decision is the Attempt's.
	Decision throttler.Decision

	// Result is how the attempt ended.
	Result Result

	// Challenged says that it was canceled by [Attempt.Challenge].
	Challenged bool

	// Kept says that it was ended by [Attempt.Keep]: it stays counted.
	Kept bool
}

// observe calls [Guard.Observe] once for a, with e and the fields of a. The caller
// holds a.mu, or has not shared a yet.
func (a *Attempt) observe(ctx context.Context, e Event) {
	if a.observed || a.guard.Observe == nil {
		return
	}
	a.observed = true
	e.Name, e.Addr, e.Known, e.Decision = a.party.name, a.party.addr, a.Known, a.Decision
	a.guard.Observe(ctx, e)
}
