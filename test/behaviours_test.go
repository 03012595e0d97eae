package throttler_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// The behaviours are what a throttler does on any backend, in real time. The
// same suite runs over the embedded store, a memcached process and a memcached
// container, see integration_test.go.

func TestBehavioursOverMemstore(t *testing.T) {
	store := memstore.New()
	testBehaviours(t, func(testing.TB) throttler.Client { return store })
}

// testBehaviours runs the suite. newClient returns clients of one and the same
// backend, which may hold other records.
func testBehaviours(t *testing.T, newClient func(testing.TB) throttler.Client) {
	for name, behave := range map[string]func(*scene){
		"a window opens as its hits expire":                           (*scene).windowOpens,
		"outcomes tell what remains":                                  (*scene).outcomesTell,
		"either blocks if one is full and counts the others":          (*scene).eitherBlocks,
		"all blocks only if every one is full":                        (*scene).allBlocks,
		"messages come in the rule's order":                           (*scene).messagesInOrder,
		"RetryAfter is the longest of either and the shortest of all": (*scene).retryAfterOfRule,
		"a ban of 1.5 s ends neither early nor late":                  (*scene).banEnds,
		"counting starts anew after a ban":                            (*scene).countingStartsAnew,
		"a condition's lockout overrides the rule's":                  (*scene).ownLockout,
		"bans grow up to MaxLockout":                                  (*scene).bansGrow,
		"Peek answers alike and writes nothing":                       (*scene).peekWritesNothing,
		"Reset forgets hits and bans of the rule's values only":       (*scene).resetForgets,
		"Cancel takes back what was counted, once":                    (*scene).cancelTakesBack,
		"Cancel leaves bans":                                          (*scene).cancelLeavesBans,
		"Cancel takes a hit out of a bucket":                          (*scene).cancelFromBucket,
		"CountAuthorizedOnly uses up nothing for a blocked call":      (*scene).countAuthorizedOnly,
		"Shadow counts and bans but authorizes":                       (*scene).shadow,
		"a leaky bucket takes a burst and then its rate":              (*scene).leakyBucket,
		"Wait postpones until there is room":                          (*scene).waitPostpones,
		"Wait gives up":                                               (*scene).waitGivesUp,
		"hostile values are limited each on its own":                  (*scene).hostileValues,
		"identifier, name and value are never mixed up":               (*scene).partsKeptApart,
		"foreign records count as none and are replaced":              (*scene).foreignRecords,
		"a record of another type does not block everybody":           (*scene).otherType,
		"a shorter TTL loses no hits":                                 (*scene).shorterTTL,
		"two clients decide as one":                                   (*scene).twoClients,
		"10 a second tried 200 times a second":                        (*scene).robot,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behave(newScene(t, newClient))
		})
	}
}

var scenes atomic.Int64

// A scene is what one behaviour is shown on: a throttler, its backend, and an
// Identifier that nobody else has.
type scene struct {
	*testing.T
	throttler *throttler.Throttler
	client    throttler.Client
	newClient func(testing.TB) throttler.Client
	id        string
}

func newScene(t *testing.T, newClient func(testing.TB) throttler.Client) *scene {
	client := newClient(t)
	return &scene{t, throttler.New(client), client, newClient, uniqueID()}
}

// uniqueID returns an Identifier that no other test and no other run has, since
// the server may be the user's own.
func uniqueID() string {
	return fmt.Sprintf("test-%x-%d", time.Now().UnixNano(), scenes.Add(1))
}

func (s *scene) either(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: s.id, Either: conditions}
}

func (s *scene) all(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: s.id, All: conditions}
}

// limit returns a condition of the given name, with a Value of its own.
func limit(name string, max int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: name, Value: "value-of-" + name, Max: max, TTL: ttl}
}

// A timedCall is a Decision and the wall clock before and after the call. The
// time at which it was decided, and which its hits are stamped with, lies
// between the two. That is all that can be said from outside, and enough to
// judge it exactly, however long the machine makes the call take.
type timedCall struct {
	throttler.Decision
	begin, end time.Time
}

