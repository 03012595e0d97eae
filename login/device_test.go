package login_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// replaces logs in to name with the device old, and gets next.
func (g try) replaces(name, old, next string) {
	g.t.Helper()
	a := g.beginDevice(name, home, old)
	require.Equal(g.t, throttler.Authorized, a.Decision.Status)
	require.NoError(g.t, a.Succeed(login.WithDevice(g.t.Context(), next)))
}

func TestReplacedDevices(t *testing.T) {
	playOnEachBackend(t, []scene{
		{"the device before is known while requests are under way, a stranger's is not", nil, `
			alice/0 in as 1; alice full; alice@away/0 refused; alice@away/1 passes; alice@away/0 refused
			alice/1 in as 2; alice full; alice@away/1 passes; alice@away/2 passes; alice@away/1 passes
			alice/2 in as 3; alice full; alice@away/2 passes; alice@away/3 passes; alice@away/2 passes
			alice@away/another refused`},
	})
	scenes := []scene{
		{"an answer is lost with its cookie, again and again", nil, "alice in as first" + strings.Repeat(`
			alice/first in as lost; wait 336h; alice full; alice@away/first passes`, 100) + `
			alice/first in as arrived; alice@away/arrived passes; wait 31s
			alice@away/first refused; alice@away/arrived passes`},
		{"one that nobody uses is forgotten in its time", nil, `
			alice in as first; alice/first in as second; wait 721h; alice full
			alice@away/first refused; alice@away/second refused; alice@away/first refused`},
		{"one that leaves is not kept by its use: two clicks", nil, `
			alice in as first; alice full; alice/first in as second; alice@away/second passes; wait 20s
			alice/first in as third; alice@away/first passes; alice@away/second passes; alice@away/third passes; wait 11s
			alice@away/first refused; alice@away/second passes; alice@away/third passes`},
		{"a success replaces it for its name and spelling alone", nil, `
			alice/shared in; Bob/shared in; jose/shared in
			mallory/shared in as m; mallory/m confirmed; alice/shared in as a; alice/a confirmed
			bob/shared in as b; bob/b confirmed; josé/shared in as j; josé/j confirmed
			wait 1h; alice full; Bob full; jose full
			alice@away/shared refused; alice@away/a passes; Bob@away/shared passes; jose@away/shared passes`},
		{"the old one can neither guess nor lock out", nil, `
			alice in as old; alice/old in as new; alice/new confirmed; wait 1m; alice full
			alice@away/old fails 0/20; alice@away/new passes`},
		{"it is given up for none at once, but for requests under way", nil, `
			alice in as first; alice/first in as -; alice full; alice@away/first passes; wait 1m; alice full
			alice@away/first refused; alice passes`},
		{"a stranger's is not known for being replaced", nil, `
			alice/browser in as first; alice full; alice@away/browser refused; alice@away/first passes`},
		{"the same stays", nil, "alice/first in as first; wait 1m; alice full; alice@away/first passes"},
		{"a forgotten one does not hold for requests under way", nil, `
			alice in as first; alice/first in as second; alice full; alice/first forgotten; alice/second forgotten
			alice@away/first refused; alice@away/second refused`},
		{"forgetting the new one, before it was used, forgets the one before", nil, `
			alice in as first; alice/first in as second; alice/second forgotten; wait 31s; alice full
			alice@away/first refused; alice@away/second refused`},
		{"nobody is known by one either", func(g *login.Guard) { g.KnownFor = -1 }, `
			alice/first in as second; alice full; alice@away/first refused; alice@away/second refused`},
		{"it makes no address known", nil, `
			alice in as first; alice/first in as second; alice/second confirmed; alice full; alice@away/first fails 5/10`},
	}
	for _, c := range []struct{ what, replaced, then string }{
		{"the key was changed before the success", "keys new old; alice/first in as second", ""},
		{"after it", "alice/first in as second", "keys new old"},
		{"never", "alice/first in as second", ""},
		{"while the attempt was pending, which was handed over", "alice/first begins 1; keys new old; pending handOver; pending succeed as second", ""},
		{"before it began, and another process ended it", "keys new old; alice/first begins 1; pending handOver; pending handOver; pending succeed as second", ""},
	} {
		scenes = append(scenes, scene{c.what, nil, "keys old new; alice in as first; " + c.replaced + "; " + c.then + `; wait 1h
			alice full; alice@away/first passes; alice@away/second passes; wait 31s
			alice@away/first refused; alice@away/second passes; alice/second forgotten; alice@away/second refused`})
	}
	for _, use := range []string{"name@away/second passes", "name/second confirmed"} {
		for _, name := range []string{"alice", "Alice"} {
			scenes = append(scenes, scene{"it holds for half a minute once the new one is used", nil, strings.ReplaceAll(`
				name in as first; name full; name@away/first passes; name/first in as second; wait 1h; name full
				name@away/first passes; `+use+`; wait 29999ms
				name@away/first passes; name@away/second passes; wait 2ms
				name@away/first refused; name@away/second passes`, "name", name)})
		}
	}
	play(t, scenes)
}

