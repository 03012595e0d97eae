package tally

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/adaptivethrottler/throttler/internal/counts"
	"github.com/adaptivethrottler/throttler/login"
)

// A Snapshot holds the counts of a [Tally] at a moment. It shares nothing with
// the tally. As JSON its slices are never null.
//
// Each count is exact, but a concurrent call may be in some of the counts and
// not yet in others.
type Snapshot struct {
	// Since is the time at which counting began, At the time of the snapshot.
	// Both are in UTC.
	Since time.Time `json:"since"`
	At    time.Time `json:"at"`

	// Rules are the rules that decided a call, by Identifier.
	Rules []RuleCounts `json:"rules"`

	// Logins are the attempts to log in, nil if there were none. They are not
	// calls of Rules.
	Logins *LoginCounts `json:"logins,omitempty"`

	// Robots are the requests by who sent them, most first, if
	// [Tally.ObserveRobot] was called.
	Robots []RobotCount `json:"robots,omitempty"`

	// Uncounted is the number of calls that are missing above, in whole or for
	// some conditions: there were more rules and conditions than
	// [Tally.MaxNames], or a name was too long. If it is not 0, the program
	// probably makes names of what belongs into Value.
	Uncounted uint64 `json:"uncounted"`
}

// Counts are numbers of calls, of a rule or of one of its conditions.
type Counts struct {
	// Calls is the number of calls, the sum of the next four.
	Calls uint64 `json:"calls"`

	// Authorized is the number of calls that the rule authorized; of a
	// condition, the number for which it had room, or could not be looked at.
	// Another condition may have blocked them.
	Authorized uint64 `json:"authorized"`

	// Blocked is the number of calls that the rule blocked; of a condition, of
	// those for which it was full or banned. In a rule of Either it blocked
	// them, alone or with others; in a rule of All, all of its conditions did.
	Blocked uint64 `json:"blocked"`

	// WouldBlock is the same as Blocked, for calls that were authorized only
	// because of the rule's Shadow.
	WouldBlock uint64 `json:"would_block"`

	// Overruled is the number of calls for which a condition was full or
	// banned, and that another condition of All or First authorized. Of a rule
	// it is 0.
	Overruled uint64 `json:"overruled"`

	// Banned is the number of Calls that met a ban of a condition or set one.
	// They also count in Blocked, WouldBlock or Overruled. Of a rule it is 0.
	Banned uint64 `json:"banned"`

	// Failed is the number of Calls during which the backend failed. They also
	// count above. Those in Authorized failed open, unless the throttler has a
	// Fallback, which decided them.
	Failed uint64 `json:"failed"`

	// LostRaces is how often conditions were decided again because another
	// process had changed their record.
	LostRaces uint64 `json:"lost_races"`
}

// A RobotCount is the number of requests of a kind of client.
type RobotCount struct {
	Group    string `json:"group"`    // of a robot; empty: a person, or a robot that is not known
	Standing string `json:"standing"` // "person", "unknown", "claimed", "verified" or "impostor"
	Requests uint64 `json:"requests"`
}

// RuleCounts are the calls of all rules with the same Identifier.
type RuleCounts struct {
	// Identifier is the rule's.
	Identifier string `json:"identifier"`

	Counts

	// Conditions are the rule's conditions, in the order in which they were
	// first seen.
	Conditions []ConditionCounts `json:"conditions"`
}

// ConditionCounts are the calls of all conditions with the same Name in the
// rules with the same Identifier.
type ConditionCounts struct {
	// Name is the condition's.
	Name string `json:"name"`

	Counts

	// Values are the values that were blocked most, in Blocked and WouldBlock
	// together, most blocked first. There are at most [Tally.MaxValues]. Every
	// value that was blocked more than Unlisted times is among them.
	Values []ValueCount `json:"values"`

	// Unlisted is an upper bound on how often a value that is not in Values was
	// blocked. While all values fit it is 0, and Values is complete and exact.
	// It is at most (Blocked + WouldBlock)/MaxValues, or their sum if no values
	// are kept.
	Unlisted uint64 `json:"unlisted"`
}

// LoginCounts counts attempts to log in.
type LoginCounts struct {
	// Attempts is the sum of the next four.
	Attempts uint64 `json:"attempts"`

	// Succeeded, Failed and Canceled count attempts by how they ended. Refused
	// counts attempts whose password was not looked at. An attempt that the
	// application never ends is not counted.
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	Refused   uint64 `json:"refused"`
	Canceled  uint64 `json:"canceled"`

	// WouldBlock is the number of attempts that passed only because of Shadow.
	// They also count by how they ended.
	WouldBlock uint64 `json:"would_block"`

	// Known is the number of Attempts that were decided by the limits of a
	// known address or device.
	Known uint64 `json:"known"`

	// FailedShare is Failed/(Succeeded+Failed): the share of wrong passwords
	// among those looked at. 0 if there was none.
	FailedShare float64 `json:"failed_share"`

	// Errors is the number of Attempts during which the backend failed:
	// Decision.Err was set. They also count above.
	Errors uint64 `json:"errors"`

	// Names, Addresses and Networks are those with the most failures, most
	// first: see [ConditionCounts.Values]. An IPv6 address is its /64. Networks
	// are /24 of IPv4 and /48 of IPv6.
	Names     []ValueCount `json:"names"`
	Addresses []ValueCount `json:"addresses"`
	Networks  []ValueCount `json:"networks"`

	// Unlisted is an upper bound on the failures of a name, address or network
	// that is not in its list. It is 0 while all fit, and at most
	// Failed/MaxValues. If no values are kept it is Failed.
	Unlisted uint64 `json:"unlisted"`
}

