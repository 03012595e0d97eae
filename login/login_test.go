package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// refusal is the default of Guard.Message.
const refusal = "Too many attempts. Please try again later."

var (
	home   = netip.MustParseAddr("203.0.113.7")
	away   = netip.MustParseAddr("198.51.100.9")
	office = netip.MustParseAddr("192.0.2.1")
)

// addr returns the i-th of many addresses.
func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// try is a guard with the steps of a test.
type try struct {
	*login.Guard
	t *testing.T
}

// on returns a guard over client. A busy machine must not make it fail open.
func on(t *testing.T, client throttler.Client) try {
	limits := throttler.New(client)
	limits.QueueTimeout = 20 * time.Second
	return try{login.New(limits), t}
}

func (g try) begin(name string, addr netip.Addr) *login.Attempt {
	g.t.Helper()
	return g.beginDevice(name, addr, "")
}

func (g try) beginDevice(name string, addr netip.Addr, device string) *login.Attempt {
	g.t.Helper()
	a, err := g.Begin(login.WithDevice(g.t.Context(), device), name, addr)
	require.NoError(g.t, err)
	require.NoError(g.t, a.Decision.Err)
	return a
}

// fails makes n wrong guesses and returns how many of them were verified.
func (g try) fails(n int, name string, addr netip.Addr) (verified int) {
	g.t.Helper()
	for range n {
		a := g.begin(name, addr)
		if a.Decision.Status == throttler.Authorized {
			verified++
			require.NoError(g.t, a.Fail(g.t.Context()))
		}
	}
	return verified
}

func (g try) succeeds(name string, addr netip.Addr) {
	g.t.Helper()
	a := g.begin(name, addr)
	require.Equal(g.t, throttler.Authorized, a.Decision.Status, "%s from %s", name, addr)
	require.NoError(g.t, a.Succeed(g.t.Context()))
}

func (g try) isBlocked(name string, addr netip.Addr, retryAfter time.Duration) {
	g.t.Helper()
	g.isBlockedSince(time.Now(), name, addr, retryAfter)
}

// isBlockedSince is isBlocked for a ban of that length that was set after begun.
func (g try) isBlockedSince(begun time.Time, name string, addr netip.Addr, length time.Duration) {
	g.t.Helper()
	a := g.begin(name, addr)
	require.Equal(g.t, throttler.Blocked, a.Decision.Status, "%s from %s", name, addr)
	require.LessOrEqual(g.t, a.Decision.RetryAfter, length+time.Second)
	require.GreaterOrEqual(g.t, a.Decision.RetryAfter, length-time.Second-time.Since(begun))
}

// eachBackend runs test on the embedded store, in a bubble of its own time, and
// on a real server.
func eachBackend(t *testing.T, test func(*testing.T, throttler.Client)) {
	t.Run("memstore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, memstore.New()) })
	})
	t.Run("memcached", func(t *testing.T) {
		client := memcache.New(servertest.AnyMemcached(t, "-c", "8192").Addr)
		client.Timeout = 5 * time.Second
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		client.MaxIdleConns = 64
		test(t, client)
	})
}

func TestSixthGuessIsBannedWithItsAddress(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		require.Equal(t, 5, g.fails(5, "alice", home))
		begun := time.Now()
		g.isBlocked("alice", home, 10*time.Minute)
		g.succeeds("alice", away)
		g.succeeds("bob", home)
		g.isBlockedSince(begun, "alice", home, 10*time.Minute)
	})
}

func TestBansOfNameAndAddressGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Name.Max = 1000
		for _, length := range []time.Duration{10, 20, 40, 60, 60} {
			require.Equal(t, 5, g.fails(5, "alice", home))
			g.isBlocked("alice", home, length*time.Minute)
			time.Sleep(length*time.Minute + time.Second)
		}
		g.succeeds("alice", home)
		g.fails(5, "alice", home)
		g.isBlocked("alice", home, 10*time.Minute)
	})
}

func TestAddressIsBannedWhateverNamesItTries(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		verified, begun := 0, time.Now()
		for i := range 60 {
			verified += g.fails(1, fmt.Sprint("name", i), home)
		}
		require.Equal(t, 50, verified)
		g.isBlockedSince(begun, "carol", home, 10*time.Minute)
		g.succeeds("carol", away)
	})
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

