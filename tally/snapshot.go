package tally

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
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

	// Uncounted is the number of calls that are missing above, in whole or for
	// some conditions: there were more rules and conditions than
	// [Tally.MaxNames], or a name was too long. If it is not 0, the program
	// probably makes names of what belongs into Value.
	Uncounted uint64 `json:"uncounted"`
}

// RuleCounts are the calls of all rules with the same Identifier.
type RuleCounts struct {
	// Identifier is the rule's.
	Identifier string `json:"identifier"`

	// Calls is the number of calls, the sum of the next three.
	Calls uint64 `json:"calls"`

	// Authorized is the number of calls that the rule authorized.
	Authorized uint64 `json:"authorized"`

	// Blocked is the number of calls that the rule blocked.
	Blocked uint64 `json:"blocked"`

	// WouldBlock is the number of calls that were authorized only because of the
	// rule's Shadow.
	WouldBlock uint64 `json:"would_block"`

	// Failed is the number of Calls during which the backend failed: Decision.Err
	// was set. They also count above, as what they came to.
	Failed uint64 `json:"failed"`

	// LostRaces is the sum of the Conditions' LostRaces.
	LostRaces uint64 `json:"lost_races"`

	// Conditions are the rule's conditions, in the order in which they were
	// first seen.
	Conditions []ConditionCounts `json:"conditions"`
}

// ConditionCounts are the calls of all conditions with the same Name in the
// rules with the same Identifier.
type ConditionCounts struct {
	// Name is the condition's.
	Name string `json:"name"`

	// Calls is the number of calls, the sum of the next four.
	Calls uint64 `json:"calls"`

	// Authorized is the number of calls for which the condition had room, or
	// could not be looked at. Another condition may have blocked them.
	Authorized uint64 `json:"authorized"`

	// Blocked is the number of calls that were blocked while the condition was
	// full or banned. In a rule of Either this condition blocked them, alone or
	// with others; in a rule of All, all of its conditions did.
	Blocked uint64 `json:"blocked"`

	// WouldBlock is the same as Blocked, for calls that were authorized only
	// because of the rule's Shadow.
	WouldBlock uint64 `json:"would_block"`

	// Overruled is the number of calls for which the condition was full or
	// banned, and that another condition of All authorized.
	Overruled uint64 `json:"overruled"`

	// Banned is the number of Calls that met a ban or set one. They also count
	// in Blocked, WouldBlock or Overruled.
	Banned uint64 `json:"banned"`

	// Failed is the number of Calls during which the backend failed: Outcome.Err
	// was set. Those in Authorized failed open, unless the throttler has a
	// Fallback, which decided them.
	Failed uint64 `json:"failed"`

	// LostRaces is the sum of Outcome.LostRaces: how often the condition was
	// decided again because another process had changed its record.
	LostRaces uint64 `json:"lost_races"`

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
	c := t.counts.Load()
	s := Snapshot{
		Since:     c.since,
		At:        time.Now().UTC(),
		Rules:     []RuleCounts{},
		Logins:    c.logins.snapshot(t.maxValues()),
		Uncounted: c.uncounted.Load(),
	}
	for identifier, r := range *c.rules.Load() {
		s.Rules = append(s.Rules, r.snapshot(identifier, t.maxValues()))
	}
	slices.SortFunc(s.Rules, func(a, b RuleCounts) int { return strings.Compare(a.Identifier, b.Identifier) })
	return s
}

func (r *rule) snapshot(identifier string, maxValues int) RuleCounts {
	s := RuleCounts{
		Identifier: identifier,
		Authorized: r.calls[authorized].Load(),
		Blocked:    r.calls[blocked].Load(),
		WouldBlock: r.calls[wouldBlock].Load(),
		Failed:     r.failed.Load(),
		Conditions: []ConditionCounts{},
	}
	s.Calls = s.Authorized + s.Blocked + s.WouldBlock
	for _, n := range *r.conditions.Load() {
		c := n.snapshot(maxValues)
		s.Conditions = append(s.Conditions, c)
		s.LostRaces += c.LostRaces
	}
	return s
}

func (n *condition) snapshot(maxValues int) ConditionCounts {
	s := ConditionCounts{
		Name:       n.name,
		Authorized: n.calls[authorized].Load(),
		Blocked:    n.calls[blocked].Load(),
		WouldBlock: n.calls[wouldBlock].Load(),
		Overruled:  n.calls[overruled].Load(),
		Banned:     n.banned.Load(),
		Failed:     n.failed.Load(),
		LostRaces:  n.lostRaces.Load(),
	}
	s.Calls = s.Authorized + s.Blocked + s.WouldBlock + s.Overruled
	s.Values, s.Unlisted = n.snapshotValues(maxValues)
	if maxValues == 0 {
		s.Unlisted = s.Blocked + s.WouldBlock
	}
	return s
}

func (n *condition) snapshotValues(maxValues int) ([]ValueCount, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.values.values(), n.values.min(maxValues)
}

// values returns the counted values in printable form, most first.
func (s *summary) values() []ValueCount {
	values := make([]ValueCount, len(s.order))
	for i, c := range s.order {
		values[i] = ValueCount{Value: printable(c.value), Count: c.count, Error: c.overcount}
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