// opensIn returns the earliest and the latest time that the call's RetryAfter
// may mean.
func (c timedCall) opensIn() (earliest, latest time.Time) {
	return c.begin.Add(c.RetryAfter), c.end.Add(c.RetryAfter)
}

// wallClock is what hits are stamped with, without the monotonic clock that
// time.Now adds.
func wallClock() time.Time { return time.Now().Round(0) }

func sleepUntil(t time.Time) {
	for wallClock().Before(t) {
		time.Sleep(t.Sub(wallClock()))
	}
}

// authorize makes a call that must not meet with any failure.
func (s *scene) authorize(rule throttler.Rule) timedCall {
	s.Helper()
	return s.call(s.throttler.Authorize, rule)
}

func (s *scene) peek(rule throttler.Rule) timedCall {
	s.Helper()
	return s.call(s.throttler.Peek, rule)
}

func (s *scene) call(method func(context.Context, throttler.Rule) (throttler.Decision, error), rule throttler.Rule) timedCall {
	s.Helper()
	begin := wallClock()
	d, err := method(context.Background(), rule)
	end := wallClock()
	require.NoError(s, err)
	require.NoError(s, d.Err)
	return timedCall{d, begin, end}
}

func (s *scene) requireAuthorized(rule throttler.Rule) timedCall {
	s.Helper()
	c := s.authorize(rule)
	require.Equal(s, throttler.Authorized, c.Status)
	return c
}

func (s *scene) requireBlocked(rule throttler.Rule) timedCall {
	s.Helper()
	c := s.authorize(rule)
	require.Equal(s, throttler.Blocked, c.Status)
	return c
}

// counted looks how many hits the only or first condition of rule holds.
func (s *scene) counted(rule throttler.Rule) int {
	s.Helper()
	o := s.peek(rule).Outcomes[0]
	require.False(s, o.Banned)
	if o.Blocked {
		return o.Limit
	}
	return o.Limit - o.Remaining - 1 // without the hit that a call would have counted
}

func (s *scene) requireCounted(n int, rule throttler.Rule) {
	s.Helper()
	require.Equal(s, n, s.counted(rule), "hits")
}

// requireOpens calls until the rule authorizes, and requires that it does so at
// a time between earliest and latest, and that each RetryAfter until then was
// about that time. It returns the call that was authorized.
func (s *scene) requireOpens(rule throttler.Rule, earliest, latest time.Time) timedCall {
	s.Helper()
	for {
		c := s.authorize(rule)
		if c.Status == throttler.Authorized {
			require.False(s, c.end.Before(earliest), "opened %v early", earliest.Sub(c.end))
			return c
		}
		require.True(s, c.begin.Before(latest), "still blocked %v late", c.begin.Sub(latest))
		from, to := c.opensIn()
		require.False(s, to.Before(earliest), "RetryAfter %v too short", earliest.Sub(to))
		require.False(s, from.After(latest), "RetryAfter %v too long", from.Sub(latest))
		time.Sleep(time.Millisecond)
	}
}

// requireAbout requires that what a call answered is d, but for the rounding of
// stored times.
func requireAbout(t testing.TB, d, answered time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, answered, d)
	require.Less(t, answered, d+tick)
}

func (s *scene) windowOpens() {
	rule := s.either(limit("c", 2, 400*time.Millisecond))
	first := s.requireAuthorized(rule)
	sleepUntil(first.end.Add(100 * time.Millisecond))
	second := s.requireAuthorized(rule)
	for _, hit := range []timedCall{first, second} {
		s.requireOpens(rule,
			hit.begin.Add(400*time.Millisecond), hit.end.Add(400*time.Millisecond+tick))
	}
}

