package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestLimits(t *testing.T) {
	playOnEachBackend(t, []scene{
		{"the sixth guess is banned with its address", nil, `
			alice fails 5; alice refused 10m
			alice@away in; bob in; alice refused 10m`},
		{"an address is banned whatever names it tries", nil, "* fails 50/60; carol refused 10m; carol@away in"},
		{"blocked attempts count nowhere: a banned attacker uses up no limit of others", nil, `
			alice fails 5/1000; alice@* fails 19/100; * fails 45/100`},
		{"a success takes back its own hits, and forgets name and address", nil, `
			alice fails 4; alice in; alice fails 5/9
			alice@away left name 15
			bob left address 45; bob left address-day 495`},
		{"lift forgets the name, the address, or both", nil, `
			alice fails 5/6; * fails 45/60; alice@* fails 19/60; alice lifted
			alice@home refused; bob refused; alice@away in
			@home lifted; bob in; alice refused
			alice@home lifted; alice in
			@ lifted`},
	})
	play(t, []scene{
		{"bans of name and address grow up to an hour, until a success", func(g *login.Guard) { g.Limits = limits{"name": {Max: 1000}} }, `
			alice fails 5; alice refused 10m; wait 10m1s
			alice fails 5; alice refused 20m; wait 20m1s
			alice fails 5; alice refused 40m; wait 40m1s
			alice fails 5; alice refused 60m; wait 60m1s
			alice fails 5; alice refused 60m; wait 60m1s
			alice in; alice fails 5; alice refused 10m`},
		{"a name is slowed from many addresses, and never banned", nil, "alice@* fails 24/100; alice refused <1h; wait 1h; alice in"},
		{"a thousand people behind one address", nil, "*@office in 1000; alice@office in 100"},
		{"an empty name counts for its address alone", nil, `
			@* fails 100; @ fails 50/60; @away in; @away/device recognized; alice@away fails 5/9`},
		{"of a known address, too", func(g *login.Guard) { g.Limits = limits{"network-56": {Max: 20}, "network-48": {Max: 40}} }, `
			alice@2001:db8:1:101::7 in; bob/phone in
			*@2001:db8:1:1::7 fails 20/50; *@2001:db8:1:101::7 fails 20/50; carol@2001:db8:1:101::7 refused
			alice@2001:db8:1:101::7 in; bob@2001:db8:1:102::7/phone passes`},
		{"limits can be set", func(g *login.Guard) { g.Limits = limits{"name+address": {Max: 3, TTL: time.Hour, Lockout: -1}} }, "alice fails 3/4; alice refused 1h"},
		{"limits can be taken away", func(g *login.Guard) {
			g.Limits = limits{"name+address": {Max: -1}, "name": {Max: -1}, "address-day": {Max: -1}}
		}, "alice fails 50/100; alice@away in"},
		{"an attacker with an account of their own gains nothing by logging in to it", nil,
			strings.Repeat("* fails 1; mallory in;", 50) + "* fails 0/10"},
		{"a limit is half used with the attempt that is made", nil, `
			alice fresh; alice fails 1; alice fresh; alice fails 1; alice halfUsed; bob fresh; carol@* fails 11; carol@away halfUsed`},
		{"but for the long one of the name", func(g *login.Guard) { g.Limits = limits{"name-long": {Max: 20}} }, `
			alice fails 4; alice@* fails 10; wait 24h; alice@away fresh`},
		{"networks of IPv6 count", nil, "alice@2001:db8::7 counts by name+address address address-day name network-56 network-48 network-32"},
		{"unless they are taken away", func(g *login.Guard) { g.Limits = limits{"network-56": {Max: -1}} },
			"alice@2001:db8::7 counts by name+address address address-day name network-48 network-32"},
		{"or are none", nil, "alice counts by name+address address address-day name"},
		{"those of a translator are shared by all its clients", nil, `
			alice@64:ff9b::203.0.113.7 counts by name+address address address-day name
			alice@64:ff9b:1::203.0.113.7 counts by name+address address address-day name`},
		{"they are wider than the address", func(g *login.Guard) { g.IPv6Bits = 48 }, "alice@2001:db8::7 counts by name+address address address-day name network-32"},
		{"all of them", func(g *login.Guard) { g.IPv6Bits = 32 }, "alice@2001:db8::7 counts by name+address address address-day name"},
		{"what was lifted bans nobody again", nil, "alice fails 5/6; alice@home lifted; alice begins 5/6; alice refused <1m"},
		{"a lifted network is open", func(g *login.Guard) { g.Limits = limits{"network-56": {Max: 10}} }, `
			*@2001:db8:1:1::7 fails 10/12; alice@2001:db8:1:4d::7 refused
			lift network-56 2001:db8:1::/56; alice@2001:db8:1:4d::7 in
			*@2001:db8:1:1::7 fails 10/12; bob@2001:db8:1:4d::7 refused
			lift address 2001:db8:1:4d::/64; bob@2001:db8:1:4d::7 in`},
		{"no long limit of a name by default", nil, "alice@* begins 24/30; alice refused 5s"},
		{"after it strangers need a second step", func(g *login.Guard) { g.Limits = limits{"name-long": {Max: 3, TTL: time.Hour}} }, `
			alice fails 3; alice@away secondStep; bob passes; alice lifted; alice@away passes
			carol fails 3; wait 3601s; carol@away passes`},
		{"one who shares a known address uses it up there alone", func(g *login.Guard) {
			g.Limits = limits{"name-long": {Max: 40}, "name+address": {Max: -1}, "name": {Max: -1}, "known": {Max: -1}}
		}, `
			alice in; alice@office in; alice@* fails 40/60; alice@office fails 40/60; alice@office secondStep
			alice in; alice@office recognized; alice@office in`},
		{"spellings of a name count together", nil, `
			Weiß fails 1; weiss fails 1; WEISS fails 1; ｗｅｉｓｓ fails 1; weiſs fails 1; weiss refused 10m`},
		{"or as the application says", func(g *login.Guard) { g.Normalize = func(name string) string { return name } }, `
			weiss fails 5; weiss refused 10m; WEISS fails 1`},
	})
}

