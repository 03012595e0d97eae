package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// exempting returns a guard that exempts these prefixes.
func exempting(t *testing.T, prefixes ...string) try {
	g := on(t, memstore.New())
	for _, p := range prefixes {
		g.Exempt = append(g.Exempt, netip.MustParsePrefix(p))
	}
	return g
}

func TestExemptAddresses(t *testing.T) {
	exempt := func(prefixes ...string) func(*login.Guard) {
		return func(g *login.Guard) { g.Exempt = exempting(t, prefixes...).Exempt }
	}
	scenes := []scene{
		{"an address tries as many names as it likes", exempt("192.0.2.0/24"), "*@office fails 600; @office fails 600; @office in; @ fails 50/60"},
		{"a network is not limited", exempt("2001:db8:1::/48"), "*@2001:db8:1:1::7 fails 5100; @2001:db8:1:1::7 fails 5100"},
		{"names are limited there too", exempt("192.0.2.0/24", "10.0.0.0/8"), `
			alice@office fails 5/9; alice@office refused 10m; alice@* fails 19/100
			bob@office in; bob full; bob@office fails 5/9; carol full; carol@office refused`},
		{"no limit of the address holds where a name is known", func(g *login.Guard) {
			exempt("192.0.2.0/24")(g)
			g.Limits = limits{"name+address": {Max: -1}, "known": {Max: -1}}
		}, "bob@office in; bob full; bob@office fails 600"},
	}
	for from, verified := range map[string]int{
		"192.0.2.1": 60, "::ffff:192.0.2.1": 60, "64:ff9b::192.0.2.1": 60, "fe80::1%eth0": 60,
		"192.0.3.1": 50, "fe80::2": 50, "2001:db8:1:2:3::c0:21": 50,
	} {
		scenes = append(scenes, scene{"an address is exempt as it is counted", exempt("192.0.2.0/24", "fe80::1/128"),
			fmt.Sprintf("@%s fails %d/60", from, verified)})
	}
	play(t, append(scenes, scene{"a mapped prefix is that of IPv4", exempt("::ffff:198.51.100.0/120"), "*@away fails 100"}))
}

// What was counted before an address was exempt can still be forgotten.
func TestLiftOfAnAddressThatHasBecomeExempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.banAddress(office)
		g.Exempt = []netip.Prefix{netip.PrefixFrom(office, 32)}
		d, err := g.Peek(t.Context(), "", office)
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, d.Status, "it still counts")
		require.NoError(t, g.Lift(t.Context(), "", office))
		g.Exempt = nil
		g.succeeds("bob", office)
	})
}

