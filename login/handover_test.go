package login_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/seal"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// handOver hands a over to another guard on the same servers.
func handOver(t *testing.T, a *login.Attempt, to *login.Guard) *login.Attempt {
	t.Helper()
	text, err := a.HandOver()
	require.NoError(t, err)
	taken, err := to.TakeOver(text)
	require.NoError(t, err)
	return taken
}

// An attempt that another process ends leaves the same behind as one that its own
// ends, whatever it was counted by.
func TestAnotherProcessEndsAnAttemptAsItsOwnDoes(t *testing.T) {
	for what, test := range map[string]struct {
		name   string
		addr   netip.Addr
		device string
	}{
		"a stranger":              {"alice", home, ""},
		"another spelling":        {"Alice\xff", home, ""},
		"with a device":           {"alice", home, "phone"},
		"on IPv6":                 {"alice", v6(1, 2), ""},
		"no name":                 {"", home, ""},
		"known by the address":    {"known", home, ""},
		"known by the device":     {"known", away, "laptop"},
		"known at a full address": {"known", office, ""},
	} {
		for _, how := range []string{"succeed", "fail", "cancel"} {
			end := ends[how]
			name, from := test.name, test.addr
			after := func(handed bool) (left []throttler.Decision, events []login.Event) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					g, other := on(t, store), login.New(throttler.New(store))
					for _, from := range []netip.Addr{home, office} {
						require.NoError(t, g.Recognize(t.Context(), "known", from, "laptop"))
					}
					g.fill("known")
					g.burst(60, pupil, same(office))
					a := g.beginDevice(name, from, test.device)
					require.Equal(t, throttler.Authorized, a.Decision.Status)
					require.Equal(t, name == "known", a.Known)
					time.Sleep(time.Second)
					observe := func(_ context.Context, e login.Event) {
						e.Decision = throttler.Decision{Status: e.Decision.Status}
						events = append(events, e)
					}
					g.Observe, other.Observe = observe, observe
					if handed {
						a = handOver(t, a, other)
						g.Guard = other
					}
					require.NoError(t, end(a, t.Context()))
					a = g.beginDevice(name, from, test.device) // gives back a failure just before it
					require.NoError(t, a.Succeed(t.Context()))
					for range 7 {
						a := g.beginDevice(name, from, test.device)
						d := throttler.Decision{Status: a.Decision.Status, RetryAfter: a.Decision.RetryAfter, Outcomes: a.Decision.Outcomes}
						left = append(left, d)
						require.NoError(t, a.Fail(t.Context()))
					}
				})
				return left, events[:1]
			}
			left, events := after(false)
			leftByOther, eventsOfOther := after(true)
			require.Equal(t, left, leftByOther, "%s, %s", what, how)
			require.Equal(t, events, eventsOfOther, "%s, %s", what, how)
		}
	}
}

func TestBytesThatAreNoAttemptAreRefused(t *testing.T) {
	g := on(t, memstore.New())
	for _, text := range []string{"", "{", "null", "{}", `{"addr":"x"}`, `{"addr":""}`, `{"addr":"203.0.113.7","receipt":"AAAA"}`, `{"addr":"203.0.113.7","receipt":"!"}`} {
		a, err := g.TakeOver([]byte(text))
		require.ErrorContains(t, err, "not a handed-over attempt", "%s", text)
		require.Nil(t, a)
	}
}

// Logins whose ends are in another process, or in this one.
func TestAttemptsThatAreHandedOverRingTheAlarmOnlyIfTheyFail(t *testing.T) {
	for what, test := range map[string]struct {
		here  bool // this process ends them
		end   func(*login.Attempt, context.Context) error
		siege bool
	}{
		"right, here":      {true, (*login.Attempt).Succeed, false},
		"right, elsewhere": {false, (*login.Attempt).Succeed, false},
		"wrong, here":      {true, (*login.Attempt).Fail, true},
		"wrong, elsewhere": {false, (*login.Attempt).Fail, true},
		"challenged":       {false, (*login.Attempt).Challenge, true},
		"canceled":         {false, (*login.Attempt).Cancel, false},
		"never ended":      {false, func(*login.Attempt, context.Context) error { return nil }, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, asked := &wire{Client: memstore.New()}, 0
				store.meets(func(operation, keys string) error {
					if operation == "get" && strings.Contains(keys, "-handover#") {
						asked++
					}
					return nil
				})
				w, other := watchOn(t, store), watchOn(t, store)
				to := other.Guard
				if test.here {
					to = w.Guard
				}
				for i := range 400 {
					time.Sleep(5 * time.Second)
					a := handOver(t, w.begin(fmt.Sprint("user", i), spread(i)), to)
					require.NoError(t, test.end(a, t.Context()))
				}
				for range 3 { // what lapses
					w.look()
					time.Sleep(10 * time.Second)
				}
				if test.here {
					require.Equal(t, 400, asked, "once, to end it: it does not lapse")
				}
				require.Equal(t, test.siege, w.look().Siege)
				require.Equal(t, what == "wrong, elsewhere" || what == "challenged", len(other.rung) > 0)
				if test.siege {
					require.LessOrEqual(t, w.rung[0].Failures, 400, "none is counted twice")
				}
			})
		})
	}
}