// Which addresses count as one.
func TestAddressesThatCountTogether(t *testing.T) {
	var scenes []scene
	for _, row := range []struct {
		one, other string
		bits       int
		together   bool
	}{
		{"2001:db8:1:2::3", "2001:db8:1:2:ffff::4", 0, true},
		{"2001:db8:1:2::3", "2001:db8:1:3::3", 0, false},
		{"2001:db8:1:2::3", "2001:db8:1:3::3", 48, true},
		{"2001:db8:1:2::3", "2001:db8:1:2::4", 128, false},
		{"203.0.113.7", "::ffff:203.0.113.7", 0, true},
		{"203.0.113.7", "203.0.113.8", 0, false},
		{"203.0.113.7", "203.0.113.8", 16, false},
		{"::ffff:203.0.113.7", "::ffff:203.0.113.8", 0, false},
		{"203.0.113.7", "64:ff9b::203.0.113.7", 0, true},
		{"64:ff9b::203.0.113.7", "64:ff9b::203.0.113.8", 0, false},
		{"64:ff9b::203.0.113.7", "64:ff9b:0:0:0:1:203.0.113.7", 0, false},
		{"64:ff9b:1::203.0.113.7", "64:ff9b:1::203.0.113.8", 0, false},
		{"fe80::1%eth0", "fe80::1%eth1", 0, true},
		{"fe80::1%eth0", "fe80::1", 128, true},
	} {
		then := map[bool]string{true: "refused", false: "passes"}[row.together]
		scenes = append(scenes, scene{row.one + " and " + row.other, func(g *login.Guard) { g.IPv6Bits = row.bits },
			fmt.Sprintf("alice@%s fails 5; alice@%s %s", row.one, row.other, then)})
	}
	play(t, scenes)
}

func TestPatientAddressIsLimitedByTheDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		verified := 0
		for i := range 24 * 60 * 6 {
			verified += g.fails(1, fmt.Sprint("name", i), home)
			time.Sleep(10 * time.Second)
		}
		require.InDelta(t, 1000, verified, 1)
	})
}

// What can never be counted is an error, whoever asks, and leaves nothing. Padding must not buy
// guesses: not by being cut, and not by taking long.
func TestAttemptsThatCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		observed := g.events()
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		late, cancel := context.WithDeadline(ctx, time.Now())
		defer cancel()
		for _, row := range []struct {
			ctx  context.Context
			name string
			addr netip.Addr
			want error
		}{
			{ctx, "alice", netip.Addr{}, login.ErrNoAddress},
			{ctx, strings.Repeat(" ", 1024) + "alice", home, login.ErrNameTooLong},
			{ctx, strings.Repeat("x", 1025), home, login.ErrNameTooLong},
			{ctx, strings.Repeat("\ufdfa", 1<<20/3), home, login.ErrNameTooLong},
			{canceled, "alice", home, context.Canceled},
			{late, "alice", home, context.DeadlineExceeded},
		} {
			a, err := g.Begin(row.ctx, row.name, row.addr)
			require.ErrorIs(t, err, row.want)
			require.Nil(t, a)
			never := func(context.Context) (bool, error) { t.Error("checked"); return true, nil }
			result, d, err := g.Try(row.ctx, row.name, row.addr, never)
			require.ErrorIs(t, err, row.want)
			require.Equal(t, login.Refused, result)
			require.Equal(t, throttler.Decision{}, d)
			if row.ctx == ctx {
				require.ErrorIs(t, g.Recognize(ctx, row.name, row.addr, ""), row.want)
			}
			if row.want == login.ErrNameTooLong {
				require.ErrorIs(t, g.Lift(ctx, row.name, home), row.want)
				require.ErrorIs(t, g.Forget(ctx, row.name, "phone"), row.want)
				require.ErrorIs(t, g.ConfirmDevice(ctx, row.name, "phone"), row.want)
				_, err := g.Peek(ctx, row.name, home)
				require.ErrorIs(t, err, row.want)
			}
		}
		require.Empty(t, observed())
		longest := strings.Repeat(" ", 1019) + "alice"
		require.Equal(t, 5, g.fails(5, longest, home), "nothing was counted")
		g.isBlocked("alice", home, 10*time.Minute)
		g.Normalize = func(name string) string {
			assert.Len(t, name, 1024)
			return name
		}
		g.begin(longest, away)
		require.PanicsWithValue(t, "login: New with a nil Throttler", func() { login.New(nil) })
	})
}

// While the backend is down, a Fallback decides as it would; without one, attempts pass.
func TestAnOutageIsDecidedByTheFallback(t *testing.T) {
	for _, fallback := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client := &wire{Client: memstore.New()}
			limits := throttler.New(client)
			limits.RecordCache = -1 // what was last seen must not help
			if fallback {
				limits.Fallback = memstore.New()
			}
			g := try{login.New(limits), t}
			require.NoError(t, g.beginDevice("carol", home, "phone").Succeed(t.Context()))
			client.breaks()
			begin := func(name string, from netip.Addr, device string) *login.Attempt {
				a, err := g.Begin(login.WithDevice(t.Context(), device), name, from)
				require.NoError(t, err)
				require.ErrorIs(t, a.Decision.Err, errDown)
				return a
			}
			passes := func(n int, name string, from func(int) netip.Addr, fail bool) (passed int) {
				for i := range n {
					if a := begin(name, from(i), ""); a.Decision.Status == throttler.Authorized {
						passed++
						if fail {
							a.Fail(t.Context())
						}
					}
				}
				return passed
			}
			if !fallback {
				require.Equal(t, 30, passes(30, "alice", same(home), true))
				return
			}
			require.Equal(t, 5, passes(10, "alice", same(home), true))
			require.Equal(t, 10*time.Minute, begin("alice", home, "").Decision.RetryAfter)
			require.Equal(t, 24, passes(30, "carol", addr, true))
			require.Equal(t, throttler.Authorized, begin("carol", home, "").Decision.Status, "known before the outage")
			require.Equal(t, throttler.Authorized, begin("carol", away, "phone").Decision.Status, "known before the outage")
			require.Equal(t, 5, passes(5, "bob", same(home), false))
			time.Sleep(61 * time.Second)
			require.InDelta(t, 10*time.Minute, begin("bob", home, "").Decision.RetryAfter, float64(time.Second), "attempts that were left")
		})
	}
}

