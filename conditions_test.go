package throttler_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func either(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: "test", Either: conditions}
}

func all(conditions ...throttler.Condition) throttler.Rule {
	return throttler.Rule{Identifier: "test", All: conditions}
}

func condition(name string, max int, ttl time.Duration) throttler.Condition {
	return throttler.Condition{Name: name, Value: "v", Max: max, TTL: ttl, Message: name + " is full"}
}

func TestInvalidRulesNameTheFieldAndItsValue(t *testing.T) {
	good := condition("c", 1, time.Second)
	with := func(change func(r *throttler.Rule, c *throttler.Condition)) throttler.Rule {
		c := good
		r := either(c)
		change(&r, &c)
		if len(r.Either) == 1 {
			r.Either[0] = c
		}
		return r
	}
	tests := []struct {
		want string
		rule throttler.Rule
	}{
		{`Identifier is "", want a name`, throttler.Rule{Either: []throttler.Condition{good}}},
		{`Either is empty, and so is All, want conditions in one of the two`, throttler.Rule{Identifier: "r"}},
		{`All is set (1 conditions) beside Either (1), want only one of the two`, throttler.Rule{Identifier: "r", Either: []throttler.Condition{good}, All: []throttler.Condition{good}}},
		{`Either[0].Name is "", want a name`, either(condition("", 1, time.Second))},
		{`All[2].Name is "a", as that of condition 0, want one of its own`, all(condition("a", 1, time.Second), condition("b", 1, time.Second), condition("a", 2, time.Hour))},
		{`Either[0].Max is 0, want 1 to 100000`, either(condition("c", 0, time.Second))},
		{`All[0].Max is -1, want 1 to 100000`, all(condition("c", -1, time.Second))},
		{`Either[1].Max is 100001, want 1 to 100000`, either(good, condition("d", throttler.MaxHits+1, time.Second))},
		{`Either[0].TTL is 0s, want 1ms or more`, either(condition("c", 1, 0))},
		{`Either[0].TTL is 999.999µs, want 1ms or more`, either(condition("c", 1, time.Millisecond-1))},
		{`Either[0].TTL is -1s, want 1ms or more`, either(condition("c", 1, -time.Second))},
		{`Lockout is -1ns, want 0 or more`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.Lockout = -1 })},
		{`MaxLockout is -1ns, want 0 or more`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.MaxLockout = -1 })},
		{`LockoutGrowth is 0.5, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = 0.5 })},
		{`LockoutGrowth is -2, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = -2 })},
		{`LockoutGrowth is NaN, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = math.NaN() })},
		{`LockoutGrowth is +Inf, want 0, or a number from 1`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = math.Inf(1) })},
		{`MaxLockout is 1h59m0s, want 0, or Lockout (2h0m0s) or more`, with(func(r *throttler.Rule, _ *throttler.Condition) {
			r.Lockout, r.MaxLockout = 2*time.Hour, 119*time.Minute
		})},
		{`LockoutGrowth is 2, want 0, or a Lockout that grows`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.LockoutGrowth = 2 })},
		{`MaxLockout is 1h0m0s, want 0, or a Lockout that grows`, with(func(r *throttler.Rule, _ *throttler.Condition) { r.MaxLockout = time.Hour })},
		{`Either[0].Cost is -1, want 0 to Max, which is 1`, with(func(_ *throttler.Rule, c *throttler.Condition) { c.Cost = -1 })},
		{`Either[0].Cost is 2, want 0 to Max, which is 1`, with(func(_ *throttler.Rule, c *throttler.Condition) { c.Cost = 2 })},
		{`Either[0].Algorithm is 2, want SlidingWindow or LeakyBucket`, with(func(_ *throttler.Rule, c *throttler.Condition) { c.Algorithm = 2 })},
		{`Either[0].Max is 1000001, want 1 to 1000000`, with(func(_ *throttler.Rule, c *throttler.Condition) {
			c.Algorithm, c.TTL, c.Max = throttler.LeakyBucket, time.Millisecond, 1_000_001
		})},
		{`Either[0].TTL is 876001h0m0s, want at most 876000h0m0s for a leaky bucket`, with(func(_ *throttler.Rule, c *throttler.Condition) {
			c.Algorithm, c.TTL = throttler.LeakyBucket, throttler.MaxBucketTTL+time.Hour
		})},
	}
	th := throttler.New(memstore.New())
	ctx := context.Background()
	for _, tt := range tests {
		err := tt.rule.Validate()
		require.ErrorIs(t, err, throttler.ErrInvalidRule, tt.want)
		require.EqualError(t, err, "throttler: invalid rule: "+tt.want)
		for name, call := range map[string]func(context.Context, throttler.Rule) (throttler.Decision, error){
			"Authorize": th.Authorize, "Peek": th.Peek, "Wait": th.Wait,
		} {
			d, err := call(ctx, tt.rule)
			require.EqualError(t, err, "throttler: invalid rule: "+tt.want, name)
			require.Equal(t, throttler.Decision{}, d, name)
			require.Equal(t, throttler.Blocked, d.Status, name)
		}
		require.ErrorIs(t, th.Reset(ctx, tt.rule), throttler.ErrInvalidRule)
	}
}

func TestValidRules(t *testing.T) {
	bucket := throttler.Condition{Name: "c", Max: 1_000_000_000, TTL: time.Second, Algorithm: throttler.LeakyBucket}
	longBucket := bucket
	longBucket.TTL = throttler.MaxBucketTTL
	for _, r := range []throttler.Rule{
		either(condition("c", 1, time.Millisecond)),
		all(condition("c", throttler.MaxHits, math.MaxInt64)),
		either(throttler.Condition{Name: "c", Max: 1, TTL: time.Second, Lockout: -1}), // no Value, no Message
		either(bucket),
		all(longBucket),
		{Identifier: "#\r\n", Either: []throttler.Condition{condition("a b", 1, time.Hour)}, Lockout: math.MaxInt64, LockoutGrowth: 1, MaxLockout: math.MaxInt64},
		{Identifier: "r", Either: []throttler.Condition{{Name: "c", Max: 1, TTL: time.Second, Lockout: time.Hour}}, LockoutGrowth: 2, MaxLockout: 1},
		{Identifier: "r", Either: []throttler.Condition{{Name: "c", Max: 1, TTL: time.Second, Lockout: -1}}, LockoutGrowth: 2},
		either(throttler.Condition{Name: "c", Max: 7, TTL: time.Second, Cost: 7}),
	} {
		require.NoError(t, r.Validate())
	}
}

func TestStatusAndAlgorithmSayWhatTheyAre(t *testing.T) {
	require.Equal(t, "blocked authorized Status(7)", fmt.Sprint(throttler.Blocked, throttler.Authorized, throttler.Status(7)))
	require.Equal(t, "sliding window leaky bucket Algorithm(7)", fmt.Sprint(throttler.SlidingWindow, throttler.LeakyBucket, throttler.Algorithm(7)))
	require.Equal(t, throttler.Status(0), throttler.Blocked)
	require.Equal(t, throttler.Status(1), throttler.Authorized)
}

// answer is the part of a Decision that the verdict makes.
type answer struct {
	status   throttler.Status
	messages []string
	retry    time.Duration
}

func TestVerdict(t *testing.T) {
	type call struct {
		at   time.Duration
		want answer
	}
	a, b := condition("a", 1, 10*time.Second), condition("b", 2, 60*time.Second)
	unnamed := b
	unnamed.Message = ""
	ok := answer{status: throttler.Authorized}
	tests := map[string]struct {
		rule  throttler.Rule
		calls []call
	}{
		"either blocks for any, others count": {either(a, b), []call{
			{0, ok},
			// b takes this one, and is full from then on: it is b that
			// keeps the same call out the longest.
			{t1, answer{throttler.Blocked, []string{"a is full"}, 59 * time.Second}},
			{t2, answer{throttler.Blocked, []string{"a is full", "b is full"}, 58 * time.Second}},
			{10 * t1, answer{throttler.Blocked, []string{"b is full"}, 50 * time.Second}},
			{60 * t1, ok},
		}},
		"either waits for the last of the blocking ones": {either(b, a), []call{
			{0, ok},
			{12 * t1, ok},
			{13 * t1, answer{throttler.Blocked, []string{"b is full", "a is full"}, 47 * time.Second}},
			{60 * t1, ok},
		}},
		"all blocks only if every one is full": {all(a, b), []call{
			{0, ok},
			{t1, ok}, // a is full, b takes it
			{t2, answer{throttler.Blocked, []string{"a is full", "b is full"}, 8 * time.Second}},
			{10 * t1, ok}, // a takes it
			{11 * t1, answer{throttler.Blocked, []string{"a is full", "b is full"}, 9 * time.Second}},
		}},
		"without a message the name stands for it": {either(unnamed), []call{
			{0, ok}, {0, ok},
			{0, answer{throttler.Blocked, []string{"b"}, 60 * time.Second}},
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th, start := throttler.New(memstore.New()), time.Now()
				for i, c := range tt.calls {
					time.Sleep(time.Until(start.Add(c.at)))
					d, err := th.Authorize(t.Context(), tt.rule)
					require.NoError(t, err)
					require.Equal(t, c.want, answer{d.Status, d.Messages, d.RetryAfter}, "call %d", i)
					require.Equal(t, d.Status == throttler.Blocked, d.WouldBlock)
				}
			})
		})
	}
}

// Whatever the rule and the arrivals, RetryAfter of a blocked call is exactly
// when it is authorized.
func TestRetryAfterOfARuleIsWhenTheCallIsAuthorized(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		rule := throttler.Rule{
			Identifier:          "r",
			Lockout:             time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "lockout")),
			LockoutGrowth:       rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "growth"),
			CountAuthorizedOnly: rapid.Bool().Draw(t, "authorized only"),
		}
		conditions := drawConditions(t)
		if rapid.Bool().Draw(t, "all") {
			rule.All = conditions
		} else {
			rule.Either = conditions
		}
		inBubble(outer, func() {
			ctx, th := context.Background(), throttler.New(memstore.New())
			for range rapid.IntRange(1, 40).Draw(t, "calls") {
				time.Sleep(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "pause")))
				peeked, err := th.Peek(ctx, rule)
				require.NoError(t, err)
				d, err := th.Authorize(ctx, rule)
				require.NoError(t, err)
				require.Equal(t, peeked.Outcomes, d.Outcomes, "Peek answers as Authorize does")
				if d.Status == throttler.Authorized {
					require.Zero(t, d.RetryAfter)
					continue
				}
				time.Sleep(d.RetryAfter - 1)
				early, _ := th.Peek(ctx, rule)
				require.Equal(t, throttler.Blocked, early.Status)
				time.Sleep(time.Nanosecond)
				d, _ = th.Peek(ctx, rule)
				require.Equal(t, throttler.Authorized, d.Status)
			}
		})
	})
}

func drawConditions(t *rapid.T) []throttler.Condition {
	var conditions []throttler.Condition
	for i := range rapid.IntRange(1, 3).Draw(t, "conditions") {
		max := rapid.IntRange(1, 5).Draw(t, "max")
		conditions = append(conditions, throttler.Condition{
			Name:      fmt.Sprint(i),
			Max:       max,
			Cost:      rapid.IntRange(0, max).Draw(t, "cost"),
			TTL:       time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(30*time.Second)).Draw(t, "ttl")),
			Algorithm: rapid.SampledFrom([]throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket}).Draw(t, "algorithm"),
			Lockout:   rapid.SampledFrom([]time.Duration{0, -1, time.Second}).Draw(t, "lockout"),
		})
	}
	return conditions
}

// inBubble runs f, a part of a check of rapid, in a synctest bubble. What rapid
// panics with in there, to stop the check, it panics with here.
func inBubble(t *testing.T, f func()) {
	var stop any
	synctest.Test(t, func(*testing.T) {
		defer func() { stop = recover() }()
		f()
	})
	if stop != nil {
		panic(stop)
	}
}

func TestPlainKeysReadAsInTheOriginal(t *testing.T) {
	long := strings.Repeat("x", 249-len("login#ip#"))
	for _, tt := range []struct{ identifier, name, value, key string }{
		{"login", "ip", "192.0.2.1", "login#ip#192.0.2.1"},
		{"login", "ip", "", "login#ip#"},
		{"login", "ip", "0", "login#ip#0"},
		{"login", "name", "#a#b#", "login#name##a#b#"},
		{"login", "name", "Zoë", "login#name#Zoë"},
		{"login", "name", "\xff\xfe", "login#name#\xff\xfe"},
		{"login", "ip", long, "login#ip#" + long},
	} {
		require.Equal(t, tt.key, throttler.Key(tt.identifier, tt.name, tt.value))
	}
}

func TestOtherKeysAreHashed(t *testing.T) {
	for _, tt := range []struct{ identifier, name, value string }{
		{"login", "name", "bob smith"},
		{"login", "name", "bob\r\nflush_all\r\n"},
		{"login", "name", "\x00"},
		{"login", "name", "\x7f"},
		{"login", "name", strings.Repeat("x", 10_000)},
		{"login", "ip", strings.Repeat("x", 250-len("login#ip#"))},
		{"log#in", "ip", "1"},
		{"login", "i#p", "1"},
		{"log in", "ip", "1"},
		{"login", "i p", "1"},
	} {
		require.Regexp(t, `^#sha256#[0-9a-f]{64}$`, throttler.Key(tt.identifier, tt.name, tt.value))
	}
	// As documented, so that an operator can compute it.
	sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x05login\x00\x00\x00\x00\x00\x00\x00\x04name\x00\x00\x00\x00\x00\x00\x00\x09bob smith"))
	require.Equal(t, "#sha256#"+hex.EncodeToString(sum[:]), throttler.Key("login", "name", "bob smith"))
}

