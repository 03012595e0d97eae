package httpthrottle

import (
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
)

const (
	// ClosedCondition is the name of the condition that [Transport] adds to each rule. It is
	// banned while the server wants no requests. To lift that ban, Reset a rule with the
	// Identifier, this Name, and the Value of the rule's conditions.
	ClosedCondition = "server"

	// learnedCondition begins the names of conditions for windows that a rule does not have.
	learnedCondition = "server-"

	// learnedItem is the name, in place of a condition's, of the item that holds the limits
	// that were learned.
	learnedItem = "server-limits"
)

const (
	maxLearned     = 8                  // limits of one key that are kept
	longestLife    = 7 * 24 * time.Hour // of a limit that is not told again
	longestGuessed = time.Minute        // the longest window whose limit is estimated
)

// A limited is what the rule of one request limits.
type limited struct {
	rule  throttler.Rule
	value string // what the server limits: all values of the rule
	key   string // of the learned limits
}

func newLimited(rule throttler.Rule) *limited {
	value := jointValue(rule.Conditions())
	return &limited{rule, value, throttler.RecordKey(rule.Identifier, learnedItem, value)}
}

// jointValue returns one Value for all conditions: the one that they have in common, or all of
// them.
func jointValue(conditions []throttler.Condition) string {
	var values []string
	for i := range conditions {
		if !slices.Contains(values, conditions[i].Value) {
			values = append(values, conditions[i].Value)
		}
	}
	if len(values) == 1 {
		return values[0]
	}
	for i := range values {
		values[i] = url.QueryEscape(values[i])
	}
	return strings.Join(values, "&")
}

// A lesson is a limit that was learned from answers.
type lesson struct {
	Max    int           `json:"max"`
	TTL    time.Duration `json:"ttl"`
	Heard  time.Time     `json:"heard"`            // when it was last told
	Until  time.Time     `json:"until"`            // when it is forgotten unless it is told again
	Guess  bool          `json:"guess,omitempty"`  // Max was not told, but is what was let through
	Round  bool          `json:"round,omitempty"`  // TTL was not told, but is a usual one that fits
	Steady bool          `json:"steady,omitempty"` // it comes back little by little
}

// valid reports whether l makes sense and holds at now. What is stored may be anything.
func (l *lesson) valid(now time.Time) bool {
	return l.Max >= 1 && l.Max <= throttler.MaxHits && l.TTL >= time.Millisecond && l.TTL <= throttler.MaxBucketTTL &&
		l.Until.After(now) && l.Until.Before(now.Add(2*longestLife))
}

// newLesson returns a lesson that was learned at now. It lives for ten windows, and for a
// minute at least.
func newLesson(limit int, ttl time.Duration, now time.Time) lesson {
	life := min(max(10*min(ttl, longestLife), time.Minute), longestLife)
	return lesson{Max: limit, TTL: ttl, Heard: now, Until: now.Add(life)}
}

// Lessons are the limits that were learned for one value, by the names of conditions.
type lessons map[string]lesson

// decodeLessons returns what is stored, without what makes no sense.
func decodeLessons(value []byte, now time.Time) lessons {
	var all lessons
	if json.Unmarshal(value, &all) != nil || len(all) > maxLearned {
		return nil
	}
	maps.DeleteFunc(all, func(_ string, l lesson) bool { return !l.valid(now) })
	return all
}

// end returns when the last of ls is forgotten.
func (ls lessons) end() (end time.Time) {
	for _, l := range ls {
		if l.Until.After(end) {
			end = l.Until
		}
	}
	return end
}

// hear returns ls with l under name, and whether that changes anything that others should
// know. ls stays as it is.
//
// A lower limit counts at once. A higher one counts when the lower one has not been told for
// a window, or else two answers that disagree would take turns. A guess comes from refusals,
// and what the server tells beside does not raise it.
func (ls lessons) hear(name string, l lesson, now time.Time) (lessons, bool) {
	old, ok := ls[name]
	if ok = ok && old.valid(now) && old.TTL == l.TTL; ok {
		age := now.Sub(old.Heard)
		switch {
		case l.Max > old.Max && (old.Guess || l.Guess || age < max(l.TTL, time.Second)):
			return ls, false
		case l.Max == old.Max && (l.Guess || age < max(l.TTL/2, time.Second/2)):
			return ls, false
		}
	}
	next := maps.Clone(ls)
	maps.DeleteFunc(next, func(_ string, l lesson) bool { return !l.valid(now) })
	if len(next) >= maxLearned && !ok {
		return ls, false
	}
	if next == nil {
		next = lessons{}
	}
	maps.DeleteFunc(next, func(_ string, short lesson) bool {
		return short.Round && short.TTL < l.TTL && short.Max >= l.Max // from when l was not known yet
	})
	next[name] = l
	return next, true
}

// latest returns what was heard last, in ls or in others.
func (ls lessons) latest(others lessons) lessons {
	merged := maps.Clone(others)
	for name, l := range ls {
		if other, ok := merged[name]; !ok && len(merged) < maxLearned || ok && l.Heard.After(other.Heard) {
			if merged == nil {
				merged = lessons{}
			}
			merged[name] = l
		}
	}
	return merged
}

// A subject is the condition that a quota limits: one of the rule, or one that is added.
type subject struct {
	name  string
	ttl   time.Duration
	round bool // ttl is a guess
}

