package throttler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// MaxHits is the largest [Condition.Max] of a [SlidingWindow]. A window stores
// each hit on its own. In one so large that takes 3 bytes for a TTL of up to 28
// minutes and 6 at most, so a full record stays under 600 kB, well below the 1
// MiB that memcached takes.
const MaxHits = 100_000

// MaxBucketTTL is the longest [Condition.TTL] of a [LeakyBucket].
const MaxBucketTTL = 100 * 365 * 24 * time.Hour

// ErrInvalidRule is wrapped by the error of every call that is given a rule
// which breaks what [Rule] and [Condition] ask for. The text names the field
// and its value.
var ErrInvalidRule = errors.New("throttler: invalid rule")

// A Rule says what is limited: one or more conditions, combined by either or
// all, and what happens to a condition that is found full.
//
// A rule is a plain value, usually built anew for every call with the Values
// of that call in its conditions.
type Rule struct {
	// Identifier tells this rule's records from those of other rules:
	// "login", "robots". Two rules with the same Identifier share the
	// records of conditions that have the same Name and Value, and should
	// have the same Algorithm, Max and TTL for them: each Algorithm counts
	// its own hits only, and a shorter TTL applies to all stored hits from the
	// first refusal on. See [Throttler.Conflict]. Required.
	Identifier string

	// Either blocks a call as soon as one of its conditions is full. The
	// other conditions count the call all the same.
	Either []Condition

	// All blocks a call only if every one of its conditions is full. The
	// conditions that are not full count the call. Exactly one of Either
	// and All is set.
	All []Condition

	// Lockout is how long a condition that is found full stays banned,
	// from the call that found it so. During a ban nothing is counted and
	// nothing prolongs it; when it ends, counting starts anew.
	// 0: no ban, a full condition opens as its hits expire.
	Lockout time.Duration

	// LockoutGrowth multiplies each repeated ban of a value: 2 doubles it. A
	// ban is repeated if the value is found full again within [LockoutMemory]
	// of the end of the last one. 1 or more, and only with a Lockout, here or
	// in a condition. 0: all bans are alike.
	LockoutGrowth float64

	// MaxLockout is the longest that a ban grows to. It is not less than
	// Lockout; a condition's own Lockout may be longer, and does not grow
	// then. Only with a Lockout. Default: [DefaultMaxLockout], or Lockout if
	// that is longer.
	MaxLockout time.Duration

	// CountAuthorizedOnly keeps a call that is blocked from using up the
	// budget of conditions that would have taken it. A condition that is
	// found full is banned all the same. A call that counts a hit before
	// another condition turns out to be full gives the hit back, even if ctx
	// has ended. Default: false, conditions that are not full count a blocked
	// call too, as in the original.
	CountAuthorizedOnly bool

	// Shadow lets every call pass that the rule would block, to try out
	// limits before they are enforced: conditions are counted and banned as
	// usual, [Decision.WouldBlock] says what Status would have been, and
	// Outcomes say why.
	Shadow bool
}

// A Condition limits how often one value may occur.
type Condition struct {
	// Name tells the conditions of a rule apart: "ip", "login". Required,
	// and different for each condition of a rule.
	Name string

	// Value is what is counted: an address, a user name. Any bytes will
	// do, of any length, and none at all. Values that differ in any byte
	// are counted apart.
	Value string

	// Max is how many hits a window of TTL holds, or how large a burst a
	// bucket takes: 1 to [MaxHits] for a [SlidingWindow], 1 to TTL in
	// nanoseconds for a [LeakyBucket].
	Max int

	// TTL is how long a hit counts, or how long a full bucket takes to leak
	// empty: 1 ms or more, and at most [MaxBucketTTL] for a [LeakyBucket].
	TTL time.Duration

	// Message is handed back in [Decision.Messages] when this condition
	// blocks. Empty: Name.
	Message string

	// Algorithm is how hits are counted. The zero value is SlidingWindow.
	Algorithm Algorithm

	// Cost is how many hits a call takes: all of them, or none if they do not
	// fit. A call that does not fit is blocked, but bans only if one hit would
	// not fit either. 0 to Max; 0: 1.
	Cost int

	// Lockout overrides the rule's for this condition. 0: the rule's;
	// negative: this condition is never banned.
	Lockout time.Duration
}

// Algorithm is a way to count hits.
type Algorithm int

const (
	// SlidingWindow remembers when each hit expires, and takes Max of them
	// in any window of TTL.
	SlidingWindow Algorithm = iota

	// LeakyBucket remembers one time, whatever Max is, and takes a burst of
	// Max hits and Max per TTL on average: over any time T no more than
	// Max + T*Max/TTL.
	LeakyBucket
)