func TestNameIsSlowedFromManyAddressesAndNeverBanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		verified := 0
		for i := range 100 {
			verified += g.fails(1, "alice", addr(i))
		}
		require.Equal(t, 24, verified)
		a := g.begin("alice", home)
		require.Equal(t, throttler.Blocked, a.Decision.Status)
		require.LessOrEqual(t, a.Decision.RetryAfter, time.Hour)
		for i := range a.Decision.Outcomes {
			require.False(t, a.Decision.Outcomes[i].Banned)
		}
		time.Sleep(a.Decision.RetryAfter)
		g.succeeds("alice", home)
	})
}

// A banned attacker must not use up the limits of others.
func TestBlockedAttemptsCountNowhere(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		g.fails(1000, "alice", home) // 995 of them blocked
		verified := 0
		for i := range 100 {
			verified += g.fails(1, "alice", addr(i))
		}
		require.Equal(t, 24-5, verified, "of the name's budget")
		verified = 0
		for i := range 100 {
			verified += g.fails(1, fmt.Sprint("name", i), home)
		}
		require.Equal(t, 50-5, verified, "of the address's budget")
	})
}

func TestSuccessTakesBackItsOwnHitsAndForgetsNameAndAddress(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		g.fails(4, "alice", home)
		g.succeeds("alice", home)
		require.Equal(t, 5, g.fails(9, "alice", home), "name+address is cleared")

		outcomes := g.begin("alice", away).Decision.Outcomes
		require.Equal(t, "name", outcomes[3].Name)
		require.Equal(t, 24-9-1, outcomes[3].Remaining, "the name's other failures stay")
		outcomes = g.begin("bob", home).Decision.Outcomes
		require.Equal(t, "address", outcomes[1].Name)
		require.Equal(t, 50-5-1, outcomes[1].Remaining, "the address gets back the four before the success")
		require.Equal(t, "address-day", outcomes[2].Name)
		require.Equal(t, 500-5-1, outcomes[2].Remaining)
	})
}

// An attacker with an account of his own gains nothing by logging in to it.
func TestOwnAccountDoesNotHelpGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		verified := 0
		for i := range 60 {
			verified += g.fails(1, fmt.Sprint("name", i), home)
			a := g.begin("mallory", home)
			if a.Decision.Status == throttler.Authorized {
				require.NoError(t, a.Succeed(t.Context()))
			}
		}
		require.Equal(t, 50, verified)
	})
}

// A thousand people behind one address, all of whom know their passwords.
func TestSuccessesAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for i := range 1000 {
			g.succeeds(fmt.Sprint("user", i), office)
		}
		for range 100 {
			g.succeeds("alice", office)
		}
	})
}

func TestBlockedAttemptCannotSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.fails(5, "alice", home)
		a := g.begin("alice", home)
		require.ErrorIs(t, a.Succeed(t.Context()), login.ErrSettled)
		a.Decision.Status = throttler.Authorized
		require.ErrorIs(t, a.Succeed(t.Context()), login.ErrSettled)
		g.isBlocked("alice", home, 10*time.Minute)
	})
}

func TestFirstOfSucceedAndFailHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		a := g.begin("alice", home)
		require.NoError(t, a.Fail(ctx))
		require.ErrorIs(t, a.Succeed(ctx), login.ErrSettled)
		require.NoError(t, a.Fail(ctx))

		b := g.begin("bob", home)
		require.NoError(t, b.Succeed(ctx))
		require.NoError(t, b.Fail(ctx))
		g.fails(4, "bob", home)
		require.NoError(t, b.Succeed(ctx), "and does nothing")
		require.Equal(t, 1, g.fails(2, "bob", home))
	})
}

func TestSucceedCanBeRepeatedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &failing{Client: memstore.New()}
		g := on(t, client)
		g.fails(4, "alice", home)
		a := g.begin("alice", home)
		client.down.Store(true)
		require.ErrorIs(t, a.Succeed(t.Context()), errDown)
		client.down.Store(false)
		require.NoError(t, a.Succeed(t.Context()))
		require.Equal(t, 5, g.fails(6, "alice", home))
	})
}

// failing is a client whose server can be down.
type failing struct {
	throttler.Client
	down atomic.Bool
}

var errDown = fmt.Errorf("the server is down")

