package login

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
)

// Result is what became of an attempt.
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

// An Event is one attempt to log in.
type Event struct {
	// Name is what the attempt is counted by: normalized, and with
	// [Guard.Key] its HMAC.
	Name string

	// Addr is the address that the attempt came from, as it is counted: an
	// IPv4 address that is mapped or translated into IPv6 is the IPv4 one.
	Addr netip.Addr

	// Known says that the limits of those who are known decided: the limits
	// shared with strangers would have blocked.
	Known bool

	// Decision is that of the Attempt.
	Decision throttler.Decision

	// Result is what became of the attempt.
	Result Result
}

// observe tells [Guard.Observe] what became of a, once. The caller holds a.mu, or
// is the only one who knows a.
func (a *Attempt) observe(ctx context.Context, r Result) {
	if a.observed || a.guard.Observe == nil {
		return
	}
	a.observed = true
	a.guard.Observe(ctx, Event{Name: a.party.name, Addr: a.party.addr, Known: a.Known, Decision: a.Decision, Result: r})
}
