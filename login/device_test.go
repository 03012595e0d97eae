package login_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// replaces logs in to name with the device old, and gets next.
func (g try) replaces(name, old, next string) {
	g.t.Helper()
	a := g.beginDevice(name, home, old)
	require.Equal(g.t, throttler.Authorized, a.Decision.Status)
	require.NoError(g.t, a.SucceedDevice(g.t.Context(), next))
}

// knows reports whether name, which is under attack, is known from device.
func (g try) knows(name, device string) bool {
	g.t.Helper()
	a := g.beginDevice(name, away, device)
	require.NoError(g.t, a.Cancel(g.t.Context()))
	return a.Decision.Status == throttler.Authorized
}

func TestReplacedDeviceHoldsForHalfAMinute(t *testing.T) {
	for _, name := range []string{"alice", "Alice"} {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.replaces(name, "", "first")
			g.fill(name)
			require.True(t, g.knows(name, "first"))
			g.replaces(name, "first", "second")
			time.Sleep(30*time.Second - time.Millisecond)
			require.True(t, g.knows(name, "first"), "requests under way")
			require.True(t, g.knows(name, "second"))
			time.Sleep(2 * time.Millisecond)
			require.False(t, g.knows(name, "first"))
			require.True(t, g.knows(name, "second"))
		})
	}
}

// Two clicks on "Sign in": both come with the device that the first one replaces.
func TestReplacedDeviceIsNotKeptByItsUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.fill("alice")
		g.replaces("alice", "first", "second")
		time.Sleep(20 * time.Second)
		g.replaces("alice", "first", "third")
		for _, device := range []string{"first", "second", "third"} {
			require.True(t, g.knows("alice", device), device)
		}
		time.Sleep(11 * time.Second)
		require.False(t, g.knows("alice", "first"))
		require.True(t, g.knows("alice", "second"))
		require.True(t, g.knows("alice", "third"))
	})
}

// An attacker who has copied the cookie of a shared computer, and logs in to an
// account of their own, does not make other users strangers.
func TestSuccessReplacesTheDeviceForItsNameAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		for _, name := range []string{"alice", "Bob", "jose"} {
			require.NoError(t, g.beginDevice(name, home, "shared").Succeed(t.Context()))
		}
		for _, name := range []string{"mallory", "alice", "bob", "josé"} {
			g.replaces(name, "shared", "new of "+name)
		}
		time.Sleep(time.Hour)
		for _, name := range []string{"alice", "Bob", "jose"} {
			g.fill(name)
		}
		require.False(t, g.knows("alice", "shared"))
		require.True(t, g.knows("alice", "new of alice"))
		require.True(t, g.knows("Bob", "shared"), "another spelling has logged in")
		require.True(t, g.knows("jose", "shared"), "another spelling has logged in")
	})
}

// The reader's guesses are those of a stranger from the next success on, and the
// owner is not kept out by them.
func TestOldDeviceCanNeitherGuessNorLockOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "read by mallory")
		g.replaces("alice", "read by mallory", "new")
		time.Sleep(time.Minute)
		g.fill("alice")
		for range 20 {
			require.Equal(t, throttler.Blocked, g.beginDevice("alice", away, "read by mallory").Decision.Status)
		}
		require.True(t, g.knows("alice", "new"))
	})
}

func TestDeviceIsGivenUpForNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.replaces("alice", "first", "")
		time.Sleep(time.Minute)
		g.fill("alice")
		require.False(t, g.knows("alice", "first"))
		require.Equal(t, throttler.Authorized, g.begin("alice", home).Decision.Status, "known by the address")
	})
}

func TestDeviceOfAStrangerIsNotKnownForBeingReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "of the browser", "first")
		g.fill("alice")
		require.False(t, g.knows("alice", "of the browser"))
		require.True(t, g.knows("alice", "first"))
	})
}

func TestSameDeviceStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "first", "first")
		time.Sleep(time.Minute)
		g.fill("alice")
		require.True(t, g.knows("alice", "first"))
	})
}

func TestForgottenDeviceDoesNotHoldForRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.replaces("alice", "first", "second")
		g.fill("alice")
		require.NoError(t, g.Forget(t.Context(), "alice", "first"))
		require.NoError(t, g.Forget(t.Context(), "alice", "second"))
		require.False(t, g.knows("alice", "first"))
		require.False(t, g.knows("alice", "second"))
	})
}

func TestNobodyIsKnownByAReplacedDeviceEither(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.KnownFor = -1
		g.replaces("alice", "first", "second")
		g.fill("alice")
		require.False(t, g.knows("alice", "first"))
		require.False(t, g.knows("alice", "second"))
	})
}

// forgetful fails to add the next record while it is down.
type forgetful struct {
	throttler.Client
	down bool
}

func (c *forgetful) Add(item *memcache.Item) error {
	if c.down {
		c.down = false
		return errors.New("down")
	}
	return c.Client.Add(item)
}

// A browser may not have got the new cookie: until it is known the old one holds.
func TestOldDeviceStaysIfTheNewOneIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{Client: memstore.New()}
		g := on(t, store)
		g.replaces("alice", "", "first")
		a := g.beginDevice("alice", home, "first")
		store.down = true
		require.ErrorContains(t, a.SucceedDevice(t.Context(), "second"), "down")
		time.Sleep(time.Minute)
		g.fill("alice")
		require.True(t, g.knows("alice", "first"))
		require.NoError(t, a.SucceedDevice(t.Context(), "second"), "again")
		time.Sleep(time.Minute)
		require.False(t, g.knows("alice", "first"))
		require.True(t, g.knows("alice", "second"))
	})
}

func TestReplacedDeviceMakesNoAddressKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.replaces("alice", "first", "second")
		g.fill("alice")
		for i := range 10 {
			a := g.beginDevice("alice", away, "first")
			require.Equal(t, i < 5, a.Decision.Status == throttler.Authorized, "guess %d", i)
			require.NoError(t, a.Fail(t.Context()))
		}
	})
}