func (s *scene) outcomesTell() {
	rule := s.either(limit("c", 2, time.Minute))
	first := s.requireAuthorized(rule)
	o := first.Outcomes[0]
	requireAbout(s, time.Minute, o.ResetAfter)
	require.Equal(s, throttler.Outcome{Name: "c", Limit: 2, Cost: 1, Remaining: 1, ResetAfter: o.ResetAfter}, o)
	require.Zero(s, first.RetryAfter)
	require.Nil(s, first.Messages)

	// The second hit is the last, and the window opens when the first goes.
	second := s.requireAuthorized(rule)
	o = second.Outcomes[0]
	requireAbout(s, time.Minute, o.ResetAfter)
	require.Equal(s, throttler.Outcome{Name: "c", Limit: 2, Cost: 1, RetryAfter: o.RetryAfter, ResetAfter: o.ResetAfter}, o)
	require.LessOrEqual(s, o.RetryAfter, o.ResetAfter)
	require.Greater(s, o.RetryAfter, time.Duration(0))
	require.Zero(s, second.RetryAfter, "it is authorized")

	third := s.requireBlocked(rule)
	o = third.Outcomes[0]
	require.Equal(s, throttler.Outcome{Name: "c", Limit: 2, Blocked: true, RetryAfter: o.RetryAfter, ResetAfter: o.ResetAfter}, o)
	require.Equal(s, o.RetryAfter, third.RetryAfter)
	require.Equal(s, []string{"c"}, third.Messages)
	require.True(s, third.WouldBlock)
}

func (s *scene) eitherBlocks() {
	small, large := limit("small", 1, time.Minute), limit("large", 9, time.Minute)
	rule := s.either(small, large)
	s.requireAuthorized(rule)
	for range 3 {
		c := s.requireBlocked(rule)
		require.Equal(s, []string{"small"}, c.Messages)
		require.False(s, c.Outcomes[1].Blocked)
	}
	s.requireCounted(1, s.either(small))
	s.requireCounted(4, s.either(large))
}

func (s *scene) allBlocks() {
	small, large := limit("small", 1, time.Minute), limit("large", 3, time.Minute)
	rule := s.all(small, large)
	for range 3 {
		s.requireAuthorized(rule)
	}
	require.Equal(s, []string{"small", "large"}, s.requireBlocked(rule).Messages)
	s.requireCounted(1, s.either(small))
	s.requireCounted(3, s.either(large))
}

func (s *scene) messagesInOrder() {
	var conditions []throttler.Condition
	for _, name := range []string{"z", "open", "a", "m"} {
		c := limit(name, 1, time.Minute)
		c.Message = "too many " + name
		conditions = append(conditions, c)
	}
	conditions[1].Max = 9
	conditions[3].Message = ""
	s.requireAuthorized(s.either(conditions...))
	require.Equal(s, []string{"too many z", "too many a", "m"}, s.requireBlocked(s.either(conditions...)).Messages)
}

func (s *scene) retryAfterOfRule() {
	short, long := limit("short", 1, time.Minute), limit("long", 1, time.Hour)
	s.requireAuthorized(s.either(short, long))
	either := s.requireBlocked(s.either(short, long))
	require.Equal(s, either.Outcomes[1].RetryAfter, either.RetryAfter)
	require.Greater(s, either.RetryAfter, 50*time.Minute)
	all := s.requireBlocked(s.all(short, long))
	require.Equal(s, all.Outcomes[0].RetryAfter, all.RetryAfter)
	require.Less(s, all.RetryAfter, time.Minute+tick)
}

func (s *scene) banEnds() {
	const lockout = 1500 * time.Millisecond
	rule := s.either(limit("c", 1, 100*time.Millisecond))
	rule.Lockout = lockout
	s.requireAuthorized(rule)
	set := s.authorize(rule)
	for set.Status == throttler.Authorized { // the window may have opened, on a slow machine
		set = s.authorize(rule)
	}
	require.True(s, set.Outcomes[0].Banned)
	requireAbout(s, lockout, set.RetryAfter)
	// The calls in between neither prolong the ban nor outlast it.
	opened := s.requireOpens(rule, set.begin.Add(lockout), set.end.Add(lockout+tick))
	require.Zero(s, opened.Outcomes[0].Remaining)
}

