package login_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, distant(memstore.New()))
		take := func(want int, what string, f func()) {
			t.Helper()
			start := time.Now()
			f()
			require.LessOrEqual(t, time.Since(start), time.Duration(want)*time.Millisecond, what)
		}
		begin := func() { g.begin("alice", home) }
		take(2, "an attempt", begin)
		take(2+3, "a success, the first from there", func() { g.succeeds("alice", home) })
		take(2+3, "the second", func() { g.succeeds("alice", home) })
		take(2+3, "any further success", func() { g.succeeds("alice", home) })
		g.fails(6, "alice", home)
		take(1, "a banned attempt", begin)
		g.fill("alice")
		take(2, "one that is blocked by its name, of somebody unknown", func() { g.begin("alice", addr(1)) })
		time.Sleep(10 * time.Minute)
		g.fill("alice")
		take(4, "and of somebody known", begin)

		var a *login.Attempt
		device := func(name string) { a = g.beginDevice("bob", home, name) }
		succeed := func(next string) { require.NoError(t, a.Succeed(login.WithDevice(t.Context(), next))) }
		take(2, "an attempt with a device", func() { device("of the browser") })
		take(3, "a success that replaces it", func() { succeed("first") })
		device("first")
		take(7, "a success that replaces a known one", func() { succeed("second") })
		take(7, "the first attempt with the new one", func() { device("second") })
		take(2, "any further attempt", func() { device("second") })
	})
}