// What a burst of guesses exceeds is refused for seconds, and not let pass.
func TestAnOverloadRefusesUnlessAFallbackHasDecided(t *testing.T) {
	overload := fmt.Errorf("busy: %w", throttler.ErrOverloaded)
	for _, row := range []struct {
		what             string
		err              error
		fallback, shadow bool
		refused          bool
	}{
		{"alone", overload, false, false, true},
		{"a fallback has decided", overload, true, false, false},
		{"a trial refuses nobody", overload, false, true, false},
		{"another failure", throttler.ErrUnavailable, false, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := &wire{Client: memstore.New()}
			client.meets(func(string, string) error { return row.err })
			limits := throttler.New(client)
			if row.fallback {
				limits.Fallback = memstore.New()
			}
			g := login.New(limits)
			g.Shadow = row.shadow
			a, err := g.Begin(t.Context(), "alice", home)
			require.NoError(t, err)
			require.ErrorIs(t, a.Decision.Err, row.err)
			require.Equal(t, row.refused, a.Decision.Status == throttler.Blocked, row.what)
			if row.refused {
				require.Equal(t, 5*time.Second, a.Decision.RetryAfter)
				require.Equal(t, []string{refusal}, a.Decision.Messages)
				require.ErrorIs(t, a.Succeed(t.Context()), login.ErrSettled)
			}
		})
	}
}

func TestSucceedCanBeRepeatedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &wire{Client: memstore.New()}
		g := on(t, client)
		g.fails(4, "alice", home)
		a := g.begin("alice", home)
		observed := g.events()
		client.breaks()
		require.ErrorIs(t, a.Succeed(t.Context()), errDown)
		require.Equal(t, login.Succeeded, observed()[0].Result)
		client.works()
		require.NoError(t, a.Succeed(t.Context()))
		require.Empty(t, observed())
		require.Equal(t, 5, g.fails(6, "alice", home))
	})
}

// A burst of guesses must not be verified before it is counted.
func TestParallelGuessesAreExact(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		for _, test := range []struct {
			name      string
			guesses   int
			at        func(i int) string
			from      func(i int) netip.Addr
			low, high int
		}{
			{"one name, one address", 20, same("alice"), same(home), 5, 5},
			// So many fill the name for a moment too, and take back what
			// they have counted there once name+address refuses them.
			{"one name, one address, all at once", 200, same("carol"), same(home), 1, 5},
			{"one address", 200, pupil, same(away), 50, 50},
			{"one name", 200, same("bob"), addr, 24, 24},
			{"one network", 400, pupil, func(i int) netip.Addr { return v6(i%256, i/256) }, 100, 100},
		} {
			g := on(t, client)
			g.Limits = limits{"network-48": {Max: 100}}
			verified := g.burst(test.guesses, test.at, test.from)
			require.GreaterOrEqual(t, verified, test.low, test.name)
			require.LessOrEqual(t, verified, test.high, test.name)
		}
	})
}

// burst makes n guesses at once and returns how many were verified.
func (g try) burst(n int, at func(int) string, from func(int) netip.Addr) int {
	var verified atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			a, err := g.Begin(g.t.Context(), at(i), from(i))
			if assert.NoError(g.t, err) && assert.NoError(g.t, a.Decision.Err) && a.Decision.Status == throttler.Authorized {
				verified.Add(1)
				assert.NoError(g.t, a.Fail(g.t.Context()))
			}
		})
	}
	all.Wait()
	return int(verified.Load())
}

func same[T any](v T) func(int) T { return func(int) T { return v } }

