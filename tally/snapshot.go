package tally

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/adaptivethrottler/throttler/internal/counts"
	"github.com/adaptivethrottler/throttler/login"
)

// A snapshot holds the counts of a Tally at a moment. [Tally.MarshalJSON] says what its members
// mean.
type snapshot struct {
	Since     time.Time    `json:"since"`
	At        time.Time    `json:"at"`
	Rules     []ruleCounts `json:"rules"`
	Logins    *loginCounts `json:"logins,omitempty"`
	Robots    []robotCount `json:"robots,omitempty"`
	Uncounted uint64       `json:"uncounted"`
}

// callCounts are numbers of calls, of a rule or of one of its conditions.
type callCounts struct {
	Calls      uint64 `json:"calls"`
	Authorized uint64 `json:"authorized"`
	Blocked    uint64 `json:"blocked"`
	WouldBlock uint64 `json:"would_block"`
	Overruled  uint64 `json:"overruled"`
	Banned     uint64 `json:"banned"`
	Failed     uint64 `json:"failed"`
	LostRaces  uint64 `json:"lost_races"`
}

// A robotCount is the number of requests of a kind of client.
type robotCount struct {
	Group    string `json:"group"`
	Standing string `json:"standing"`
	Requests uint64 `json:"requests"`
}

// ruleCounts are the calls of all rules with the same Identifier.
type ruleCounts struct {
	Identifier string `json:"identifier"`
	callCounts
	Conditions []conditionCounts `json:"conditions"`
}

// conditionCounts are the calls of all conditions with the same Name in the rules with the same
// Identifier.
type conditionCounts struct {
	Name string `json:"name"`
	callCounts
	Values   []valueCount `json:"values"`
	Unlisted uint64       `json:"unlisted"`
}

// loginCounts counts attempts to log in.
type loginCounts struct {
	Attempts    uint64       `json:"attempts"`
	Succeeded   uint64       `json:"succeeded"`
	Failed      uint64       `json:"failed"`
	Refused     uint64       `json:"refused"`
	Canceled    uint64       `json:"canceled"`
	WouldBlock  uint64       `json:"would_block"`
	Known       uint64       `json:"known"`
	FailedShare float64      `json:"failed_share"`
	Errors      uint64       `json:"errors"`
	Names       []valueCount `json:"names"`
	Addresses   []valueCount `json:"addresses"`
	Networks    []valueCount `json:"networks"`
	Unlisted    uint64       `json:"unlisted"`
}

// A valueCount is the number of times that a condition blocked a value or would have blocked it; in
// loginCounts, the number of failures.
type valueCount struct {
	Value string `json:"value"`
	Count uint64 `json:"count"`
	Error uint64 `json:"error"`
}