func TestOptionThatMakesNoSenseIsNamed(t *testing.T) {
	for want, set := range map[string]func(*login.Guard){
		`Guard.Limits["name+address"].TTL is -1s, want 1ms or more`:              func(g *login.Guard) { g.Limits = limits{"name+address": {TTL: -time.Second}} },
		`Guard.Limits["name+address"].Max is 1000001, want at most 1000000`:      func(g *login.Guard) { g.Limits = limits{"name+address": {Max: throttler.MaxHits + 1}} },
		`Guard.Limits["address"].TTL is 999µs, want 1ms or more`:                 func(g *login.Guard) { g.Limits = limits{"address": {TTL: time.Millisecond - time.Microsecond}} },
		`Guard.Limits["address"].Max is 1000001`:                                 func(g *login.Guard) { g.Limits = limits{"address": {Max: throttler.MaxHits + 1}} },
		`Guard.Limits["address-day"].Max is 1000000001, want at most 1000000000`: func(g *login.Guard) { g.Limits = limits{"address-day": {TTL: time.Second, Max: 1e9 + 1}} },
		`Guard.Limits["network-56"].TTL is`:                                      func(g *login.Guard) { g.Limits = limits{"network-56": {TTL: record.MaxBucketTTL + 1}} },
		`Guard.Limits["network-48"].TTL is`:                                      func(g *login.Guard) { g.Limits = limits{"network-48": {TTL: -1}} },
		`Guard.Limits["network-32"].TTL is`:                                      func(g *login.Guard) { g.Limits = limits{"network-32": {TTL: -1}} },
		`Guard.Limits["name"].TTL is`:                                            func(g *login.Guard) { g.Limits = limits{"name": {TTL: 1}} },
		`Guard.Limits["known"].TTL is`:                                           func(g *login.Guard) { g.Limits = limits{"known": {TTL: 1}} },
		`Guard.Limits["siege"] is {Max:0 TTL:1s Lockout:0s}, want a Max only`:    func(g *login.Guard) { g.Limits = limits{"siege": {TTL: time.Second}} },
		`Guard.Limits is of "names", want the name of a limit`:                   func(g *login.Guard) { g.Limits = limits{"names": {Max: 1}} },
		"Guard.MaxLockout is -1s":                                                func(g *login.Guard) { g.MaxLockout = -time.Second },
		"Guard.KnownFor is 1µs":                                                  func(g *login.Guard) { g.KnownFor = time.Microsecond },
		"Guard.KnownFor is 8760":                                                 func(g *login.Guard) { g.KnownFor = record.MaxBucketTTL },
		"Guard.IPv6Bits is -1, want 0 to 128":                                    func(g *login.Guard) { g.IPv6Bits = -1 },
		"Guard.IPv6Bits is 129":                                                  func(g *login.Guard) { g.IPv6Bits = 129 },
		`Guard.Limits["siege"].Max is 19, want 20 to 500000, 0 or negative`:      func(g *login.Guard) { g.Limits = limits{"siege": {Max: 19}} },
		`Guard.Limits["siege"].Max is 500001`:                                    func(g *login.Guard) { g.Limits = limits{"siege": {Max: 500_001}} },
		"Guard.Exempt[0] is invalid Prefix":                                      func(g *login.Guard) { g.Exempt = []netip.Prefix{{}} },
		"Guard.Exempt[1] is invalid Prefix":                                      func(g *login.Guard) { g.Exempt = []netip.Prefix{netip.PrefixFrom(office, 32), {}} },
		"Guard.Exempt[0] is 64:ff9b::a00:0/104":                                  func(g *login.Guard) { g.Exempt = exempting(t, "64:ff9b::10.0.0.0/104").Exempt },
	} {
		g := login.New(throttler.New(memstore.New()))
		require.NoError(t, g.Validate())
		set(g)
		err := g.Validate()
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
		require.ErrorContains(t, err, want)

		a, err := g.Begin(t.Context(), "alice", home)
		require.ErrorContains(t, err, want, "at the first attempt")
		require.Nil(t, a)
		require.ErrorContains(t, g.Recognize(t.Context(), "alice", home, ""), want)
		require.ErrorContains(t, g.Lift(t.Context(), "alice", home), want)
		d, err := g.Peek(t.Context(), "alice", home)
		require.ErrorContains(t, err, want)
		require.Zero(t, d)
	}
}

func TestOptionsAtTheirBoundsAreValid(t *testing.T) {
	g := login.New(throttler.New(memstore.New()))
	g.Limits = limits{
		"name+address": {Max: throttler.MaxHits, TTL: time.Millisecond},
		"name":         {Max: 1e6, TTL: time.Millisecond},
		"known":        {TTL: record.MaxBucketTTL},
		"address":      {Max: -1, TTL: -1}, // there is none
		"siege":        {Max: 20},
	}
	g.KnownFor = record.MaxBucketTTL / 2
	g.IPv6Bits = 128
	require.NoError(t, g.Validate())
	a, err := g.Begin(t.Context(), "alice", home)
	require.NoError(t, err)
	require.NoError(t, a.Succeed(t.Context()))
	g.KnownFor, g.IPv6Bits = time.Millisecond, 1
	require.NoError(t, g.Validate())
	g.KnownFor = -1
	require.NoError(t, g.Validate())
	g.Limits["siege"] = login.Limit{Max: -1} // there is no alarm
	require.NoError(t, g.Validate())
	g.Limits["siege"] = login.Limit{Max: 3000}
	require.NoError(t, g.Validate())
	g.Limits["siege"] = login.Limit{Max: throttler.MaxHits / 2}
	require.NoError(t, g.Validate())
}

