package login

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// A success that replaces a device does not know whether its answer, with the new
// one, will arrive. So the old device holds until the new one is used. These
// records of "-known" say so:
//
//   - The record of the old device becomes one of replacedSuffix. Its value is a
//     number, of 39 bits, instead of the device.
//   - Records of linkSuffix hold the number of the device that a new one has
//     replaced, in three digits. A digit is the hits of a lease, which stay as they
//     are until it ends.
//
// The first attempt with the new device reads the number, and deletes both. For
// requests under way, a record of leavingSuffix keeps the old device known for
// leavingFor. Nothing prolongs it.
const (
	replacedSuffix = "-replaced"
	linkSuffix     = "-replaces-"
	leavingSuffix  = "-leaving"
	leavingFor     = 30 * time.Second

	digits    = 3
	digitBits = 13 // record.MaxLeases has room for them
)

// WithDevice returns a ctx with a device for [Guard.Begin] and [Guard.Try], and for
// [Attempt.Succeed].
//
// To Begin it says which device the client's cookie names. A name that is known by its
// device gets in from any address, also from one that an attacker shares. A visitor
// who has none may get one before the first success, or begins without, or with the
// empty one.
//
// To Succeed it says which device the client gets: the name is known from that one
// from now on. Succeed with a new device each time, and send the cookie with the
// answer. The one that the attempt was begun with stays known until the client has got
// the new one: the answer may be lost. The first attempt with the new one, or
// [Guard.ConfirmDevice], ends that, after another 30 seconds for requests under way. So
// anyone who has copied the old cookie becomes a stranger to the name. With the empty
// device the name is known by its address alone, and the old device holds for those 30
// seconds only. A ctx without a device leaves the one that the attempt was begun with, and
// so does Try.
//
// A device holds at least 16 random bytes. Keep it in a cookie, through logouts. It
// needs no signature: before a success it is worth nothing, and after that it holds
// for that name alone. It is stored as a hash. Other names stay known from an old
// device. So a computer that several users share needs a device for each name: see
// examples/login.
func WithDevice(ctx context.Context, device string) context.Context {
	return context.WithValue(ctx, deviceKey{}, device)
}

type deviceKey struct{}

// deviceIn returns the device in ctx, and whether it has one.
func deviceIn(ctx context.Context) (device string, found bool) {
	device, found = ctx.Value(deviceKey{}).(string)
	return device, found
}

// ConfirmDevice says that the client of name has device, because it has sent it.
// The device that it has replaced is no longer known. An attempt says so too, but
// only when the user logs in again. So call ConfirmDevice when the first page
// after a login is asked for.
//
// The error is the backend's, or [ErrNameTooLong].
func (g *Guard) ConfirmDevice(ctx context.Context, name, device string) error {
	if len(name) > MaxName {
		return ErrNameTooLong
	}
	return g.confirm(ctx, g.party(name, netip.Addr{}, device))
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
	if err := g.confirm(ctx, p); err != nil {
		return err
	}
	return g.drop(ctx, p)
}

// drop deletes what is stored of p's device, under any key, but for kept.
func (g *Guard) drop(ctx context.Context, p party, kept ...throttler.Condition) error {
	var errs []error
	for _, q := range p.keyed() {
		old, possible := g.oldDevice(q)
		if !possible {
			continue
		}
		conditions := slices.DeleteFunc([]throttler.Condition{old.known, old.replaced, old.leaving}, func(c throttler.Condition) bool {
			return slices.Contains(kept, c)
		})
		errs = append(errs, g.throttler.Reset(ctx, g.knownRule(conditions...)))
	}
	return errors.Join(errs...)
}

// replace makes p known with the device next. Its own device, if it is known,
// holds until next is used.
func (g *Guard) replace(ctx context.Context, p party, next origin) error {
	old := p
	old.address = origin{}
	p.device = next
	if next == old.device {
		return g.remember(ctx, p)
	}
	holds := false
	err := together(
		func() error { return g.remember(ctx, p) },
		func() (err error) {
			holds, err = g.holds(ctx, old)
			return err
		},
	)
	if err != nil || !holds {
		return err // the old device stays if the new one is not stored
	}
	now, _ := g.oldDevice(old)
	if next.value == "" { // no attempt comes with it
		if err := pour(ctx, g.throttler, g.knownRule(now.leaving)); err != nil {
			return err
		}
		return g.drop(ctx, old, now.leaving)
	}
	err = together(
		func() error { return pour(ctx, g.throttler, g.knownRule(now.replaced)) },
		func() error { return g.link(ctx, p, now.number) },
	)
	if err != nil {
		return err
	}
	return g.drop(ctx, old, now.replaced)
}