// MarshalJSON returns the counts since [New] or the last [Tally.Reset], for programs: decode the
// members that you want. The names stay, and members may be added.
//
//   - since and at: the times at which counting began and of this snapshot, in UTC.
//   - rules: the rules that decided a call, by identifier, each with its calls, and conditions: the
//     same counts of all conditions with the same name, in the order in which they were first seen.
//   - logins: the attempts to log in, absent if there were none. They are no calls of rules.
//   - robots: the requests by who sent them, most first, if [Tally.ObserveRobot] was called.
//   - uncounted: the number of calls that are missing above, in whole or for some conditions:
//     there were more rules and conditions than [Tally.MaxNames], or a name was too long. If it is
//     not 0, the program probably makes names of what belongs into Value.
//
// Each count is exact, but a concurrent call may be in some of them and not yet in others. No list
// is null.
//
// The counts of a rule, and of one of its conditions:
//
//   - calls: the sum of the next four.
//   - authorized: the rule authorized the call; the condition had room, or could not be looked at.
//   - blocked: the rule blocked the call; it did, and the condition was full or banned.
//   - would_block: the same, of calls that were authorized only because of the rule's Shadow.
//   - overruled: the condition was full or banned, and another one of All or First authorized the
//     call. 0 of a rule.
//   - banned: calls that met a ban of the condition or set one. They also count in blocked,
//     would_block or overruled. 0 of a rule.
//   - failed: calls during which the backend failed. They also count above. Those in authorized
//     failed open, unless the throttler has a Fallback, which decided them.
//   - lost_races: how often conditions were decided again because another process had changed their
//     record.
//
// A condition also has values: those that were blocked most, in blocked and would_block together,
// most first, at most [Tally.MaxValues]. Every value that was blocked more than unlisted times is
// among them: unlisted is an upper bound for the others. While all values fit it is 0, and values
// is complete and exact. It is at most (blocked + would_block)/MaxValues, or their sum if no values
// are kept. Of each value there are
//
//   - value: quoted as in Go unless it is valid UTF-8, printable, and begins and ends neither with a
//     '"' nor a blank; strconv.Unquote reverses that. So it is safe in a log or on a terminal, but
//     must be escaped for HTML or a shell. Of one of more than 128 bytes there are the first 96,
//     "...sha256:" and its SHA-256 in hexadecimal. With [Tally.HashKey] it is a hash.
//   - count: an upper bound on how often it was blocked.
//   - error: the largest possible excess of count: the value was blocked at least count-error times.
//     0 means that count is exact. It is at most unlisted.
//
// logins has
//
//   - attempts: the sum of succeeded, failed, refused and canceled, which say how attempts ended;
//     the password of a refused one was not looked at. An attempt that the application never ends is
//     not counted.
//   - would_block: attempts that passed only because of Shadow. They also count by how they ended.
//   - known: attempts that were decided by the limits of a known address or device.
//   - failed_share: failed/(succeeded+failed), the share of wrong passwords among those looked at. 0
//     if there was none.
//   - errors: attempts during which the backend failed. They also count above.
//   - names, addresses and networks: those with the most failures, as values above. An IPv6 address
//     is its /64. Networks are /24 of IPv4 and /48 of IPv6.
//   - unlisted: an upper bound on the failures of what is not in its list. It is 0 while all fit, and
//     at most failed/MaxValues. If no values are kept it is failed.
//
// Each of robots has group, empty for a person or a robot that is not known, standing ("person",
// "unknown", "claimed", "verified" or "impostor"), and requests.
func (t *Tally) MarshalJSON() ([]byte, error) { return json.Marshal(t.snapshot()) }

func (t *Tally) snapshot() snapshot {
	e := t.epoch.Load()
	s := snapshot{
		Since:     e.since,
		At:        time.Now().UTC(),
		Rules:     []ruleCounts{},
		Logins:    e.logins(t.maxValues()),
		Robots:    e.robotCounts(),
		Uncounted: e.table.Uncounted.Load(),
	}
	for _, r := range e.table.Rules() {
		s.Rules = append(s.Rules, countRule(r, t.maxValues()))
	}
	slices.SortFunc(s.Rules, func(a, b ruleCounts) int { return strings.Compare(a.Identifier, b.Identifier) })
	return s
}

func (e *epoch) robotCounts() (all []robotCount) {
	e.robotsMu.Lock()
	defer e.robotsMu.Unlock()
	for c, n := range e.robots {
		c.Requests = n
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b robotCount) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Standing, b.Standing))
	})
	return all
}

func countRule(r *counts.Rule, maxValues int) ruleCounts {
	s := ruleCounts{Identifier: r.Name, Conditions: []conditionCounts{}}
	for result := range r.Calls {
		s.add(counts.Result(result), r.Calls[result].Load())
	}
	s.Failed = r.Failed.Load()
	for _, n := range r.Conditions() {
		c := countCondition(n, maxValues)
		s.Conditions = append(s.Conditions, c)
		s.LostRaces += c.LostRaces
	}
	return s
}

func countCondition(n *counts.Condition, maxValues int) conditionCounts {
	s := conditionCounts{Name: n.Name, callCounts: callCounts{LostRaces: n.LostRaces.Load()}}
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
func (c *callCounts) add(result counts.Result, calls uint64) {
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
func (e *epoch) logins(maxValues int) *loginCounts {
	l := &e.table.Logins
	of := func(result login.Result) uint64 { return l.Results[result][0].Load() + l.Results[result][1].Load() }
	s := &loginCounts{
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
func listed(s *counts.Summary) []valueCount {
	values := make([]valueCount, 0, s.Len())
	for value, c := range s.All {
		values = append(values, valueCount{Value: printable(value), Count: c.Count, Error: c.Overcount})
	}
	slices.SortFunc(values, func(a, b valueCount) int {
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