func (f *failing) Get(key string) (*memcache.Item, error) {
	if f.down.Load() {
		return nil, errDown
	}
	return f.Client.Get(key)
}

func (f *failing) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if f.down.Load() {
		return nil, errDown
	}
	return f.Client.GetMulti(keys)
}

func (f *failing) Add(item *memcache.Item) error {
	if f.down.Load() {
		return errDown
	}
	return f.Client.Add(item)
}

func (f *failing) Delete(key string) error {
	if f.down.Load() {
		return errDown
	}
	return f.Client.Delete(key)
}

func TestOutageFailsOpenOrToTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &failing{Client: memstore.New()}
		client.down.Store(true)
		limits := throttler.New(client)
		g := login.New(limits)
		for range 10 {
			a, err := g.Begin(t.Context(), "alice", home)
			require.NoError(t, err)
			require.Equal(t, throttler.Authorized, a.Decision.Status)
			require.ErrorIs(t, a.Decision.Err, errDown)
		}
		limits = throttler.New(client)
		limits.Fallback = memstore.New()
		g = login.New(limits)
		verified := 0
		for range 10 {
			a, err := g.Begin(t.Context(), "alice", home)
			require.NoError(t, err)
			require.ErrorIs(t, a.Decision.Err, errDown)
			if a.Decision.Status == throttler.Authorized {
				verified++
				a.Fail(t.Context())
			} else {
				require.Equal(t, 10*time.Minute, a.Decision.RetryAfter, "banned in the Fallback")
			}
		}
		require.Equal(t, 5, verified)
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
			{"one address", 200, func(i int) string { return fmt.Sprint("name", i) }, same(away), 50, 50},
			{"one name", 200, same("bob"), addr, 24, 24},
		} {
			g := on(t, client)
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

func TestIPv6IsCountedByItsNetworkAndMappedIPv4AsItself(t *testing.T) {
	for _, test := range []struct {
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
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.IPv6Bits = test.bits
			require.Equal(t, 5, g.fails(5, "alice", netip.MustParseAddr(test.one)))
			blocked := g.begin("alice", netip.MustParseAddr(test.other)).Decision.Status == throttler.Blocked
			require.Equal(t, test.together, blocked, "%+v", test)
		})
	}
}

// They would be those of a translator, which all IPv4 clients share.
func TestATranslatedAddressHasNoNetworks(t *testing.T) {
	for addr, networks := range map[string]bool{
		"2001:db8:1:2::3": true, "203.0.113.7": false, "64:ff9b::203.0.113.7": false, "64:ff9b:1::203.0.113.7": false,
	} {
		names := []string{}
		for _, o := range on(t, memstore.New()).begin("alice", netip.MustParseAddr(addr)).Decision.Outcomes {
			names = append(names, o.Name)
		}
		require.Equal(t, networks, slices.Contains(names, "network-56"), addr)
		require.Equal(t, networks, slices.Contains(names, "network-48"), addr)
	}
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
		g.SiegeFloor = -1
		verified := 0
		for i := range 20_100 {
			verified += g.fails(1, fmt.Sprint("name", i), netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i)))
		}
		require.Equal(t, 20_000, verified)
		g.succeeds("alice", netip.MustParseAddr("2001:db9::1"))
	})
}

func TestWiderNetworksAreExactInABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Network48.Max = 100
		verified := g.burst(400, func(i int) string { return fmt.Sprint("name", i) }, func(i int) netip.Addr { return v6(i%256, i/256) })
		require.Equal(t, 100, verified)
	})
}

func TestWiderNetworksNeverRefuseWhereANameIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.Network56.Max, g.Network48.Max = 20, 40
		g.succeeds("alice", v6(1, 1))
		require.NoError(t, g.beginDevice("bob", home, "phone").Succeed(t.Context()))
		for i := range 100 {
			g.fails(1, fmt.Sprint("name", i), v6(i%2, i))
		}
		require.Equal(t, throttler.Blocked, g.begin("carol", v6(1, 1)).Decision.Status)
		g.succeeds("alice", v6(1, 1))
		require.Equal(t, throttler.Authorized, g.beginDevice("bob", v6(1, 2), "phone").Decision.Status)
	})
}