func TestPeekSaysWhatLiftWouldForget(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g, ctx := on(t, client), t.Context()
		counted := func(name string, addr netip.Addr) (conditions []string) {
			d, err := g.Peek(ctx, name, addr)
			require.NoError(t, err)
			require.NoError(t, d.Err)
			for _, o := range d.Outcomes {
				if o.Blocked || o.Remaining < o.Limit-1 {
					conditions = append(conditions, o.Name)
				}
			}
			return conditions
		}
		require.Empty(t, counted("alice", home))
		require.Empty(t, counted("", netip.Addr{}))
		g.fails(1, "alice", home)
		for range 3 { // and it counts nothing itself
			require.Equal(t, []string{"name+address", "address", "address-day", "name"}, counted("Alice", home))
		}
		require.Equal(t, []string{"name"}, counted("alice", netip.Addr{}))
		require.Equal(t, []string{"address", "address-day"}, counted("", home))
		require.Empty(t, counted("bob", away))
		require.NoError(t, g.Lift(ctx, "alice", home))
		require.Empty(t, counted("alice", home))

		g.fails(6, "alice", home)
		require.NoError(t, g.Lift(ctx, "", home))
		g.fails(1, "bob", home)
		require.Equal(t, []string{"name+address", "address", "address-day", "name"}, counted("alice", home), "one hit beside a ban")
		g.Shadow = true
		d, err := g.Peek(ctx, "alice", home)
		require.NoError(t, err)
		require.Equal(t, throttler.Blocked, d.Status, "what counts, and not what becomes of it")
	})
}

// An operator lifts what a list shows, and those who come then are not banned
// again for what was counted before.
func TestLiftedRecordsLeaveNothingBehindThatBansAgain(t *testing.T) {
	for _, key := range []string{"", "secret"} {
		synctest.Test(t, func(t *testing.T) {
			limits := throttler.New(memstore.New())
			blocked := map[string]string{}
			limits.Observe = func(_ context.Context, rule throttler.Rule, d throttler.Decision) {
				for i, o := range d.Outcomes {
					if o.Blocked && rule.Identifier == "login" && d.Status == throttler.Blocked {
						blocked[rule.Either[i].Name] = rule.Either[i].Value
					}
				}
			}
			g := try{login.New(limits), t}
			g.Keys = [][]byte{[]byte(key)}
			for i := range 60 {
				g.fails(1, fmt.Sprint("victim", i), office)
			}
			require.Contains(t, blocked, "address")
			require.NoError(t, g.LiftRecord(t.Context(), "address", blocked["address"]))
			for i := range 60 {
				g.succeeds(fmt.Sprint("user", i), office)
			}
			require.Equal(t, 50, g.fails(1, "user0", office)+g.failAt(59, office), "counted anew")

			g.fails(9, "alice", home)
			require.NoError(t, g.LiftRecord(t.Context(), "name+address", blocked["name+address"]))
			require.Equal(t, 4, g.fails(4, "alice", home))
			g.succeeds("alice", home)

			g.fill("bob")
			require.NoError(t, g.LiftRecord(t.Context(), "name", blocked["name"]))
			g.succeeds("bob", home)
		})
	}
}

// failAt fails n times at an address, each time with another name.
func (g try) failAt(n int, from netip.Addr) (verified int) {
	for i := range n {
		verified += g.fails(1, fmt.Sprint("other", i), from)
	}
	return verified
}