// A process takes over attempts, all from networks that have failed their share.
func TestManyNetworksBeyondTheirShareAreWatchedBesideAllTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		g, other := on(t, store), on(t, store)
		g.Limits = limits{"siege": {Max: 20}}
		other.Limits = limits{"siege": {Max: 20}} // a share is one failure
		for i := range 1100 {
			g.fails(1, fmt.Sprint("user", i), spread(i))
			a := handOver(t, g.begin(fmt.Sprint("victim", i), spread(i)), other.Guard)
			require.NoError(t, a.Fail(t.Context()))
		}
		other.begin("alice", home)
	})
}

func TestHandedOverBytesAreSealedWithTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		guard := func(key string, olds ...string) try { return keyed(t, store, key, olds...) }
		text := func(g try) []byte {
			text, err := g.begin("alice", home).HandOver()
			require.NoError(t, err)
			return text
		}
		sealed, plain := text(guard("secret")), text(guard(""))
		empty, err := seal.New(nil, "login handover")
		require.NoError(t, err)
		require.Contains(t, string(plain), home.String())
		require.NotContains(t, string(sealed), home.String())
		for what, test := range map[string]struct {
			to   try
			text []byte
			good bool
		}{
			"the same key":    {guard("secret"), sealed, true},
			"a former key":    {guard("new", "older", "secret"), sealed, true},
			"another key":     {guard("new"), sealed, false},
			"without a key":   {guard(""), sealed, false},
			"not sealed":      {guard("secret"), plain, false},
			"cut off":         {guard("secret"), sealed[:len(sealed)-1], false},
			"without any key": {guard(""), plain, true},
			"the first key":   {guard("first", ""), plain, false},
			"an empty key":    {guard("first", ""), empty.Seal(nil, nil, plain, nil), false},
			"no key any more": {guard("", "", "secret"), sealed, true},
		} {
			_, err := test.to.TakeOver(test.text)
			require.Equal(t, test.good, err == nil, what)
			if !test.good {
				require.ErrorContains(t, err, "not a handed-over attempt", what)
			}
		}
		sealed[20] ^= 1
		_, err = guard("secret").TakeOver(sealed)
		require.ErrorContains(t, err, "not a handed-over attempt", "edited")
	})
}

// sealedAttempt is an attempt of alice from home, at the first time of synctest, that an earlier
// version sealed with the key "secret".
const sealedAttempt = "6jxiBaS3cD03xQ7qvA8UuioPFCtZ+NBGEPUknHHVLRdWc22s2CZ9x44exT12iuCX8TipNhquSxrz" +
	"dnTXPeszr1B37Lnmp3To3xV+DiNm2YqdtN9xxRMHHYCKLYoNi97czv5MzHG71ZpBI/c="

func TestAnAttemptThatAnEarlierVersionSealedIsTakenOver(t *testing.T) {
	sealed, err := base64.StdEncoding.DecodeString(sealedAttempt)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		g := keyed(t, memstore.New(), "secret")
		observed := g.events()
		a, err := g.TakeOver(sealed)
		require.NoError(t, err)
		require.NoError(t, a.Fail(t.Context()))
		events := observed()
		require.Len(t, events, 1)
		require.Equal(t, "alice", events[0].Name)
		require.Equal(t, home, events[0].Addr)
	})
}

func TestHandedOverBytesHoldForTenMinutesAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		g, ctx := on(t, store), t.Context()
		g.Limits = limits{"name": {TTL: 1000 * time.Hour}}
		text, err := g.begin("alice", home).HandOver()
		require.NoError(t, err)
		g.fails(4, "alice", away)
		used := func() int {
			d, err := g.Peek(ctx, "alice", netip.Addr{})
			require.NoError(t, err)
			return 24 - 1 - d.Outcomes[0].Remaining
		}
		require.Equal(t, 5, used())
		for i := range 5 {
			a, err := login.New(throttler.New(store)).TakeOver(text)
			require.NoError(t, err)
			end := []func(context.Context) error{a.Cancel, a.Succeed, a.Challenge, a.Cancel, a.Fail}[i]
			switch err := end(ctx); i {
			case 0, 4:
				require.NoError(t, err)
			default:
				require.ErrorIs(t, err, login.ErrSettled)
			}
			require.Equal(t, 4, used(), "taken back once")
		}
		text, err = g.begin("bob", home).HandOver()
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		_, err = g.TakeOver(text)
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = g.TakeOver(text)
		require.ErrorContains(t, err, "not a handed-over attempt")
		require.ErrorContains(t, err, "10m1s")
	})
}

// keyed returns a guard over client with a key, and those before it.
func keyed(t *testing.T, client throttler.Client, key string, olds ...string) try {
	g := on(t, client)
	g.Keys = [][]byte{[]byte(key)}
	for _, old := range olds {
		g.Keys = append(g.Keys, []byte(old))
	}
	return g
}