func (s *scene) countingStartsAnew() {
	rule := s.either(limit("c", 2, time.Minute))
	rule.Lockout = 100 * time.Millisecond
	s.requireAuthorized(rule)
	s.requireAuthorized(rule)
	set := s.requireBlocked(rule)
	sleepUntil(set.end.Add(set.RetryAfter))
	// The hits are gone with the ban, though their minute is not over.
	require.Equal(s, 1, s.requireAuthorized(rule).Outcomes[0].Remaining)
	s.requireAuthorized(rule)
	require.True(s, s.requireBlocked(rule).Outcomes[0].Banned)
}

func (s *scene) ownLockout() {
	long, never, rules := limit("long", 1, time.Minute), limit("never", 1, time.Minute), limit("rule's", 1, time.Minute)
	long.Lockout, never.Lockout = 3*time.Hour, -1
	rule := s.either(long, never, rules)
	rule.Lockout = time.Hour
	s.requireAuthorized(rule)
	outcomes := s.requireBlocked(rule).Outcomes
	require.True(s, outcomes[0].Banned)
	requireAbout(s, 3*time.Hour, outcomes[0].RetryAfter)
	require.True(s, outcomes[1].Blocked)
	require.False(s, outcomes[1].Banned)
	require.Less(s, outcomes[1].RetryAfter, time.Minute+tick)
	require.True(s, outcomes[2].Banned)
	requireAbout(s, time.Hour, outcomes[2].RetryAfter)
}

func (s *scene) bansGrow() {
	rule := s.either(limit("c", 1, time.Minute))
	rule.Lockout, rule.LockoutGrowth, rule.MaxLockout = 50*time.Millisecond, 2, 150*time.Millisecond
	for _, length := range []time.Duration{50, 100, 150, 150} {
		s.requireAuthorized(rule)
		set := s.requireBlocked(rule)
		requireAbout(s, length*time.Millisecond, set.RetryAfter)
		sleepUntil(set.end.Add(set.RetryAfter))
	}
	// Another value has done nothing yet.
	rule.Either[0].Value = "another"
	s.requireAuthorized(rule)
	requireAbout(s, 50*time.Millisecond, s.requireBlocked(rule).RetryAfter)
}

// record returns what is stored for the first condition of rule, whose key must
// be a plain one.
func (s *scene) record(rule throttler.Rule) *memcache.Item {
	item, err := s.client.Get(s.key(rule))
	if err != nil {
		require.ErrorIs(s, err, memcache.ErrCacheMiss)
		return nil
	}
	return item
}

func (s *scene) key(rule throttler.Rule) string {
	c := append(rule.Either, rule.All...)[0]
	return rule.Identifier + "#" + c.Name + "#" + c.Value
}

func (s *scene) peekWritesNothing() {
	rule := s.either(limit("c", 1, time.Minute))
	rule.Lockout = time.Hour
	peeked := s.peek(rule)
	require.Nil(s, s.record(rule))
	counted := s.requireAuthorized(rule)
	require.Equal(s, steady(counted.Decision), steady(peeked.Decision))

	before := s.record(rule)
	peeked = s.peek(rule)
	require.True(s, peeked.Outcomes[0].Banned, "as Authorize would answer")
	require.Equal(s, before, s.record(rule), "but no ban is set")
	require.Equal(s, steady(s.requireBlocked(rule).Decision), steady(peeked.Decision))

	before = s.record(rule)
	require.Equal(s, throttler.Blocked, s.peek(rule).Status)
	require.Equal(s, before, s.record(rule))
}

// steady returns what of d does not depend on the moment.
func steady(d throttler.Decision) throttler.Decision {
	outcomes := make([]throttler.Outcome, len(d.Outcomes))
	for i, o := range d.Outcomes {
		o.RetryAfter, o.ResetAfter = o.RetryAfter.Round(time.Minute), o.ResetAfter.Round(time.Minute)
		outcomes[i] = o
	}
	return throttler.Decision{Status: d.Status, Messages: d.Messages, RetryAfter: d.RetryAfter.Round(time.Minute),
		Outcomes: outcomes, WouldBlock: d.WouldBlock, Err: d.Err}
}

