package throttler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
)

// MaxHits is the largest [Condition.Max] of a [SlidingWindow]; for more, use a
// [LeakyBucket] or a [Calendar]. A window stores each of up to 500 hits. With a Max above
// 32 a hit takes 3 bytes for a TTL of up to 27 minutes, 4 for up to 4 days, and 6 at most;
// with a smaller Max 5 bytes for up to 18 minutes, 6 for up to 3 days, and 8 at most. Of
// more hits it stores how many expire in each 1024th of the TTL: 1 to 3 kB, and never more
// than 6.2 kB.
const MaxHits = record.MaxHits

// minLease is the shortest [Condition.TTL] of [InFlight].
const minLease = 100 * time.Millisecond

// ErrInvalidRule matches, by errors.Is, the error of a call with a wrong [Rule] or
// [Condition], which is a [*RuleError].
var ErrInvalidRule = errors.New("throttler: invalid rule")

// A RuleError says which field of a [Rule] is wrong: get it by errors.As, to show the mistake
// where the rule was written. It matches [ErrInvalidRule].
type RuleError struct {
	Rule      string // its Identifier
	Condition string // its Name; empty: the field is the rule's, or the condition has no name
	Index     int    // of the condition in the rule; -1: the field is the rule's
	Field     string // "Max", "Period.Anchor"
	Got       string // its value, or what is wrong with it
	Want      string // what is wanted instead

	list string // "Either", "All" or "First"
}

// Error returns a line such as: throttler: invalid rule "api": condition "second":
// Either[0].Max is 0, want 1 to 1000000.
func (e *RuleError) Error() string {
	var b strings.Builder
	b.WriteString(ErrInvalidRule.Error())
	if e.Rule != "" {
		fmt.Fprintf(&b, " %q", e.Rule)
	}
	if e.Condition != "" {
		fmt.Fprintf(&b, ": condition %q", e.Condition)
	}
	b.WriteString(": ")
	if e.Index >= 0 {
		fmt.Fprintf(&b, "%s[%d].", e.list, e.Index)
	}
	fmt.Fprintf(&b, "%s is %s, want %s", e.Field, e.Got, e.Want)
	return b.String()
}

// Unwrap returns [ErrInvalidRule].
func (e *RuleError) Unwrap() error { return ErrInvalidRule }

// A Rule limits calls by one or more conditions, and says whether values that reach a limit
// are banned: pass one to each call of a [Throttler]. It is a plain value, usually built
// for each call with that call's Values.
type Rule struct {
	// Identifier keeps this rule's records apart from other rules': "login",
	// "robots". Required. Two rules with the same Identifier share the records
	// of conditions with the same Name and Value, and should give them the same
	// Algorithm, Max and TTL; see [Throttler.Conflict]. Changing Algorithm starts
	// with an empty window or bucket. A shorter TTL applies to all stored hits
	// from the first refusal on.
	Identifier string

	// Either blocks a call if any of its conditions is full. The other
	// conditions count the call all the same. Set one of Either, All and First.
	Either []Condition

	// All blocks a call if every one of its conditions is full. The conditions
	// that are not full count the call.
	All []Condition

	// First counts a call in the first of its conditions that has room for all its
	// hits, and blocks it if none has: a share of your own, then the common pool; the
	// plan, then the credits. Conditions behind the one that counts are not asked. A
	// condition that fails open counts as one with room. Each full condition before the
	// one that counts takes a further round trip, unless BlockCache answers for it.
	// CountAuthorizedOnly changes nothing.
	First []Condition

	// Lockout is the length of the ban that a call sets if it finds a condition
	// full. A banned condition counts nothing, and no call prolongs the ban. When
	// it ends, counting starts anew. Default: no ban, a full condition opens as
	// its hits expire.
	Lockout time.Duration

	// LockoutGrowth multiplies each repeated ban of a value: 2 doubles it. A
	// ban is repeated if it begins within 24 h of the end of the last
	// one. 1 or more, and only with a Lockout, here or in a condition.
	// Default: all bans have the same length.
	LockoutGrowth float64

	// MaxLockout is the longest ban that LockoutGrowth makes: Lockout or more,
	// and only with a Lockout. A condition's own Lockout may be longer, and does
	// not grow then. Default: 24 h, or Lockout if that is longer.
	MaxLockout time.Duration

	// CountAuthorizedOnly counts a call in all conditions or in none: a blocked
	// call uses up no budget. A Lockout bans a condition that the call finds full
	// when it looks at all of them, before it counts. A call that has counted a
	// hit when another condition turns out to be full gives the hit back, even if
	// ctx has ended. Default: conditions that are not full count a blocked call
	// too.
	CountAuthorizedOnly bool

	// Shadow authorizes every call, to try a limit out before it is enforced.
	// Conditions count and ban as usual. [Decision.WouldBlock] says whether the
	// call would have been blocked, and Outcomes say why.
	Shadow bool
}