func TestWiderNetworksCanBeTakenAwayAndAreNoneOfAWiderPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		require.Len(t, g.begin("alice", v6(0, 0)).Decision.Outcomes, 7)
		require.Len(t, g.begin("alice", home).Decision.Outcomes, 4)
		g.Network56.Max = -1
		require.Len(t, g.begin("bob", v6(0, 0)).Decision.Outcomes, 6)
		for bits, conditions := range map[int]int{48: 5, 32: 4} {
			g = on(t, memstore.New())
			g.IPv6Bits = bits
			require.Len(t, g.begin("alice", v6(0, 0)).Decision.Outcomes, conditions)
		}
	})
}

func TestNoAddressIsAnError(t *testing.T) {
	g, ctx := login.New(throttler.New(memstore.New())), t.Context()
	a, err := g.Begin(ctx, "alice", netip.Addr{})
	require.ErrorIs(t, err, login.ErrNoAddress)
	require.Nil(t, a)
	require.ErrorIs(t, g.Recognize(ctx, "alice", netip.Addr{}, ""), login.ErrNoAddress)
}

func TestEmptyNameCountsForItsAddressAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for i := range 100 {
			require.Equal(t, 10, g.fails(10, []string{"", " ", "\u3000"}[i%3], addr(i)))
		}
		require.Equal(t, 50, g.fails(60, "", home))
		a := g.begin("", away)
		require.Len(t, a.Decision.Outcomes, 2)
		require.NoError(t, a.Succeed(t.Context()))
		require.NoError(t, g.Recognize(t.Context(), "", away, "device"))
		require.Equal(t, 5, g.fails(9, "alice", away))
	})
}

func TestSpellingsOfANameAreCountedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for _, name := range []string{"Weiß", " weiss", "WEISS\t", "ｗｅｉｓｓ", "weiſs"} {
			require.Equal(t, 1, g.fails(1, name, home), name)
		}
		g.isBlocked("weiss", home, 10*time.Minute)
		g.Normalize = func(name string) string { return name }
		require.Equal(t, 1, g.fails(1, "WEISS", home), "a function of the user's")
	})
}

// Padding must not buy guesses: not by being cut, and not by taking long.
func TestNameThatIsTooLongIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := on(t, memstore.New()), t.Context()
		for _, name := range []string{
			strings.Repeat(" ", 1024) + "alice", strings.Repeat("x", 1025), strings.Repeat("\ufdfa", 1<<20/3),
		} {
			a, err := g.Begin(ctx, name, home)
			require.ErrorIs(t, err, login.ErrNameTooLong)
			require.Nil(t, a)
			require.ErrorIs(t, g.Recognize(ctx, name, home, ""), login.ErrNameTooLong)
			require.ErrorIs(t, g.Lift(ctx, name, home), login.ErrNameTooLong)
		}
		longest := strings.Repeat(" ", 1019) + "alice"
		require.Equal(t, 5, g.fails(5, longest, home))
		g.isBlocked("alice", home, 10*time.Minute)
		g.Normalize = func(name string) string {
			assert.Len(t, name, 1024)
			return name
		}
		g.begin(longest, away)
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
		client := &recording{Client: memstore.New()}
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
		require.NotEmpty(t, client.keys)
		for _, key := range client.keys {
			require.NotContains(t, strings.ToLower(key), "alice")
		}
		other := on(t, client.Client)
		other.Keys = [][]byte{[]byte("another")}
		g.fails(5, "alice", home)
		require.Equal(t, 5, other.fails(5, "alice", home), "another key, other records")
	})
}

// recording keeps the keys that are written.
type recording struct {
	throttler.Client
	mu   sync.Mutex
	keys []string
}

func (r *recording) Add(item *memcache.Item) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = append(r.keys, item.Key)
	return r.Client.Add(item)
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
		g.Message = "Later."
		require.Equal(t, []string{"Later."}, g.begin("alice", home).Decision.Messages, "of address and name")
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

func TestAttemptWhoseContextHasEndedIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		for ctx, want := range map[context.Context]error{canceled: context.Canceled, late: context.DeadlineExceeded} {
			a, err := g.Begin(ctx, "alice", home)
			require.ErrorIs(t, err, want)
			require.Nil(t, a)
		}
		require.Equal(t, 5, g.fails(9, "alice", home), "nothing of it was counted")
	})
}