// Successes and failures at once: what succeeds is all taken back.
func TestParallelSuccessesLeaveNothing(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				name := fmt.Sprint("user", i)
				for range 10 {
					a, err := g.Begin(t.Context(), name, office)
					if assert.NoError(t, err) && assert.Equal(t, throttler.Authorized, a.Decision.Status) {
						assert.NoError(t, a.Succeed(t.Context()))
					}
				}
			})
		}
		all.Wait()
		outcomes := g.begin("alice", office).Decision.Outcomes
		require.Equal(t, 49, outcomes[1].Remaining, "of the address")
		// A bucket gives back too little rather than too much while others are
		// under way, until it holds as much as they come to.
		require.Greater(t, outcomes[2].Remaining, 300, "of its day, after 400 successes")
	})
}

// v6 returns an address of one /48, in the i-th of its /56, j-th /64 of that.
func v6(i, j int) netip.Addr {
	a := netip.MustParseAddr("2001:db8:1::7").As16()
	a[6], a[7] = byte(i), byte(j)
	return netip.AddrFrom16(a)
}

// One who owns a /48 has 65,536 addresses that count.
func TestWiderNetworksOfIPv6AreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		of56, of48 := 0, 0
		for i := range 1500 {
			of56 += g.fails(1, fmt.Sprint("name", i), v6(0, i%256))
		}
		require.Equal(t, 1000, of56)
		for i := range 6000 {
			of48 += g.fails(1, fmt.Sprint("other", i), v6(1+i%255, i%256))
		}
		require.Equal(t, 5000, of56+of48)
		a := g.begin("alice", v6(77, 1))
		require.Equal(t, throttler.Blocked, a.Decision.Status)
		require.Less(t, a.Decision.RetryAfter, time.Minute)
		for _, o := range a.Decision.Outcomes {
			require.False(t, o.Banned)
		}
		g.succeeds("alice", netip.MustParseAddr("2001:db8:2::7"))
		require.NoError(t, g.Lift(t.Context(), "", v6(77, 1)))
		g.succeeds("alice", v6(77, 1))
	})
}

// A provider's /32 has 65,536 /48s.
func TestAProvidersNetworkIsLimited(t *testing.T) {
	takesLong(t)
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Limits = limits{"siege": {Max: -1}}
		verified := 0
		for i := range 20_100 {
			verified += g.fails(1, fmt.Sprint("name", i), netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i)))
		}
		require.Equal(t, 20_000, verified)
		g.succeeds("alice", netip.MustParseAddr("2001:db9::1"))
	})
}

func TestDefaultNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "",
		"alice":                 "alice",
		" Alice@Example.ORG ":   "alice@example.org",
		"ΣΊΣΥΦΟΣ":               "σισυφοσ",
		"σίσυφος":               "σισυφοσ",
		"\u00a0ＡＬＩＣＥ\u3000":     "alice",
		"e\u0301":               "e",
		"José":                  "jose",
		"Ёжик":                  "ежик",
		"ﬁn":                    "fin",
		"a b":                   "a b",
		"a \t\u3000\u200bb":     "a b",
		"al\u00adi\x00ce\ufeff": "alice",
		"\u0301alice\ufe0f":     "alice",
		"a\u034f\u0301lice":     "alice",
		"al\u064eice":           "alice",
		"bad\xff":               "bad\ufffd",
		"İIıi":                  "iiii",
		"ſtraẞe":                "strasse",
		"\u0939\u093f\u0928":    "\u0939\u093f\u0928",
		"\uff76\uff9e":          "\u30ac",
		"\u1100\u1161":          "\uac00",
		"ᎠꭰᏸᏰ":                  "ᎠᎠᏰᏰ",
		"\U000e0061x":           "x",
	} {
		if want == "ᎠᎠᏰᏰ" {
			want = strings.ToLower(want)
		}
		require.Equal(t, want, login.Normalize(in), "%q", in)
	}
}

func TestKeyKeepsNamesOutOfTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &wire{Client: memstore.New()}
		client.meets(func(_, keys string) error {
			assert.NotContains(t, strings.ToLower(keys), "alice")
			return nil
		})
		limits := throttler.New(client)
		limits.Observe = func(_ context.Context, rule throttler.Rule, _ throttler.Decision) {
			for _, c := range append(rule.Either, rule.All...) {
				assert.NotContains(t, c.Value, "alice")
			}
		}
		g := try{login.New(limits), t}
		g.Keys = [][]byte{[]byte("0123456789abcdef0123456789abcdef")}
		g.fails(5, "Alice", home)
		g.isBlocked("alice ", home, 10*time.Minute)
		a := g.beginDevice("alice", away, "device-of-alice")
		require.NoError(t, a.Succeed(t.Context()))
		require.NoError(t, g.Lift(t.Context(), "ALICE", home))
		g.succeeds("alice", home)
		other := on(t, client.Client)
		other.Keys = [][]byte{[]byte("another")}
		g.fails(5, "alice", home)
		require.Equal(t, 5, other.fails(5, "alice", home), "another key, other records")
	})
}

func TestMessageDoesNotTellWhatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for i := range 50 {
			g.fails(1, "alice", addr(i))
		}
		require.Equal(t, []string{refusal}, g.begin("alice", home).Decision.Messages)
		g.fails(50, "bob", home)
		for i := range 60 {
			g.fails(1, fmt.Sprint("name", i), home)
		}
		require.Equal(t, []string{refusal}, g.begin("alice", home).Decision.Messages, "of address and name")
		require.Empty(t, g.begin("carol", away).Decision.Messages)
	})
}

// The Guard has no way to know which names exist.
func TestNamesAreAnsweredAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := on(t, memstore.New()), on(t, memstore.New())
		one.succeeds("alice", away)
		for range 20 {
			a, b := one.begin("alice", home).Decision, other.begin("nobody", home).Decision
			require.Equal(t, a.Status, b.Status)
			require.Equal(t, a.RetryAfter, b.RetryAfter)
			require.Equal(t, a.Messages, b.Messages)
			require.Equal(t, a.Outcomes, b.Outcomes)
			time.Sleep(time.Second)
		}
	})
}

// A client that sends the last byte late chooses when the deadline passes.
func TestContextThatEndsMeanwhileIsAnErrorAndLeavesNothing(t *testing.T) {
	for ends, want := range map[string]error{"canceled": context.Canceled, "its deadline": context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			client := &wire{Client: distant(memstore.New())}
			g := on(t, client)
			for i := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if want == context.DeadlineExceeded {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i%4)*500*time.Microsecond)
				} else {
					client.meets(func(string, string) error { cancel(); return nil })
				}
				a, err := g.Begin(ctx, "alice", home)
				cancel()
				time.Sleep(time.Second) // for what was left to the client
				if err == nil {
					require.Equal(t, throttler.Authorized, a.Decision.Status)
					require.NoError(t, a.Succeed(t.Context()))
					continue
				}
				require.ErrorIs(t, err, want, ends)
				require.Nil(t, a)
			}
			client.works()
			require.Equal(t, 5, g.fails(9, "alice", home), ends)
			require.Equal(t, 19, g.burst(50, same("alice"), addr), "of the name's 24: %s", ends)
		})
	}
}

func TestSucceedDoesNotWaitForABackendThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, released := &wire{Client: memstore.New()}, make(chan struct{})
		defer close(released)
		g := on(t, client)
		a := g.begin("alice", home)
		client.meets(func(string, string) error { <-released; return nil })
		start := time.Now()
		require.ErrorIs(t, a.Succeed(context.WithoutCancel(t.Context())), context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
}

func TestShadowLetsPassAndClearsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Shadow = true
		require.Equal(t, 9, g.fails(9, "alice", home))
		a := g.begin("alice", home)
		require.True(t, a.Decision.WouldBlock)
		require.NoError(t, a.Succeed(t.Context()))
		g.Shadow = false
		g.isBlocked("alice", home, 10*time.Minute)
	})
}