// A ValueCount is the number of times that a condition blocked a value or would
// have blocked it; in [LoginCounts], the number of failures.
type ValueCount struct {
	// Value is the value. It is quoted as in Go unless it is valid UTF-8,
	// printable, and begins and ends neither with a '"' nor a blank;
	// strconv.Unquote reverses that. So it is safe in a log or on a terminal,
	// but must be escaped for HTML or a shell.
	//
	// For a value of more than 128 bytes this is its first 96 bytes,
	// "...sha256:" and its SHA-256 in hexadecimal. With [Tally.HashKey] it is a
	// hash.
	Value string `json:"value"`

	// Count is an upper bound on how often the value was blocked.
	Count uint64 `json:"count"`

	// Error is the largest possible excess of Count: the value was blocked at
	// least Count-Error times. 0 means that Count is exact. Error is at most
	// the condition's Unlisted.
	Error uint64 `json:"error"`
}

// Snapshot returns the counts since [New] or the last [Tally.Reset].
func (t *Tally) Snapshot() Snapshot {
	e := t.epoch.Load()
	s := Snapshot{
		Since:     e.since,
		At:        time.Now().UTC(),
		Rules:     []RuleCounts{},
		Logins:    e.logins(t.maxValues()),
		Robots:    e.robotCounts(),
		Uncounted: e.table.Uncounted.Load(),
	}
	for _, r := range e.table.Rules() {
		s.Rules = append(s.Rules, ruleCounts(r, t.maxValues()))
	}
	slices.SortFunc(s.Rules, func(a, b RuleCounts) int { return strings.Compare(a.Identifier, b.Identifier) })
	return s
}

func (e *epoch) robotCounts() (all []RobotCount) {
	e.robotsMu.Lock()
	defer e.robotsMu.Unlock()
	for c, n := range e.robots {
		c.Requests = n
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b RobotCount) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Standing, b.Standing))
	})
	return all
}

func ruleCounts(r *counts.Rule, maxValues int) RuleCounts {
	s := RuleCounts{Identifier: r.Name, Conditions: []ConditionCounts{}}
	for result := range r.Calls {
		s.add(counts.Result(result), r.Calls[result].Load())
	}
	s.Failed = r.Failed.Load()
	for _, n := range r.Conditions() {
		c := conditionCounts(n, maxValues)
		s.Conditions = append(s.Conditions, c)
		s.LostRaces += c.LostRaces
	}
	return s
}

func conditionCounts(n *counts.Condition, maxValues int) ConditionCounts {
	s := ConditionCounts{Name: n.Name, Counts: Counts{LostRaces: n.LostRaces.Load()}}
	for result := range n.Calls {
		banned := n.Calls[result][1].Load()
		s.add(counts.Result(result), n.Calls[result][0].Load()+banned)
		s.Banned += banned
	}
	for kind := range n.Failed {
		s.Failed += n.Failed[kind].Load()
	}
	n.Values.Lock()
	defer n.Values.Unlock()
	s.Values, s.Unlisted = listed(&n.Values.Summary), n.Values.Min(maxValues)
	if maxValues == 0 {
		s.Unlisted = s.Blocked + s.WouldBlock
	}
	return s
}

// add adds calls with a result.
func (c *Counts) add(result counts.Result, calls uint64) {
	c.Calls += calls
	switch result {
	case counts.Authorized:
		c.Authorized += calls
	case counts.Blocked:
		c.Blocked += calls
	case counts.WouldBlock:
		c.WouldBlock += calls
	case counts.Overruled:
		c.Overruled += calls
	}
}

// logins returns the counts of attempts to log in, or nil if there were none.
func (e *epoch) logins(maxValues int) *LoginCounts {
	l := &e.table.Logins
	of := func(result login.Result) uint64 { return l.Results[result][0].Load() + l.Results[result][1].Load() }
	s := &LoginCounts{
		Refused:    of(login.Refused),
		Succeeded:  of(login.Succeeded),
		Failed:     of(login.Failed),
		Canceled:   of(login.Canceled),
		WouldBlock: l.WouldBlock.Load(),
		Errors:     l.Failed.Load(),
	}
	s.Attempts = s.Refused + s.Succeeded + s.Failed + s.Canceled
	if s.Attempts == 0 {
		return nil
	}
	for result := range l.Results {
		s.Known += l.Results[result][1].Load()
	}
	if verified := s.Succeeded + s.Failed; verified > 0 {
		s.FailedShare = float64(s.Failed) / float64(verified)
	}
	if maxValues == 0 {
		s.Unlisted = s.Failed
	}
	e.names.Lock()
	defer e.names.Unlock()
	for _, list := range []*counts.Values{&e.names, &e.addrs, &e.networks} {
		s.Unlisted = max(s.Unlisted, list.Min(maxValues))
	}
	s.Names, s.Addresses, s.Networks = listed(&e.names.Summary), listed(&e.addrs.Summary), listed(&e.networks.Summary)
	return s
}

// listed returns the values of s in printable form, most first.
func listed(s *counts.Summary) []ValueCount {
	values := make([]ValueCount, 0, s.Len())
	for value, c := range s.All {
		values = append(values, ValueCount{Value: printable(value), Count: c.Count, Error: c.Overcount})
	}
	slices.SortFunc(values, func(a, b ValueCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), strings.Compare(a.Value, b.Value))
	})
	return values
}

// printable returns value, quoted if it cannot be printed or looks quoted.
func printable(value string) string {
	if !utf8.ValidString(value) || strings.Trim(value, `" `) != value {
		return strconv.Quote(value)
	}
	for _, r := range value {
		if !strconv.IsPrint(r) {
			return strconv.Quote(value)
		}
	}
	return value
}