// knows reports whether name, which is under attack, is known from device.
func (g try) knows(name, device string) bool {
	g.t.Helper()
	a := g.beginDevice(name, away, device)
	require.NoError(g.t, a.Cancel(g.t.Context()))
	return a.Decision.Status == throttler.Authorized
}

// 16 clicks on "Sign in" come with the same device. The browser keeps any of the
// 16 new ones, and it is known; the old one is not.
func TestRapidSubmissionsLeaveAKnownDevice(t *testing.T) {
	const clicks = 16
	for last := range clicks {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.Limits = limits{"name+address": {Max: clicks}} // they are all under way at once
			g.replaces("alice", "", "old")
			var all sync.WaitGroup
			for i := range clicks {
				all.Go(func() { g.replaces("alice", "old", fmt.Sprint("new ", i)) })
			}
			all.Wait()
			time.Sleep(time.Hour)
			g.fill("alice")
			require.True(t, g.knows("alice", "old"), "no answer may have arrived")
			require.True(t, g.knows("alice", fmt.Sprint("new ", last)))
			time.Sleep(time.Minute)
			require.True(t, g.knows("alice", fmt.Sprint("new ", last)))
			require.False(t, g.knows("alice", "old"))
		})
	}
}

func TestConfirmedDeviceNeedsALegalName(t *testing.T) {
	g := on(t, memstore.New())
	require.ErrorIs(t, g.ConfirmDevice(t.Context(), strings.Repeat("x", login.MaxName+1), "phone"), login.ErrNameTooLong)
	require.NoError(t, g.ConfirmDevice(t.Context(), "alice", ""))
	require.NoError(t, g.ConfirmDevice(t.Context(), "", "phone"))
}

// Whichever record of a success is lost: until the new device is known the old one
// holds, and a second try mends it.
func TestOldDeviceStaysIfTheNewOneIsNotKnown(t *testing.T) {
	for lost := range 5 {
		synctest.Test(t, func(t *testing.T) {
			store := &wire{Client: memstore.New()}
			g := on(t, store)
			g.replaces("alice", "", "first")
			a := g.beginDevice("alice", home, "first")
			var added atomic.Int64
			store.meets(func(operation, _ string) error {
				if operation == "add" && added.Add(1) == int64(lost+1) {
					return errDown
				}
				return nil
			})
			require.ErrorContains(t, a.Succeed(login.WithDevice(t.Context(), "second")), "down")
			time.Sleep(time.Minute)
			g.fill("alice")
			require.True(t, g.knows("alice", "first"))
			require.NoError(t, a.Succeed(login.WithDevice(t.Context(), "second")), "again")
			require.True(t, g.knows("alice", "second"))
			time.Sleep(time.Minute)
			require.False(t, g.knows("alice", "first"), "record %d", lost)
			require.True(t, g.knows("alice", "second"))
		})
	}
}

// A second try replaces the same device as the first one, which had stored a part,
// whatever the number of that device.
func TestSecondTryReplacesTheSameDevice(t *testing.T) {
	for _, first := range []string{"first 0", "first 33"} { // whose number does not fit twice, and does
		synctest.Test(t, func(t *testing.T) {
			store := &wire{Client: memstore.New()}
			g := on(t, store)
			g.replaces("alice", "", first)
			a := g.beginDevice("alice", home, first)
			store.meets(func(operation, key string) error {
				if operation == "add" && strings.Contains(key, "-replaced") {
					return errDown
				}
				return nil
			})
			require.ErrorContains(t, a.Succeed(login.WithDevice(t.Context(), "second")), "down")
			store.works()
			require.NoError(t, a.Succeed(login.WithDevice(t.Context(), "second")), "again")
			require.NoError(t, g.ConfirmDevice(t.Context(), "alice", "second"))
			time.Sleep(31 * time.Second)
			g.fill("alice")
			require.False(t, g.knows("alice", first), first)
			require.True(t, g.knows("alice", "second"))
		})
	}
}

// A link that others keep in motion is not there, so Succeed must be called again.
func TestALinkThatOthersChangeIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &wire{Client: memstore.New()}
		g, others := on(t, store), on(t, store.Client)
		g.replaces("alice", "", "first")
		a := g.beginDevice("alice", home, "first")
		store.meets(func(operation, keys string) error {
			if operation == "get" && strings.Contains(keys, "-replaces-") {
				return others.beginDevice("alice", home, "first").Succeed(login.WithDevice(t.Context(), "second"))
			}
			return nil
		})
		require.ErrorContains(t, a.Succeed(login.WithDevice(t.Context(), "second")), "meanwhile")
		store.works()
		require.NoError(t, a.Succeed(login.WithDevice(t.Context(), "second")), "again")
		require.NoError(t, g.ConfirmDevice(t.Context(), "alice", "second"))
		time.Sleep(31 * time.Second)
		g.fill("alice")
		require.False(t, g.knows("alice", "first"))
		require.True(t, g.knows("alice", "second"))
	})
}
