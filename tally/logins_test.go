package tally_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
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
	require.Nil(t, counts.Snapshot().Logins)
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

	l := counts.Snapshot().Logins
	require.Equal(t, []uint64{409, 100, 307, 1, 1, 0, 0},
		[]uint64{l.Attempts, l.Succeeded, l.Failed, l.Refused, l.Canceled, l.WouldBlock, l.Known})
	require.InDelta(t, 307.0/407, l.FailedShare, 1e-9)
	require.Equal(t, []tally.ValueCount{{Value: "carol", Count: 5}, {Value: "<b>dave", Count: 2}}, l.Names[:2])
	require.Equal(t, tally.ValueCount{Value: "2001:db8:1:2::3", Count: 5}, l.Addresses[0])
	require.Equal(t, tally.ValueCount{Value: "2001:db8:1::/48", Count: 7}, l.Networks[0])
	require.Contains(t, l.Networks, tally.ValueCount{Value: "10.0.17.0/24", Count: 1})

	w := httptest.NewRecorder()
	counts.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	for _, want := range []string{"75.4 %", "<td>307</td>", "2001:db8:1::/48", "&lt;b&gt;dave", "Most failed: addresses"} {
		require.Contains(t, w.Body.String(), want)
	}
	w = httptest.NewRecorder()
	counts.ServeHTTP(w, httptest.NewRequest("GET", "/?format=json", nil))
	var page struct{ Logins tally.LoginCounts }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
	require.Equal(t, *l, page.Logins)
}

func TestLoginsAreHashedOrNotKeptAsValuesAre(t *testing.T) {
	event := logins.Event{Name: "alice", Addr: netip.MustParseAddr("192.0.2.1"), Result: logins.Failed}
	hashed := tally.New()
	hashed.HashKey = []byte("key")
	hashed.ObserveLogin(t.Context(), event)
	require.Len(t, hashed.Snapshot().Logins.Names[0].Value, 32)
	none := tally.New()
	none.MaxValues = -1
	none.ObserveLogin(t.Context(), event)
	none.ObserveLogin(t.Context(), logins.Event{Result: 9})
	require.Equal(t, uint64(1), none.Snapshot().Logins.Attempts)
	require.Empty(t, none.Snapshot().Logins.Names)

	few := tally.New()
	few.MaxValues = 10
	for i := range 1000 {
		few.ObserveLogin(t.Context(), logins.Event{Name: fmt.Sprint(i), Result: logins.Failed})
	}
	require.Len(t, few.Snapshot().Logins.Names, 10)
}
