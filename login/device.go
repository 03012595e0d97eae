package login

import (
	"context"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A device that is replaced leaves: its record of who is known is deleted, and
// another one holds for the requests under way, which nothing makes longer.
const (
	leavingSuffix = "-leaving"
	leavingFor    = 30 * time.Second
)

// SucceedDevice is [Attempt.Succeed] for somebody who gets a new device with this
// answer, as they should with each success: whoever has read the old cookie is a
// stranger to the name from then on. The name is known from device, and no more
// from the one that the attempt was begun with, which holds for another 30 seconds
// for requests under way. Other names stay known from that one, so a computer
// that several people share needs a device for each name: see examples/login.
//
// device is as for [Guard.BeginDevice]. An empty one is none: the name is known by
// its address alone. If the error is the backend's, the old device may still hold.
func (a *Attempt) SucceedDevice(ctx context.Context, device string) error {
	return a.succeed(ctx, a.guard.device(device))
}

// Forget has name no longer known from device, in the spelling given, which should
// be that of the login: at the end of a session on a shared computer, say.
// Others who use the device stay known. The application must
// know that it is the owner of name who asks: a request with the cookie is not
// enough, or else one who has read it makes strangers of others. The error says
// what the backend failed at, or is [ErrNameTooLong].
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

// replace has p known with the device next from now on, and hardly longer with
// its own.
func (g *Guard) replace(ctx context.Context, p party, next origin) error {
	old := p
	old.address = origin{}
	p.device = next
	if err := g.remember(ctx, p); err != nil || next == old.device {
		return err // without the new device the old one had better stay
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
		return err // a device that nobody is known by does not become one
	}
	leaving := rule
	leaving.All = g.leaving(old)
	if err := g.pour(ctx, leaving); err != nil {
		return err
	}
	return g.throttler.Reset(ctx, rule)
}

// leaving returns the condition that is full while p's device leaves, if p has one.
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
