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

// The behaviours are what a throttler does on any backend in real time, and with values and records
// that TestEveryWayDecidesAsANaiveLimiter does not draw. The
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
		"a window opens as its hits expire":                 (*scene).windowOpens,
		"a ban of 1.5 s ends neither early nor late":        (*scene).banEnds,
		"a leaky bucket takes a burst and then its rate":    (*scene).leakyBucket,
		"hostile values are limited each on its own":        (*scene).hostileValues,
		"foreign records count as none and are replaced":    (*scene).foreignRecords,
		"a record of another type does not block everybody": (*scene).otherType,
		"a shorter TTL loses no hits":                       (*scene).shorterTTL,
		"10 a second tried 200 times a second":              (*scene).robot,
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

func (s *scene) cancel(c timedCall) {
	s.Helper()
	require.NoError(s, s.throttler.Cancel(context.Background(), c.Decision))
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

func (s *scene) robot() {
	r := robot{max: 10, ttl: time.Second, every: 5 * time.Millisecond, during: 2500 * time.Millisecond}
	r.run(s.T, s.either(limit("c", r.max, r.ttl)), s.client, s.newClient(s))
}