func (s *scene) resetForgets() {
	full, banned, other := limit("full", 1, time.Minute), limit("banned", 1, time.Minute), limit("full", 1, time.Minute)
	banned.Lockout = time.Hour
	other.Value = "another"
	rule := s.either(full, banned)
	s.requireAuthorized(rule)
	s.requireBlocked(rule)
	s.requireAuthorized(s.either(other))

	require.NoError(s, s.throttler.Reset(context.Background(), rule))
	require.Nil(s, s.record(rule))
	s.requireAuthorized(rule)
	s.requireBlocked(s.either(other))
	require.NoError(s, s.throttler.Reset(context.Background(), rule))
	require.NoError(s, s.throttler.Reset(context.Background(), rule), "there is nothing left")
}

func (s *scene) cancelTakesBack() {
	rule := s.either(limit("c", 2, time.Minute))
	first, second := s.requireAuthorized(rule), s.requireAuthorized(rule)
	s.requireBlocked(rule)
	s.cancel(first)
	s.cancel(first)
	s.requireCounted(1, rule)
	third := s.requireAuthorized(rule)
	s.requireBlocked(rule)
	s.cancel(third)
	s.cancel(second)
	s.cancel(third)
	s.requireCounted(0, rule)
}

func (s *scene) cancel(c timedCall) {
	s.Helper()
	require.NoError(s, s.throttler.Cancel(context.Background(), c.Decision))
}

func (s *scene) cancelLeavesBans() {
	rule := s.either(limit("c", 2, time.Minute), limit("never", 9, time.Minute))
	rule.Lockout = time.Hour
	first, second := s.requireAuthorized(rule), s.requireAuthorized(rule)
	set := s.requireBlocked(rule)
	before := s.record(rule)
	for _, c := range []timedCall{first, second, set} {
		s.cancel(c)
	}
	require.Equal(s, before, s.record(rule))
	require.True(s, s.requireBlocked(rule).Outcomes[0].Banned)
	s.requireCounted(1, s.either(rule.Either[1])) // the one of the last call
}

func (s *scene) cancelFromBucket() {
	c := limit("c", 2, time.Minute)
	c.Algorithm = throttler.LeakyBucket
	rule := s.either(c)
	s.cancel(s.requireAuthorized(rule))
	first := s.requireAuthorized(rule)
	s.requireAuthorized(rule)
	s.requireBlocked(rule)
	s.cancel(first)
	s.cancel(first)
	s.requireAuthorized(rule)
	s.requireBlocked(rule)
}

func (s *scene) countAuthorizedOnly() {
	small, large := limit("small", 1, time.Minute), limit("large", 9, time.Minute)
	small.Lockout = time.Hour
	rule := s.either(large, small)
	rule.CountAuthorizedOnly = true
	s.requireAuthorized(rule)
	s.requireCounted(1, s.either(large))
	for range 3 {
		c := s.requireBlocked(rule)
		require.True(s, c.Outcomes[1].Banned)
		require.Equal(s, 8, c.Outcomes[0].Remaining)
		s.requireCounted(1, s.either(large))
	}
}

func (s *scene) shadow() {
	rule := s.either(limit("c", 1, time.Minute), limit("other", 9, time.Minute))
	rule.Lockout, rule.Shadow = time.Hour, true
	require.False(s, s.requireAuthorized(rule).WouldBlock)
	for range 2 {
		c := s.requireAuthorized(rule)
		require.True(s, c.WouldBlock)
		require.True(s, c.Outcomes[0].Banned)
		require.Nil(s, c.Messages)
		require.Zero(s, c.RetryAfter)
	}
	s.requireCounted(3, s.either(rule.Either[1]))
	rule.Shadow = false
	require.True(s, s.requireBlocked(rule).Outcomes[0].Banned)
}

