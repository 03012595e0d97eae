package tally_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	logins "github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
)

// One guess at each of many names from as many addresses, beside honest logins.
func TestStuffingIsSeen(t *testing.T) {
	counts := tally.New()
	require.Nil(t, snapshotOf(counts).Logins)
	guard := logins.New(throttler.New(memstore.New()))
	guard.Observe = counts.ObserveLogin
	attempt := func(name, addr string) *logins.Attempt {
		a, err := guard.Begin(t.Context(), name, netip.MustParseAddr(addr))
		require.NoError(t, err)
		return a
	}
	for i := range 300 {
		require.NoError(t, attempt(fmt.Sprint("name", i), fmt.Sprintf("10.%d.%d.7", i/100, i%100)).Fail(t.Context()))
	}
	for range 100 {
		require.NoError(t, attempt("alice", "192.0.2.1").Succeed(t.Context()))
	}
	require.NoError(t, attempt("bob", "192.0.2.1").Cancel(t.Context()))
	for range 4 {
		require.NoError(t, attempt("carol", "2001:db8:1:2::3").Fail(t.Context()))
	}
	for range 2 {
		require.NoError(t, attempt("<b>dave", "2001:db8:1:ff::4").Fail(t.Context()))
	}
	require.NoError(t, attempt("carol", "2001:db8:1:2::3").Fail(t.Context()))
	attempt("carol", "2001:db8:1:2::3")

	l := snapshotOf(counts).Logins
	require.Equal(t, []uint64{409, 100, 307, 1, 1, 0, 0},
		[]uint64{l.Attempts, l.Succeeded, l.Failed, l.Refused, l.Canceled, l.WouldBlock, l.Known})
	require.InDelta(t, 307.0/407, l.FailedShare, 1e-9)
	require.Equal(t, []ValueCount{{Value: "carol", Count: 5}, {Value: "<b>dave", Count: 2}}, l.Names[:2])
	require.Equal(t, ValueCount{Value: "2001:db8:1:2::/64", Count: 5}, l.Addresses[0])
	require.Equal(t, ValueCount{Value: "2001:db8:1::/48", Count: 7}, l.Networks[0])
	require.Contains(t, l.Networks, ValueCount{Value: "10.0.17.0/24", Count: 1})

	w := httptest.NewRecorder()
	counts.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	for _, want := range []string{"409 attempts. Of the passwords that were looked at, 75.4 % were wrong.", "<td>307</td>", "2001:db8:1::/48", "&lt;b&gt;dave", "Most failed: addresses"} {
		require.Contains(t, w.Body.String(), want)
	}
	w = httptest.NewRecorder()
	counts.ServeHTTP(w, httptest.NewRequest("GET", "/?format=json", nil))
	var page struct{ Logins LoginCounts }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
	require.Equal(t, *l, page.Logins)
}

func TestLoginsAreHashedOrNotKeptAsValuesAre(t *testing.T) {
	event := logins.Event{Name: "alice", Addr: netip.MustParseAddr("192.0.2.1"), Result: logins.Failed}
	hashed := tally.New()
	hashed.HashKey = []byte("key")
	hashed.ObserveLogin(t.Context(), event)
	require.Len(t, snapshotOf(hashed).Logins.Names[0].Value, 32)
	none := tally.New()
	none.MaxValues = -1
	none.ObserveLogin(t.Context(), event)
	none.ObserveLogin(t.Context(), logins.Event{Result: 9})
	require.Equal(t, uint64(1), snapshotOf(none).Logins.Attempts)
	require.Empty(t, snapshotOf(none).Logins.Names)

	few := tally.New()
	few.MaxValues = 10
	for i := range 1000 {
		few.ObserveLogin(t.Context(), logins.Event{Name: fmt.Sprint(i), Result: logins.Failed})
	}
	require.Len(t, snapshotOf(few).Logins.Names, 10)
}

// The owner of a name under attack, and then a stranger, try it on a trial run and
// in earnest: what an attempt comes to is not what its decisions come to.
func TestLoginOfOneWhoIsKnownCountsOnceAndAsNoBlock(t *testing.T) {
	for _, shadow := range []bool{true, false} {
		limits, counts := observed(memstore.New())
		guard := logins.New(limits)
		home, away := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
		begin := func(addr netip.Addr) *logins.Attempt {
			a, err := guard.Begin(t.Context(), "alice", addr)
			require.NoError(t, err)
			return a
		}
		require.NoError(t, begin(home).Succeed(t.Context()))
		for i := range 24 {
			require.NoError(t, begin(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})).Fail(t.Context()))
		}
		guard.Shadow, guard.Observe = shadow, counts.ObserveLogin
		counts.Reset()
		for range 3 {
			require.NoError(t, begin(home).Succeed(t.Context()))
		}
		l := snapshotOf(counts).Logins
		require.Equal(t, []uint64{3, 3, 3, 0, 0}, []uint64{l.Attempts, l.Succeeded, l.Known, l.Refused, l.WouldBlock})
		page := strings.Join(text(parse(t, get(counts, "/", "")), "p"), "\n")
		require.Contains(t, page, "What follows are decisions, not attempts.")

		begin(away).Fail(t.Context())
		l = snapshotOf(counts).Logins
		require.EqualValues(t, 4, l.Attempts)
		require.Equal(t, shadow, l.WouldBlock == 1 && l.Failed == 1)
		require.Equal(t, !shadow, l.WouldBlock == 0 && l.Refused == 1)
	}
}