// A client that sends the last byte late chooses when the deadline passes.
func TestContextThatEndsMeanwhileIsAnErrorAndLeavesNothing(t *testing.T) {
	for ends, want := range map[string]error{"canceled": context.Canceled, "its deadline": context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			client := &interrupting{Client: distant{memstore.New()}}
			g := on(t, client)
			for i := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if want == context.DeadlineExceeded {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i%4)*500*time.Microsecond)
				} else {
					client.interrupt.Store(&cancel)
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
			client.interrupt.Store(nil)
			require.Equal(t, 5, g.fails(9, "alice", home), ends)
			require.Equal(t, 19, g.burst(50, same("alice"), addr), "of the name's 24: %s", ends)
		})
	}
}

// interrupting is a client that ends a context when something is written.
type interrupting struct {
	throttler.Client
	interrupt atomic.Pointer[context.CancelFunc]
}

func (i *interrupting) Add(item *memcache.Item) error {
	if cancel := i.interrupt.Load(); cancel != nil {
		defer (*cancel)()
	}
	return i.Client.Add(item)
}

func (i *interrupting) CompareAndSwap(item *memcache.Item) error {
	if cancel := i.interrupt.Load(); cancel != nil {
		defer (*cancel)()
	}
	return i.Client.CompareAndSwap(item)
}

func TestSuccessOfAClientThatHasHungUpIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, distant{memstore.New()})
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			a, err := g.Begin(ctx, "alice", home)
			require.NoError(t, err)
			require.Equal(t, throttler.Authorized, a.Decision.Status)
			cancel()
			require.NoError(t, a.Succeed(ctx))
		}
	})
}

func TestSucceedDoesNotWaitForABackendThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &hanging{Client: memstore.New(), released: make(chan struct{})}
		defer close(client.released)
		g := on(t, client)
		a := g.begin("alice", home)
		client.hangs.Store(true)
		start := time.Now()
		require.ErrorIs(t, a.Succeed(context.WithoutCancel(t.Context())), context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
}

// hanging is a client that can stop to answer.
type hanging struct {
	throttler.Client
	hangs    atomic.Bool
	released chan struct{}
}

func (h *hanging) wait() {
	if h.hangs.Load() {
		<-h.released
	}
}

func (h *hanging) Get(key string) (*memcache.Item, error) {
	h.wait()
	return h.Client.Get(key)
}

func (h *hanging) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	h.wait()
	return h.Client.GetMulti(keys)
}

func (h *hanging) Delete(key string) error {
	h.wait()
	return h.Client.Delete(key)
}

func TestInvalidOptionsAreAnError(t *testing.T) {
	g := login.New(throttler.New(memstore.New()))
	g.Address.Max = throttler.MaxHits + 1
	_, err := g.Begin(t.Context(), "alice", home)
	require.ErrorIs(t, err, throttler.ErrInvalidRule)
	require.PanicsWithValue(t, "login: New with a nil Throttler", func() { login.New(nil) })
}

func TestLimitsCanBeSetOrTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.NameAddress = login.Limit{Max: 3, TTL: time.Hour, Lockout: -1}
		require.Equal(t, 3, g.fails(4, "alice", home))
		g.isBlocked("alice", home, time.Hour)

		g = on(t, memstore.New())
		g.NameAddress.Max, g.Name.Max, g.AddressDay.Max = -1, -1, -1
		require.Equal(t, 50, g.fails(100, "alice", home))
		require.Len(t, g.begin("alice", home).Decision.Outcomes, 1)
		g.succeeds("alice", away)
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

func TestLiftForgetsNameAddressAndBoth(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g, ctx := on(t, client), t.Context()
		block := func() {
			g.fails(6, "alice", home)
			for i := range 60 {
				g.fails(1, fmt.Sprint("name", i), home)
				g.fails(1, "alice", addr(i))
			}
		}
		block()
		require.NoError(t, g.Lift(ctx, "alice", netip.Addr{}))
		g.succeeds("alice", away)
		require.Equal(t, throttler.Blocked, g.begin("bob", home).Decision.Status)
		require.NoError(t, g.Lift(ctx, "", home))
		g.succeeds("bob", home)
		require.Equal(t, throttler.Blocked, g.begin("alice", home).Decision.Status)
		require.NoError(t, g.Lift(ctx, "alice", home))
		g.succeeds("alice", home)
		require.NoError(t, g.Lift(ctx, "", netip.Addr{}))
	})
}