// subject returns the condition that q limits.
func (l *limited) subject(q quota, learned lessons, now time.Time) (s subject, ok bool) {
	if !q.requests || q.limit < 1 {
		return subject{}, false
	}
	if q.window == 0 {
		if s, ok = l.subjectByReset(q, learned, now); ok {
			return s, true
		}
		s.round, q.window = true, usualWindow(float64(q.reset))
	}
	conditions := l.rule.Conditions()
	for i := range conditions {
		if c := &conditions[i]; countsRequests(c) && c.TTL == q.window {
			return subject{name: c.Name, ttl: c.TTL}, true
		}
	}
	if q.window < time.Millisecond || q.window > throttler.MaxBucketTTL || q.limit > throttler.MaxHits || l.keeps(q) {
		return subject{}, false
	}
	s.name, s.ttl = learnedCondition+q.window.String(), q.window
	return s, true
}

// subjectByReset returns a condition that the time to the reset of q fits into.
//
// That is one that was learned like this before, if it has the limit of q, or if its limit was
// not told lately: then it is another one now. Otherwise it is the shortest, but not one of
// more than twice that time: most probably it would have been seen with more time to go.
func (l *limited) subjectByReset(q quota, learned lessons, now time.Time) (s subject, ok bool) {
	const rounding = time.Second // servers tell whole seconds, rounded up
	take := func(candidate subject, fits bool) {
		if fits && q.reset > 0 && q.reset < candidate.ttl+rounding && (!ok || candidate.ttl < s.ttl) {
			s, ok = candidate, true
		}
	}
	for name, old := range learned {
		take(subject{name, old.TTL, true}, old.Round && (q.limit == old.Max || now.Sub(old.Heard) > 2*old.TTL))
	}
	if ok {
		return s, true
	}
	for name, old := range learned {
		take(subject{name, old.TTL, true}, old.Round && q.reset > old.TTL/2)
	}
	conditions := l.rule.Conditions()
	for i := range conditions {
		c := &conditions[i]
		take(subject{name: c.Name, ttl: c.TTL}, countsRequests(c) && q.reset > c.TTL/2)
	}
	return s, ok
}

// keeps reports whether the rule never allows more than q.
func (l *limited) keeps(q quota) bool {
	for i := range l.rule.Either {
		c := &l.rule.Either[i]
		windows := math.Ceil(float64(q.window) / float64(c.TTL))
		if c.Algorithm == throttler.LeakyBucket {
			windows++ // the burst
		}
		if countsRequests(c) && windows*float64(c.Max) <= float64(q.limit) {
			return true
		}
	}
	return false
}

// countsRequests reports whether a server that limits requests may mean c: it has a window,
// and a request is one hit.
func countsRequests(c *throttler.Condition) bool {
	return c.Cost <= 1 && c.TTL > 0 && (c.Algorithm == throttler.SlidingWindow || c.Algorithm == throttler.LeakyBucket)
}

// rules returns the rules that a request has to pass, one after the other. There are two if
// the conditions of the rule are combined by All, because any one of those would open it.
func (l *limited) rules(learned lessons, margin func(time.Duration) time.Duration, now time.Time) []throttler.Rule {
	rule := l.rule
	rule.CountAuthorizedOnly = true // a request that is not sent uses up nothing
	conditions := slices.Clone(rule.Conditions())
	for i := range conditions {
		c := &conditions[i]
		if c.Algorithm != throttler.SlidingWindow && c.Algorithm != throttler.LeakyBucket {
			continue
		}
		if told, ok := learned[c.Name]; ok && told.valid(now) && told.TTL == c.TTL {
			c.Max = max(min(c.Max, told.Max), c.Cost)
		}
		c.TTL += margin(c.TTL)
	}
	server := l.serverRule(learned, margin, now)
	if len(rule.All) > 0 {
		rule.All = conditions
		return []throttler.Rule{server, rule}
	}
	rule.Either = append(conditions, server.Either...)
	return []throttler.Rule{rule}
}

// serverRule returns the rule of the conditions that the server's answers add.
func (l *limited) serverRule(learned lessons, margin func(time.Duration) time.Duration, now time.Time) throttler.Rule {
	rule := throttler.Rule{Identifier: l.rule.Identifier, Shadow: l.rule.Shadow, CountAuthorizedOnly: true}
	rule.Either = []throttler.Condition{l.closed()}
	for _, name := range slices.Sorted(maps.Keys(learned)) {
		if told := learned[name]; strings.HasPrefix(name, learnedCondition) && told.valid(now) {
			c := throttler.Condition{
				Name: name, Value: l.value, Max: told.Max, TTL: told.TTL + margin(told.TTL), Lockout: -1,
				Message: "The server allows no more requests for now.",
			}
			if told.Steady {
				c.Algorithm = throttler.LeakyBucket
			}
			rule.Either = append(rule.Either, c)
		}
	}
	return rule
}

// closed returns the condition that is banned while the server wants no requests. It is never
// full by itself, and its record is small.
func (l *limited) closed() throttler.Condition {
	return throttler.Condition{
		Name: ClosedCondition, Value: l.value, Max: 1000, TTL: time.Millisecond, Algorithm: throttler.LeakyBucket, Lockout: -1,
		Message: closedMessage,
	}
}

const closedMessage = "The server wants no requests for now."

// condition returns the rule's condition of that name, or nil.
func (l *limited) condition(name string) *throttler.Condition {
	conditions := l.rule.Conditions()
	for i := range conditions {
		if conditions[i].Name == name {
			return &conditions[i]
		}
	}
	return nil
}

// shortest returns the rule's condition of requests with the shortest window, or nil if that
// is too long for its limit to be estimated.
func (l *limited) shortest() (shortest *throttler.Condition) {
	conditions := l.rule.Conditions()
	for i := range conditions {
		if c := &conditions[i]; countsRequests(c) && c.TTL <= longestGuessed && (shortest == nil || c.TTL < shortest.TTL) {
			shortest = c
		}
	}
	return shortest
}