func failed(name, addr string) logins.Event {
	e := logins.Event{Name: name, Result: logins.Failed}
	if addr != "" {
		e.Addr = netip.MustParseAddr(addr)
	}
	e.Decision.Status = throttler.Authorized
	return e
}

func TestAddressesAndNetworksAreCountedByTheirPrefix(t *testing.T) {
	for addr, want := range map[string][2]string{
		"203.0.113.7":          {"203.0.113.7", "203.0.113.0/24"},
		"::ffff:203.0.113.7":   {"203.0.113.7", "203.0.113.0/24"},
		"64:ff9b::203.0.113.7": {"203.0.113.7", "203.0.113.0/24"},
		"2001:db8:1:2:3:4:5:6": {"2001:db8:1:2::/64", "2001:db8:1::/48"},
		"fe80::1%eth0":         {"fe80::/64", "fe80::/48"},
		"":                     {"", ""},
	} {
		counts := tally.New()
		counts.ObserveLogin(t.Context(), failed("alice", addr))
		l := snapshotOf(counts).Logins
		require.Equal(t, []ValueCount{{Value: want[0], Count: 1}}, l.Addresses)
		require.Equal(t, []ValueCount{{Value: want[1], Count: 1}}, l.Networks)
	}
}

func TestFailuresThatAreNotListedAreBounded(t *testing.T) {
	counts := tally.New()
	counts.MaxValues = 30
	for i := range 29 {
		counts.ObserveLogin(t.Context(), failed(fmt.Sprint("name", i), fmt.Sprintf("10.%d.0.1", i)))
	}
	require.Zero(t, snapshotOf(counts).Logins.Unlisted, "all are listed")
	for i := range 30 {
		counts.ObserveLogin(t.Context(), failed("alice", fmt.Sprintf("192.0.2.%d", i)))
	}
	l := snapshotOf(counts).Logins
	require.Equal(t, ValueCount{Value: "alice", Count: 30}, l.Names[0])
	require.EqualValues(t, 1, l.Unlisted, "addresses had to make room, each for another")
	require.LessOrEqual(t, l.Unlisted, l.Failed/30)
	captions := text(parse(t, get(counts, "/", "")), "caption")
	require.Contains(t, captions, "The first 25 of 30 that are kept. Any other failed 1 times at most.")

	counts.Reset()
	require.Nil(t, snapshotOf(counts).Logins)
	counts.MaxValues = -1
	counts.ObserveLogin(t.Context(), failed("alice", "192.0.2.1"))
	require.EqualValues(t, 1, snapshotOf(counts).Logins.Unlisted)
}

func TestFailuresOfTheBackendAreShownWithTheLogins(t *testing.T) {
	counts := tally.New()
	e := failed("alice", "192.0.2.1")
	counts.ObserveLogin(t.Context(), e)
	e.Decision.Err, e.Result = errBroken, logins.Succeeded
	counts.ObserveLogin(t.Context(), e)
	require.EqualValues(t, 1, snapshotOf(counts).Logins.Errors)
	w := get(counts, "/", "")
	require.NotContains(t, w.Body.String(), "192.0.2.99", "the text of an error")
	require.Contains(t, text(parse(t, w), "p"), "The backend failed over 1 attempts (50.0 %).")
}

func TestThePageOfLoginsIsAccessibleAndSafe(t *testing.T) {
	counts := tally.New()
	for _, name := range hostile {
		counts.ObserveLogin(t.Context(), failed(name, "192.0.2.1"))
	}
	page := parse(t, get(counts, "/", ""))
	require.Len(t, text(page, "caption"), len(text(page, "table")))
	require.NotContains(t, text(page, "p"), "No call has been decided yet.")
	require.Contains(t, text(page, "bdi"), "<script>alert(1)</script>")
	require.Contains(t, text(page, "em"), "empty")
	require.Equal(t, []string{"?format=json", "?refresh=off"}, links(page))
	for _, shown := range text(page, "bdi") {
		require.NotContains(t, shown, "\u202e")
	}
	require.Empty(t, text(page, "script"))
}

func TestLoginsMayBeObservedAtOnce(t *testing.T) {
	counts := tally.New()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 500 {
				e := failed(fmt.Sprint("name", i%20), fmt.Sprintf("10.0.%d.1", w))
				e.Result = logins.Result(i % 4)
				counts.ObserveLogin(t.Context(), e)
				snapshotOf(counts)
			}
		})
	}
	all.Wait()
	l := snapshotOf(counts).Logins
	require.Equal(t, []uint64{2000, 500, 500, 500, 500}, []uint64{l.Attempts, l.Refused, l.Succeeded, l.Failed, l.Canceled})
	for _, list := range [][]ValueCount{l.Names, l.Addresses, l.Networks} {
		var sum uint64
		for _, v := range list {
			sum += v.Count
		}
		require.EqualValues(t, 500, sum)
	}
}