// String returns "sliding window" or "leaky bucket".
func (a Algorithm) String() string {
	switch a {
	case SlidingWindow:
		return "sliding window"
	case LeakyBucket:
		return "leaky bucket"
	}
	return fmt.Sprintf("Algorithm(%d)", int(a))
}

// conditions returns the rule's conditions, whichever way they are combined.
func (r *Rule) conditions() []Condition {
	if len(r.Either) > 0 {
		return r.Either
	}
	return r.All
}

// cost returns how many hits a call takes of c.
func (c *Condition) cost() int {
	return max(c.Cost, 1)
}

// message returns what c has to say when it blocks.
func (c *Condition) message() string {
	if c.Message != "" {
		return c.Message
	}
	return c.Name
}

// Validate reports what is wrong with r, in an error that wraps
// [ErrInvalidRule], or nil. Every method that takes a rule calls it; a program
// whose rules are configured may call it when it starts.
func (r Rule) Validate() error {
	if r.Identifier == "" {
		return invalid("Identifier", `""`, "a name")
	}
	if len(r.Either) > 0 && len(r.All) > 0 {
		return invalid("All", fmt.Sprintf("set (%d conditions) beside Either (%d)", len(r.All), len(r.Either)), "only one of the two")
	}
	if len(r.Either) == 0 && len(r.All) == 0 {
		return invalid("Either", "empty, and so is All", "conditions in one of the two")
	}
	switch {
	case r.Lockout < 0:
		return invalid("Lockout", r.Lockout, "0 or more")
	case r.LockoutGrowth != 0 && !(r.LockoutGrowth >= 1) || math.IsInf(r.LockoutGrowth, 0):
		return invalid("LockoutGrowth", r.LockoutGrowth, "0, or a number from 1")
	case r.MaxLockout < 0:
		return invalid("MaxLockout", r.MaxLockout, "0 or more")
	case r.MaxLockout != 0 && r.MaxLockout < r.Lockout:
		return invalid("MaxLockout", r.MaxLockout, fmt.Sprintf("0, or Lockout (%v) or more", r.Lockout))
	case r.LockoutGrowth != 0 && !r.bans():
		return invalid("LockoutGrowth", r.LockoutGrowth, "0, or a Lockout that grows")
	case r.MaxLockout != 0 && !r.bans():
		return invalid("MaxLockout", r.MaxLockout, "0, or a Lockout that grows")
	}
	return r.validateConditions()
}

// bans reports whether a lockout is set anywhere in r, be it that a condition is
// never to be banned.
func (r *Rule) bans() bool {
	return r.Lockout != 0 || slices.ContainsFunc(r.conditions(), func(c Condition) bool { return c.Lockout != 0 })
}

func (r *Rule) validateConditions() error {
	conditions := r.conditions()
	for i := range conditions {
		c := &conditions[i]
		field, problem, want := c.problem()
		for j := 0; j < i && field == ""; j++ {
			if conditions[j].Name == c.Name {
				field, problem, want = "Name", fmt.Sprintf("%q, as that of condition %d", c.Name, j), "one of its own"
			}
		}
		if field != "" {
			return invalid(fmt.Sprintf("%s[%d].%s", r.kind(), i, field), problem, want)
		}
	}
	return nil
}

// problem returns the first field of c that breaks its contract, how it does
// and what was wanted instead, or "" for a good condition.
func (c *Condition) problem() (field string, problem any, want string) {
	switch {
	case c.Name == "":
		return "Name", `""`, "a name"
	case c.Algorithm != SlidingWindow && c.Algorithm != LeakyBucket:
		return "Algorithm", int(c.Algorithm), "SlidingWindow or LeakyBucket"
	case c.TTL < time.Millisecond:
		return "TTL", c.TTL, "1ms or more"
	case c.Algorithm == LeakyBucket && c.TTL > MaxBucketTTL:
		return "TTL", c.TTL, fmt.Sprintf("at most %v for a %v", MaxBucketTTL, c.Algorithm)
	case c.Max < 1 || c.Max > c.largestMax():
		return "Max", c.Max, fmt.Sprintf("1 to %d", c.largestMax())
	case c.Cost < 0 || c.Cost > c.Max:
		return "Cost", c.Cost, fmt.Sprintf("0 to Max, which is %d", c.Max)
	}
	return "", nil, ""
}

// largestMax returns the upper bound of Max.
func (c *Condition) largestMax() int {
	if c.Algorithm == LeakyBucket {
		return int(min(int64(c.TTL), math.MaxInt))
	}
	return MaxHits
}

func (r *Rule) kind() string {
	if len(r.Either) > 0 {
		return "Either"
	}
	return "All"
}

func invalid(field string, problem any, want string) error {
	return fmt.Errorf("%w: %s is %v, want %s", ErrInvalidRule, field, problem, want)
}