// A bucket of 4 in 400 ms takes 4 at once, and then one every 100 ms.
func (s *scene) leakyBucket() {
	const interval = 100 * time.Millisecond
	c := limit("c", 4, 4*interval)
	c.Algorithm = throttler.LeakyBucket
	rule := s.either(c)
	var taken []timedCall
	for len(taken) < 12 {
		call := s.authorize(rule)
		if call.Status == throttler.Authorized {
			taken = append(taken, call)
			continue
		}
		require.LessOrEqual(s, call.RetryAfter, interval)
		sleepUntil(call.end.Add(call.RetryAfter))
		taken = append(taken, s.requireAuthorized(rule))
	}
	for i := range taken {
		for j := i + 4; j < len(taken); j++ {
			require.GreaterOrEqual(s, taken[j].end.Sub(taken[i].begin), time.Duration(j-i-3)*interval, "calls %d to %d", i, j)
		}
	}
	last := taken[len(taken)-1].Outcomes[0]
	sleepUntil(taken[len(taken)-1].end.Add(last.ResetAfter))
	require.Equal(s, 3, s.requireAuthorized(rule).Outcomes[0].Remaining, "it has leaked empty")
}

func (s *scene) waitPostpones() {
	const ttl = 200 * time.Millisecond
	rule := s.either(limit("c", 1, ttl))
	first := s.requireAuthorized(rule)
	second := s.call(s.throttler.Wait, rule)
	require.Equal(s, throttler.Authorized, second.Status)
	require.False(s, second.end.Before(first.begin.Add(ttl)), "too early")
	// It has been counted, between its begin and its end, and bans nobody.
	rule.Lockout = time.Hour
	third := s.call(s.throttler.Wait, rule)
	require.False(s, third.end.Before(first.begin.Add(2*ttl)), "too early")
	// A ban is waited for as well.
	rule.Lockout = ttl
	set := s.authorize(rule)
	for set.Status == throttler.Authorized {
		set = s.authorize(rule)
	}
	fourth := s.call(s.throttler.Wait, rule)
	require.False(s, fourth.end.Before(set.begin.Add(ttl)), "too early")
}

func (s *scene) waitGivesUp() {
	rule := s.either(limit("c", 1, time.Hour))
	s.requireAuthorized(rule)
	before := s.record(rule)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	d, err := s.throttler.Wait(ctx, rule)
	require.ErrorIs(s, err, context.DeadlineExceeded)
	require.NoError(s, ctx.Err(), "at once, since the limit opens after the deadline")
	require.Equal(s, throttler.Blocked, d.Status)

	cancel()
	_, err = s.throttler.Wait(ctx, rule)
	require.ErrorIs(s, err, context.Canceled)
	require.Equal(s, before, s.record(rule), "nothing was counted")
}

// hostile returns values that have broken the keys of others, all different.
func (s *scene) hostile() []string {
	plain := len(s.id + "#c#")
	values := []string{
		"", "0", " ", "  ", "a", "a ", " a", "bob smith", "a\nb", "a\r\nb", "a\tb",
		"x\r\nflush_all\r\n", "x 0 0 1\r\ny\r\nflush_all", "\r\n", "\n", "\x00", "a\x00", "a\x00b", "\x7f",
		"#", "##", "a#", "#a", "#sha256#", "\xff", "\xff\xfe", "\xc3\x28", "a\u00a0b", "é", "日本語", "🔒",
		strings.Repeat("k", 10_000), strings.Repeat("k", 10_001), strings.Repeat(" ", 10_000),
		strings.Repeat("\r\nflush_all\r\n", 800),
	}
	for _, length := range []int{249, 250, 251} { // of the key
		values = append(values, strings.Repeat("v", length-plain), strings.Repeat("v", length-plain-1)+" ")
	}
	return values
}

func (s *scene) hostileValues() {
	witness := s.either(limit("witness", 1, time.Minute))
	s.requireAuthorized(witness)
	rule := s.either(throttler.Condition{Name: "c", Max: 2, TTL: time.Minute})
	// One round after the other, so that values which shared a record would
	// find it full.
	for round := range 4 {
		for _, value := range s.hostile() {
			rule.Either[0].Value = value
			c := s.authorize(rule)
			require.Equal(s, round >= 2, c.Status == throttler.Blocked, "round %d, value %.40q of %d bytes", round, value, len(value))
		}
	}
	s.requireBlocked(witness)
	for _, value := range s.hostile() {
		rule.Either[0].Value = value
		require.NoError(s, s.throttler.Reset(context.Background(), rule))
		s.requireAuthorized(rule)
	}
	s.requireBlocked(witness)
}

