package throttler

import (
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// defaultMaxLockout is the default of [Rule.MaxLockout].
const defaultMaxLockout = 24 * time.Hour

// lockout returns how r bans c.
func (r *Rule) lockout(c *Condition) record.Lockout {
	l := record.Lockout{Length: r.Lockout, Growth: r.LockoutGrowth, Longest: r.MaxLockout}
	if c.Lockout != 0 {
		l.Length = max(c.Lockout, 0)
	}
	if c.Algorithm == InFlight {
		l.Length = 0
	}
	if l.Longest == 0 {
		l.Longest = defaultMaxLockout
	}
	l.Longest = max(l.Longest, l.Length)
	return l
}
