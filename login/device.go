package login

import (
	"context"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A success that replaces a device deletes its record in "-known". For requests
// under way, a record of leavingSuffix keeps the old device known for
// leavingFor. Nothing prolongs it.
const (
	leavingSuffix = "-leaving"
	leavingFor    = 30 * time.Second
)

// SucceedDevice is [Attempt.Succeed] and replaces the device: the name is known
// from device from now on. The device that the attempt was begun with is no
// longer known, after another 30 seconds for requests under way. So anyone who
// has copied the old cookie becomes a stranger to the name. Call it with a new
// device at each success, and send the cookie with the answer.
//
// device is as for [Guard.BeginDevice]. With an empty one the name is known by
// its address alone. Other names stay known from the old device. So a computer
// that several users share needs a device for each name: see examples/login.
//
// Errors are those of Succeed. After an error of the backend the old device may
// still hold.
func (a *Attempt) SucceedDevice(ctx context.Context, device string) error {
	return a.succeed(ctx, deviceUnder(a.guard.Key, device))
}

// Forget makes name no longer known from device, for example at the end of a
// session on a shared computer. name must be spelled as at the login. Other
// names stay known from the device.
//
// Call it only for a user who is signed in as name. The cookie alone must not
// be enough, or anyone who has copied it could make users strangers.
//
// The error is the backend's, or [ErrNameTooLong].
func (g *Guard) Forget(ctx context.Context, name, device string) error {
	if len(name) > MaxName {
		return ErrNameTooLong
	}
	p := g.party(name, netip.Addr{}, device)
	rule, possible := g.familiar(p)
	if !possible {
		return nil
	}
	rule.All = append(rule.All, g.leaving(p)...)
	return g.throttler.Reset(ctx, rule)
}

// replace makes p known with the device next, and its own device leave.
func (g *Guard) replace(ctx context.Context, p party, next origin) error {
	old := p
	old.address = origin{}
	p.device = next
	if err := g.remember(ctx, p); err != nil || next == old.device {
		return err // the old device stays if the new one is not stored
	}
	rule, possible := g.familiar(old)
	if !possible {
		return nil
	}
	d, err := g.throttler.Peek(ctx, rule)
	if err == nil {
		err = d.Err
	}
	if err != nil || d.Outcomes[0].Remaining > 0 {
		return err // an unknown device must not become known by leaving
	}
	leaving := rule
	leaving.All = g.leaving(old)
	if err := pour(ctx, g.throttler, leaving); err != nil {
		return err
	}
	return g.throttler.Reset(ctx, rule)
}

// leaving returns the condition that is full while p's device leaves, or
// nothing if p has no device.
func (g *Guard) leaving(p party) []throttler.Condition {
	p.address = origin{}
	rule, possible := g.familiar(p)
	if !possible {
		return nil
	}
	c := rule.All[0]
	c.Name += leavingSuffix
	c.Max, c.TTL = 1, leavingFor
	return []throttler.Condition{c}
}