// A Condition limits how often one value may occur, such as the calls of one customer: a
// [Rule] has one for each limit.
type Condition struct {
	// Name tells the conditions of a rule apart: "ip", "login". Required, and
	// unique within the rule.
	Name string

	// Value is what is counted: an address, a user name. It may be any bytes, of
	// any length, or empty. Values that differ in any byte are counted apart.
	Value string

	// Max is the number of hits that a window of TTL holds (1 to [MaxHits]), or
	// the largest burst of a bucket (1 to TTL in nanoseconds), or the number of hits
	// in a period of a [Calendar] (1 or more), or the number of hits in flight at the
	// same time (1 to 10,000, of which a record has 280 kB).
	Max int

	// TTL is how long a hit counts, or how long a full bucket takes to leak
	// empty. While a window holds more than 500 hits, and until it is empty, each of
	// them may count for TTL/1024 longer, never shorter. 1 ms or more, and at most
	// 100 years (of 365 days) for a [LeakyBucket]. For [InFlight], the lease: 100 ms or more. 0
	// for a [Calendar].
	TTL time.Duration

	// Message is added to [Decision.Messages] if this condition blocks.
	// Default: Name.
	Message string

	// Algorithm counts the hits. Default: [SlidingWindow].
	Algorithm Algorithm

	// Period says where the periods of a [Calendar] begin. Only with that.
	// Default: at midnight UTC.
	Period Period

	// Cost is the number of hits that a call takes, all or none. At most Max. A
	// call that does not fit is blocked. It sets a ban only if a single hit would
	// not fit either. Default: 1.
	Cost int

	// Least lets a call take less than its Cost: as many hits as there is room for,
	// if they are Least or more. [Outcome.Cost] says how many it has counted. A
	// call for which Least does not fit is blocked, and RetryAfter is until Least
	// fits. At most Cost. Default: all of Cost, or nothing.
	Least int

	// Lockout overrides the rule's for this condition. Negative: never banned.
	// Default: the rule's.
	Lockout time.Duration

	// Prefetch is the number of hits that a process may take ahead in one exchange, to
	// spend them without another within TTL/10, or 1 s if that is less. It takes fewer when
	// little is left, or little was used lately, and gives back what it has not spent with
	// the next exchange that counts. A hit taken ahead counts until TTL after the last
	// moment at which it can be spent, so no window ever admits more than Max, but some of
	// Max may go unused. To this process, what it has in hand is room; to others it is used. A
	// process that dies leaves up to Prefetch hits counted until they expire. It notices
	// room, bans and resets by others within that time. At most Max; not with a Lockout or
	// Least, nor for [InFlight] or [Calendar]. While the condition is full, calls are
	// refused without an exchange for up to a tenth of that time. Over a memstore there is
	// no exchange to save, and Prefetch changes nothing. Default: none.
	Prefetch int
}

// Algorithm is a way to count hits: set one in [Condition.Algorithm] if a sliding window
// does not suit.
type Algorithm int

const (
	// SlidingWindow, the default, is for limits that are a promise: it allows Max hits in
	// any period of TTL. It is a log of hits.
	SlidingWindow Algorithm = iota

	// LeakyBucket (GCRA) is for large limits and for an even rate: it stores one time,
	// whatever Max is. It allows a burst of Max hits, and Max per TTL on average: over any
	// time T no more than Max + T*Max/TTL.
	LeakyBucket

	// InFlight is for jobs, streams and requests under way: it allows Max hits at the same
	// time. Each counts until it is given back, or for TTL after it was counted or last
	// renewed: see [Throttler.Hold]. So if a program crashes, its hits are free after TTL.
	// A Lockout never bans such a condition, a ban by hand keeps its leases, and
	// BlockCache does not keep it.
	//
	// A call that another condition of its rule blocks is counted in flight all the same,
	// for TTL. To count authorized calls alone, set [Rule.CountAuthorizedOnly], or Cancel
	// the Decision of a blocked call. The middlewares and the service do that.
	InFlight

	// Calendar is for quotas by the day, week or month: it allows Max hits in each
	// [Condition.Period]. It stores one number, whatever Max is. When a period begins,
	// counting starts anew, and a ban that replaced the count ends it early too.
	// RetryAfter is until the next period begins. A process whose clock is behind counts
	// in the period that another one has begun, so the change to the next one is exact as
	// well.
	Calendar
)

// String returns "sliding window", "leaky bucket", "in flight" or "calendar".
func (a Algorithm) String() string {
	return nameOf("Algorithm", int(a), "sliding window", "leaky bucket", "in flight", "calendar")
}

// Conditions returns Either, All or First, whichever is set: use it in an observer, for the Outcomes of a
// Decision have the same order.
func (r Rule) Conditions() []Condition { return r.conditions() }