// holds reports whether p is known by its device, which does not leave already. An
// unknown device must not become known by being replaced, and nothing prolongs
// one that leaves.
func (g *Guard) holds(ctx context.Context, p party) (bool, error) {
	for _, q := range p.keyed() {
		stored, possible := g.oldDevice(q)
		if !possible {
			return false, nil
		}
		d, err := g.throttler.Peek(ctx, g.knownRule(stored.known, stored.replaced))
		if err = errors.Join(err, d.Err); err != nil {
			return false, err
		}
		if d.Outcomes[0].Remaining == 0 || d.Outcomes[1].Remaining == 0 {
			return true, nil
		}
	}
	return false, nil
}

// An oldDevice is what is stored of a device that was replaced.
type oldDevice struct {
	number   uint64
	known    throttler.Condition // full before that
	replaced throttler.Condition // full until the new device is used
	leaving  throttler.Condition // full while requests are under way
}

// oldDevice returns what is stored of p's device if it was replaced. There is
// nothing if p cannot be known by a device.
func (g *Guard) oldDevice(p party) (oldDevice, bool) {
	p.address = origin{}
	conditions := g.familiar(p)
	if len(conditions) == 0 {
		return oldDevice{}, false
	}
	hash := sha256.Sum256([]byte(conditions[0].Value))
	r := g.numbered(p, binary.BigEndian.Uint64(hash[:])>>(64-digits*digitBits))
	r.known = conditions[0]
	return r, true
}

// numbered returns what is stored of the device of p's name with that number.
func (g *Guard) numbered(p party, number uint64) oldDevice {
	value := strconv.FormatUint(number, 10) + "#" + p.name
	replaced := g.familiarFrom(p, byNameDevice+replacedSuffix, value)
	leaving := g.familiarFrom(p, byNameDevice+leavingSuffix, value)
	leaving.Algorithm, leaving.Max, leaving.TTL = throttler.SlidingWindow, 1, leavingFor
	return oldDevice{number: number, replaced: replaced, leaving: leaving}
}

// linkRule returns the rule of the records that link p's device to the one that
// it has replaced.
func (g *Guard) linkRule(p party, number uint64) throttler.Rule {
	rule := g.knownRule()
	for i := range digits {
		c := g.familiarFrom(p, byNameDevice+linkSuffix+strconv.Itoa(i), p.at(p.device))
		c.Algorithm, c.TTL = throttler.InFlight, max(cmp.Or(g.KnownFor, defaultKnownFor), time.Second)
		c.Max = 1 << digitBits
		c.Cost = int(number>>(i*digitBits)%(1<<digitBits)) + 1
		rule.Either = append(rule.Either, c)
	}
	rule.CountAuthorizedOnly = true
	return rule
}

// link notes that p's device has replaced that with number.
func (g *Guard) link(ctx context.Context, p party, number uint64) error {
	rule := g.linkRule(p, number)
	for range 2 {
		d, err := g.throttler.Authorize(ctx, rule)
		added := func(o throttler.Outcome) bool { return o.Remaining != o.Limit-o.Cost }
		if err = errors.Join(err, d.Err); err == nil && d.Status == throttler.Authorized && !slices.ContainsFunc(d.Outcomes, added) {
			return nil
		}
		// An earlier try has stored some of the digits.
		if err := errors.Join(err, g.throttler.Reset(ctx, rule)); err != nil {
			return err
		}
	}
	return errors.New("login: another attempt has linked the same devices meanwhile")
}

// linked returns the number of the device that p's device has replaced, if that
// was not confirmed yet.
func (g *Guard) linked(ctx context.Context, p party) (number uint64, found bool, err error) {
	rule := g.linkRule(p, 0)
	first, rest := rule, rule
	first.Either, rest.Either = rule.Either[:1], rule.Either[1:] // mostly there is none
	var outcomes []throttler.Outcome
	for _, part := range []throttler.Rule{first, rest} {
		d, err := g.throttler.Peek(ctx, part)
		if err = errors.Join(err, d.Err); err != nil {
			return 0, false, err
		}
		outcomes = append(outcomes, d.Outcomes...)
		if heldBefore(d.Outcomes[0]) == 0 {
			return 0, false, nil
		}
	}
	for i, o := range outcomes {
		number |= uint64(max(heldBefore(o)-1, 0)) << (i * digitBits)
	}
	return number, true, nil
}

// confirm makes the device leave that p's device has replaced.
func (g *Guard) confirm(ctx context.Context, p party) error {
	if p.device.value == "" || p.name == "" || g.KnownFor < 0 {
		return nil
	}
	var errs []error
	for _, q := range p.keyed() {
		number, found, err := g.linked(ctx, q)
		if !found {
			errs = append(errs, err)
			continue
		}
		old := g.numbered(q, number)
		d, err := g.throttler.Peek(ctx, g.knownRule(old.replaced))
		if err == nil && d.Outcomes[0].Remaining == 0 { // it was not forgotten meanwhile
			err = pour(ctx, g.throttler, g.knownRule(old.leaving))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		gone := g.knownRule(append(g.linkRule(q, 0).Either, old.replaced)...)
		errs = append(errs, g.throttler.Reset(ctx, gone))
	}
	return errors.Join(errs...)
}