func (s *scene) partsKeptApart() {
	for _, parts := range [][3]string{
		{"", "a", "b"}, {"", "a", "b#"}, {"", "a#b", ""}, {"", "a#", "b"}, {"#a", "b", ""}, {"#", "a", "b"},
		{" ", "a", "b"}, {"", " a", "b"}, {"", "a", " b"}, {"", "a b", ""}, {" a", "b", ""}, {"\r\n", "a", "b"},
	} {
		rule := throttler.Rule{
			Identifier: s.id + parts[0],
			Either:     []throttler.Condition{{Name: parts[1], Value: parts[2], Max: 1, TTL: time.Minute}},
		}
		s.requireAuthorized(rule)
		s.requireBlocked(rule)
	}
}

func (s *scene) foreignRecords() {
	for i, foreign := range []string{
		"", "0", "1", "hello", "\x00", "\x01", "\x01\x00\x00", "\x02\x04", strings.Repeat("\xff", 1000),
		`a:2:{i:0;i:1;}`, "\x05\x09\x08\x31", strings.Repeat("\x01", 100_000),
	} {
		rule := s.either(limit("c", 1, time.Minute))
		rule.Either[0].Value = fmt.Sprint(i)
		require.NoError(s, s.client.Add(&memcache.Item{Key: s.key(rule), Value: []byte(foreign), Flags: 7}))
		s.requireAuthorized(rule)
		require.NotEqual(s, foreign, string(s.record(rule).Value))
		s.requireBlocked(rule)
	}
}

func (s *scene) otherType() {
	window, bucket := limit("c", 1, time.Minute), limit("c", 1, time.Minute)
	bucket.Algorithm = throttler.LeakyBucket
	other := limit("other", 1, time.Minute)
	s.requireAuthorized(s.either(window))
	s.requireAuthorized(s.either(other))
	// What is stored for c is of the other type, which fills no bucket and
	// stays beside it.
	s.requireAuthorized(s.all(bucket, other))
	s.requireBlocked(s.all(bucket, other))
	s.requireBlocked(s.all(window, other))

	// A ban is one whatever the type.
	banned := s.either(window)
	banned.Lockout = time.Hour
	s.requireBlocked(banned)
	require.True(s, s.requireBlocked(s.either(bucket)).Outcomes[0].Banned)
}

func (s *scene) shorterTTL() {
	long, short := s.either(limit("c", 3, time.Minute)), s.either(limit("c", 3, 100*time.Millisecond))
	s.requireAuthorized(long)
	s.requireAuthorized(long)
	c := s.requireAuthorized(short)
	sleepUntil(c.end.Add(c.Outcomes[0].ResetAfter))
	// The short hit is gone, the long ones are not.
	s.requireCounted(2, long)
	s.requireAuthorized(long)
	s.requireBlocked(long)
}

func (s *scene) twoClients() {
	other := *s
	other.client = s.newClient(s)
	other.throttler = throttler.New(other.client)
	rule := s.either(limit("c", 4, time.Minute))
	rule.Lockout = time.Hour
	for _, turn := range []*scene{s, &other, &other, s} {
		turn.requireAuthorized(rule)
	}
	set := other.requireBlocked(rule)
	found := s.requireBlocked(rule)
	require.True(s, found.Outcomes[0].Banned)
	require.LessOrEqual(s, found.RetryAfter, set.RetryAfter)
	require.NoError(s, other.throttler.Reset(context.Background(), rule))
	s.requireAuthorized(rule)
}

func (s *scene) robot() {
	r := robot{max: 10, ttl: time.Second, every: 5 * time.Millisecond, during: 2500 * time.Millisecond}
	r.run(s.T, s.either(limit("c", r.max, r.ttl)), s.client, s.newClient(s))
}