// conditions is Conditions.
func (r *Rule) conditions() []Condition {
	switch {
	case len(r.Either) > 0:
		return r.Either
	case len(r.All) > 0:
		return r.All
	}
	return r.First
}

// with returns r with other conditions in the place of its own.
func (r *Rule) with(conditions []Condition) Rule {
	of := *r
	switch {
	case len(r.Either) > 0:
		of.Either = conditions
	case len(r.All) > 0:
		of.All = conditions
	default:
		of.First = conditions
	}
	return of
}

// limit returns what c allows, for any Cost.
func (c *Condition) limit() record.Limit {
	l := record.Limit{Algorithm: record.Algorithm(c.Algorithm), Max: c.Max, TTL: c.TTL}
	if c.Algorithm == Calendar {
		p := c.Period.record()
		l.Period = &p
	}
	return l
}

// message returns the message of c for when it blocks.
func (c *Condition) message() string {
	if c.Message != "" {
		return c.Message
	}
	return c.Name
}

// Validate returns a [*RuleError] that says what is wrong with
// r, or nil: call it at the start of a program whose rules come from its configuration.
// Every method that takes a rule calls it too.
func (r Rule) Validate() error { return r.validate() }

// validate is Validate.
func (r *Rule) validate() error {
	if r.Identifier == "" {
		return r.invalid("Identifier", `""`, "a name")
	}
	if len(r.Either) > 0 && len(r.All) > 0 {
		return r.invalid("All", fmt.Sprintf("set (%d conditions) beside Either (%d)", len(r.All), len(r.Either)), "only one of Either, All and First")
	}
	if others := r.conditions(); len(r.First) > 0 && r.kind() != "First" {
		return r.invalid("First", fmt.Sprintf("set (%d conditions) beside %s (%d)", len(r.First), r.kind(), len(others)), "only one of Either, All and First")
	}
	if len(r.conditions()) == 0 {
		return r.invalid("Either", "empty, and so are All and First", "conditions in one of them")
	}
	switch {
	case r.Lockout < 0:
		return r.invalid("Lockout", r.Lockout, "0 or more")
	case r.LockoutGrowth != 0 && !(r.LockoutGrowth >= 1) || math.IsInf(r.LockoutGrowth, 0):
		return r.invalid("LockoutGrowth", r.LockoutGrowth, "0, or a number from 1")
	case r.MaxLockout < 0:
		return r.invalid("MaxLockout", r.MaxLockout, "0 or more")
	case r.MaxLockout != 0 && r.MaxLockout < r.Lockout:
		return r.invalid("MaxLockout", r.MaxLockout, fmt.Sprintf("0, or Lockout (%v) or more", r.Lockout))
	case r.LockoutGrowth != 0 && !r.bans():
		return r.invalid("LockoutGrowth", r.LockoutGrowth, "0, or a Lockout that grows")
	case r.MaxLockout != 0 && !r.bans():
		return r.invalid("MaxLockout", r.MaxLockout, "0, or a Lockout that grows")
	}
	return r.validateConditions()
}

// bans reports whether a Lockout is set anywhere in r, even a negative one.
func (r *Rule) bans() bool {
	return r.Lockout != 0 || slices.ContainsFunc(r.conditions(), func(c Condition) bool { return c.Lockout != 0 })
}

