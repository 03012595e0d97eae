package throttler

import (
	"context"
	"errors"
	"time"
)

// Ban bans the values of the rule's conditions until d from now, whatever their
// limits say. A ban that ends later stays as it is. Hits are forgotten, as when
// a limit bans. [Throttler.Reset] lifts the ban.
//
// The error matches [ErrInvalidRule] if the rule is invalid or d is not above 0.
// Otherwise it is the backend's: the conditions it does not concern are banned
// all the same.
func (t *Throttler) Ban(ctx context.Context, rule Rule, d time.Duration) error {
	if err := rule.Validate(); err != nil {
		return err
	}
	if d <= 0 {
		return invalid("ban", d, "more than 0")
	}
	c := newCall(t.client, rule)
	err := c.ban(ctx, d)
	for _, e := range c.entries {
		if t.bans.ready(t.BanCache) {
			t.bans.remove(e.key)
		}
	}
	return err
}

// ban sets the bans of c's conditions, and returns what failed.
func (c *call) ban(ctx context.Context, d time.Duration) error {
	var errs []error
	open := c.entries
	for len(open) > 0 {
		each(ctx, open, (*entry).get)
		now := instantOf(time.Now())
		var writes []*entry
		for _, e := range open {
			switch {
			case e.err != nil:
				errs = append(errs, e.err)
			case e.proposeBan(now, d):
				writes = append(writes, e)
			}
		}
		each(ctx, writes, (*entry).put)
		open = nil
		for _, e := range writes {
			if e.again() {
				open = append(open, e)
			} else if e.err != nil {
				errs = append(errs, e.err)
			}
		}
	}
	return errors.Join(errs...)
}

// proposeBan has a ban of length d ready to be put, unless a longer one holds.
func (e *entry) proposeBan(now instant, d time.Duration) bool {
	b, _ := e.stored().ban.at(now)
	until := now.add(d)
	if b.end >= until {
		return false
	}
	e.now, e.next = now, record{ban: ban{end: until, length: until - now, offences: b.offences}}
	return true
}