func TestDifferentTriplesHaveDifferentKeys(t *testing.T) {
	// Strings over a few telling bytes, so that collisions would be found.
	part := rapid.StringOfN(rapid.RuneFrom([]rune("#ab \n\x00")), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		a := [3]string{part.Draw(t, "a0"), part.Draw(t, "a1"), part.Draw(t, "a2")}
		b := [3]string{part.Draw(t, "b0"), part.Draw(t, "b1"), part.Draw(t, "b2")}
		same := throttler.Key(a[0], a[1], a[2]) == throttler.Key(b[0], b[1], b[2])
		require.Equal(t, a == b, same)
	})
}

// FuzzKey shows that no triple makes an illegal key, and that its plain form
// can be taken apart again, so that no other triple has it.
func FuzzKey(f *testing.F) {
	f.Add("login", "ip", "192.0.2.1")
	f.Add("login", "name", "bob smith\r\nflush_all\r\n")
	f.Add("#sha256#", "", strings.Repeat("0", 64))
	f.Add("", "#", "\xff#")
	f.Fuzz(func(t *testing.T, identifier, name, value string) {
		key := throttler.Key(identifier, name, value)
		require.NoError(t, legalKey(key))
		if strings.HasPrefix(key, throttler.HashedKey) {
			require.Len(t, key, len(throttler.HashedKey)+64)
			return
		}
		parts := strings.SplitN(key, "#", 3)
		require.Equal(t, []string{identifier, name, value}, parts)
		require.NotEmpty(t, identifier)
	})
}

// legalKey is what the client and the protocol ask of a key.
func legalKey(key string) error {
	if key == "" || len(key) > throttler.MaxKey {
		return fmt.Errorf("%d bytes", len(key))
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] == 0x7f {
			return errors.New("illegal byte")
		}
	}
	return nil
}