func (r *Rule) validateConditions() error {
	conditions := r.conditions()
	for i := range conditions {
		c := &conditions[i]
		field, problem, want := c.problem()
		if c.Prefetch != 0 && field == "" && r.lockout(c).Length > 0 {
			field, problem, want = "Prefetch", c.Prefetch, "0 with a Lockout"
		}
		for j := 0; j < i && field == ""; j++ {
			if conditions[j].Name == c.Name {
				field, problem, want = "Name", fmt.Sprintf("%q, as that of condition %d", c.Name, j), "one of its own"
			}
		}
		if field != "" {
			return r.invalidAt(i, field, problem, want)
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
	case c.Algorithm < SlidingWindow || c.Algorithm > Calendar:
		return "Algorithm", int(c.Algorithm), "SlidingWindow, LeakyBucket, InFlight or Calendar"
	case c.Algorithm != Calendar && c.Period != Period{}:
		return "Period", c.Period, "none, or Algorithm: Calendar"
	case c.Algorithm == Calendar && c.TTL != 0:
		return "TTL", c.TTL, "0 for a calendar, which has a Period"
	case c.Period.Unit < Day || c.Period.Unit > Month:
		return "Period.Unit", int(c.Period.Unit), "Day, Week or Month"
	case c.Period.Anchor < 0 || c.Period.Anchor > c.Period.lastAnchor():
		return "Period.Anchor", c.Period.Anchor, fmt.Sprintf("0 to %d in a %v", c.Period.lastAnchor(), c.Period.Unit)
	case c.Algorithm == InFlight && c.TTL < minLease:
		return "TTL", c.TTL, fmt.Sprintf("%v or more for hits in flight", minLease)
	case c.Algorithm != Calendar && c.TTL < time.Millisecond:
		return "TTL", c.TTL, "1ms or more"
	case c.Algorithm == LeakyBucket && c.TTL > record.MaxBucketTTL:
		return "TTL", c.TTL, fmt.Sprintf("at most %v for a %v", record.MaxBucketTTL, c.Algorithm)
	case c.Max < 1 || c.Max > c.largestMax():
		return "Max", c.Max, fmt.Sprintf("1 to %d", c.largestMax())
	case c.Cost < 0 || c.Cost > c.Max:
		return "Cost", c.Cost, fmt.Sprintf("0 to Max, which is %d", c.Max)
	case c.Least < 0 || c.Least > max(c.Cost, 1):
		return "Least", c.Least, fmt.Sprintf("0 to Cost, which is %d", max(c.Cost, 1))
	case c.Prefetch < 0 || c.Prefetch > c.Max:
		return "Prefetch", c.Prefetch, fmt.Sprintf("0 to Max, which is %d", c.Max)
	case c.Prefetch > 0 && c.Algorithm > LeakyBucket:
		return "Prefetch", c.Prefetch, "0, or a window or a bucket"
	case c.Prefetch > 0 && c.Least > 0:
		return "Prefetch", c.Prefetch, "0 with Least"
	}
	return "", nil, ""
}

// largestMax returns the upper bound of Max.
func (c *Condition) largestMax() int {
	switch c.Algorithm {
	case LeakyBucket:
		return int(min(int64(c.TTL), math.MaxInt))
	case InFlight:
		return record.MaxLeases
	case Calendar:
		return math.MaxInt
	}
	return MaxHits
}

func (r *Rule) kind() string {
	switch {
	case len(r.Either) > 0:
		return "Either"
	case len(r.All) > 0:
		return "All"
	}
	return "First"
}

// invalid returns the error of a field of r itself.
func (r *Rule) invalid(field string, problem any, want string) error {
	return &RuleError{Rule: r.Identifier, Index: -1, Field: field, Got: fmt.Sprint(problem), Want: want}
}

// invalidAt returns the error of a field of condition i.
func (r *Rule) invalidAt(i int, field string, problem any, want string) error {
	return &RuleError{
		Rule: r.Identifier, Condition: r.conditions()[i].Name, Index: i, Field: field, Got: fmt.Sprint(problem), Want: want, list: r.kind(),
	}
}

// A Period says where the periods of a [Calendar] begin. The zero Period is a day in UTC.
type Period struct {
	// Unit is how long a period is. Default: [Day].
	Unit Unit

	// Anchor is the day on which a period begins: of the month (1 to 31, or the last
	// day of a shorter month), or of the week (1 is Monday, 7 is Sunday). Default: 1.
	Anchor int

	// Location is the time zone. A period begins at the first instant of its anchor
	// day there. This is midnight, or what comes instead if midnight is skipped or
	// repeated when clocks are changed. Load it once: a rule is prepared anew for each
	// other pointer. Default: UTC.
	Location *time.Location
}

// Unit is the length of a [Period]: [Day], [Week] or [Month].
type Unit int

const (
	Day Unit = iota
	Week
	Month
)

// String returns "day", "week" or "month".
func (u Unit) String() string { return nameOf("Unit", int(u), "day", "week", "month") }

// String describes p, as in "a month from day 15, Europe/Berlin".
func (p Period) String() string {
	zone := time.UTC
	if p.Location != nil {
		zone = p.Location
	}
	if p.Unit == Day {
		return fmt.Sprintf("a day, %v", zone)
	}
	return fmt.Sprintf("a %v from day %d, %v", p.Unit, max(p.Anchor, 1), zone)
}

// Bounds returns when the period that contains t begins, and when the next one does, to
// show it to users. p
// must be valid, and t before the year 2262.
func (p Period) Bounds(t time.Time) (start, end time.Time) {
	b := p.record().Around(record.InstantOf(t))
	zone := p.Location
	if zone == nil {
		zone = time.UTC
	}
	return time.Unix(0, int64(b.Start)).In(zone), time.Unix(0, int64(b.End)).In(zone)
}

// record returns p as records know it.
func (p Period) record() record.Period {
	return record.Period{Unit: record.Unit(p.Unit), Anchor: uint8(p.Anchor), Location: p.Location}
}

// lastAnchor returns the largest Anchor that p may have.
func (p Period) lastAnchor() int {
	switch p.Unit {
	case Week:
		return 7
	case Month:
		return 31
	}
	return 1
}
