package login_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
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

// knows reports whether name, which is under attack, is known from device.
func (g try) knows(name, device string) bool {
	g.t.Helper()
	a := g.beginDevice(name, away, device)
	require.NoError(g.t, a.Cancel(g.t.Context()))
	return a.Decision.Status == throttler.Authorized
}

func TestReplacedDeviceHoldsForHalfAMinuteOnceTheNewOneIsUsed(t *testing.T) {
	for _, name := range []string{"alice", "Alice"} {
		for _, use := range []string{"begin", "confirm"} {
			synctest.Test(t, func(t *testing.T) {
				g := on(t, memstore.New())
				g.replaces(name, "", "first")
				g.fill(name)
				require.True(t, g.knows(name, "first"))
				g.replaces(name, "first", "second")
				time.Sleep(time.Hour)
				g.fill(name)
				require.True(t, g.knows(name, "first"), "the answer with the second may be lost")
				if use == "begin" {
					require.True(t, g.knows(name, "second"))
				} else {
					require.NoError(t, g.ConfirmDevice(t.Context(), name, "second"))
				}
				time.Sleep(30*time.Second - time.Millisecond)
				require.True(t, g.knows(name, "first"), "requests under way")
				require.True(t, g.knows(name, "second"))
				time.Sleep(2 * time.Millisecond)
				require.False(t, g.knows(name, "first"))
				require.True(t, g.knows(name, "second"))
			})
		}
	}
}

// An answer is lost with its cookie, again and again: the owner does not become a
// stranger, and who has the first cookie does as soon as an answer has arrived.
func TestALostAnswerMakesNoStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		g, other := on(t, store), on(t, store) // two processes
		g.replaces("alice", "", "first")
		for i := range 100 {
			g.replaces("alice", "first", fmt.Sprint("lost ", i))
			time.Sleep(14 * 24 * time.Hour)
			g.fill("alice")
			require.True(t, other.knows("alice", "first"), "%d", i)
		}
		g.replaces("alice", "first", "arrived")
		require.True(t, other.knows("alice", "arrived"))
		time.Sleep(31 * time.Second)
		require.False(t, g.knows("alice", "first"))
		require.False(t, other.knows("alice", "first"))
		require.True(t, g.knows("alice", "arrived"))
	})
}

func TestReplacedDeviceIsKnownOnEachBackend(t *testing.T) {
	eachBackend(t, func(t *testing.T, client throttler.Client) {
		g := on(t, client)
		for i := range 3 {
			old, next := fmt.Sprint("device ", i), fmt.Sprint("device ", i+1)
			g.replaces("alice", old, next)
			g.fill("alice")
			require.Equal(t, i > 0, g.knows("alice", old), "a stranger's, then one whose successor is not used")
			require.True(t, g.knows("alice", next))
			require.Equal(t, i > 0, g.knows("alice", old), "requests under way")
		}
		require.False(t, g.knows("alice", "another"))
	})
}

// A device of which nobody has heard since is forgotten as any other.
func TestAReplacedDeviceIsForgottenInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.replaces("alice", "first", "second")
		time.Sleep(30*24*time.Hour + time.Minute)
		g.fill("alice")
		require.False(t, g.knows("alice", "first"))
		require.False(t, g.knows("alice", "second"))
		require.False(t, g.knows("alice", "first"), "nor is it known while it leaves")
	})
}

// 16 clicks on "Sign in" come with the same device. The browser keeps any of the
// 16 new ones, and it is known; the old one is not.
func TestRapidSubmissionsLeaveAKnownDevice(t *testing.T) {
	const clicks = 16
	for last := range clicks {
		synctest.Test(t, func(t *testing.T) {
			g := on(t, memstore.New())
			g.NameAddress.Max = clicks // they are all under way at once
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

// Two clicks on "Sign in": both come with the device that the first one replaces.
func TestReplacedDeviceIsNotKeptByItsUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.fill("alice")
		g.replaces("alice", "first", "second")
		require.True(t, g.knows("alice", "second"))
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
			require.NoError(t, g.ConfirmDevice(t.Context(), name, "new of "+name))
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
		require.NoError(t, g.ConfirmDevice(t.Context(), "alice", "new"))
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

// Forgetting the new device, before it was used, forgets the one that it has
// replaced.
func TestForgettingADeviceForgetsTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.replaces("alice", "first", "second")
		require.NoError(t, g.Forget(t.Context(), "alice", "second"))
		time.Sleep(31 * time.Second)
		g.fill("alice")
		require.False(t, g.knows("alice", "first"))
		require.False(t, g.knows("alice", "second"))
	})
}

// A device that was replaced under another key leaves, whichever key its successor
// is used under.
func TestReplacedDeviceLeavesThoughTheKeyWasChanged(t *testing.T) {
	for _, changed := range []string{"before the success", "after it", "never"} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			before, after := keyed(t, store, "old"), keyed(t, store, "new", "old")
			before.replaces("alice", "", "first")
			switch changed {
			case "before the success":
				after.replaces("alice", "first", "second")
			case "after it":
				before.replaces("alice", "first", "second")
			case "never":
				before.replaces("alice", "first", "second")
				after = before
			}
			time.Sleep(time.Hour)
			after.fill("alice")
			require.True(t, after.knows("alice", "first"))
			require.True(t, after.knows("alice", "second"))
			time.Sleep(31 * time.Second)
			require.False(t, after.knows("alice", "first"))
			require.True(t, after.knows("alice", "second"))
			require.NoError(t, after.Forget(t.Context(), "alice", "second"))
			require.False(t, after.knows("alice", "second"))
		})
	}
}

func TestConfirmedDeviceNeedsALegalName(t *testing.T) {
	g := on(t, memstore.New())
	require.ErrorIs(t, g.ConfirmDevice(t.Context(), strings.Repeat("x", login.MaxName+1), "phone"), login.ErrNameTooLong)
	require.NoError(t, g.ConfirmDevice(t.Context(), "alice", ""))
	require.NoError(t, g.ConfirmDevice(t.Context(), "", "phone"))
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

// forgetful fails to add the record that is the failing-th from now on. 0: none.
type forgetful struct {
	throttler.Client
	failing atomic.Int64
}

func (c *forgetful) Add(item *memcache.Item) error {
	if c.failing.Add(-1) == 0 {
		return errors.New("down")
	}
	return c.Client.Add(item)
}

// Whichever record of a success is lost: until the new device is known the old one
// holds, and a second try mends it.
func TestOldDeviceStaysIfTheNewOneIsNotKnown(t *testing.T) {
	for lost := range 5 {
		synctest.Test(t, func(t *testing.T) {
			store := &forgetful{Client: memstore.New()}
			g := on(t, store)
			g.replaces("alice", "", "first")
			a := g.beginDevice("alice", home, "first")
			store.failing.Store(int64(lost + 1))
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

// partial fails to add the record of a replaced device.
type partial struct {
	throttler.Client
	failing atomic.Bool
}

func (c *partial) Add(item *memcache.Item) error {
	if c.failing.Load() && strings.Contains(item.Key, "-replaced") {
		return errors.New("down")
	}
	return c.Client.Add(item)
}

// A second try replaces the same device as the first one, which had stored a part,
// whatever the number of that device.
func TestSecondTryReplacesTheSameDevice(t *testing.T) {
	for _, first := range []string{"first 0", "first 33"} { // whose number does not fit twice, and does
		synctest.Test(t, func(t *testing.T) {
			store := &partial{Client: memstore.New()}
			g := on(t, store)
			g.replaces("alice", "", first)
			a := g.beginDevice("alice", home, first)
			store.failing.Store(true)
			require.ErrorContains(t, a.Succeed(login.WithDevice(t.Context(), "second")), "down")
			store.failing.Store(false)
			require.NoError(t, a.Succeed(login.WithDevice(t.Context(), "second")), "again")
			require.NoError(t, g.ConfirmDevice(t.Context(), "alice", "second"))
			time.Sleep(31 * time.Second)
			g.fill("alice")
			require.False(t, g.knows("alice", first), first)
			require.True(t, g.knows("alice", "second"))
		})
	}
}

// meddling calls before when the record of a link is read.
type meddling struct {
	throttler.Client
	before func()
}

func (c *meddling) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	if c.before != nil && slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(key, "-replaces-") }) {
		c.before()
	}
	return c.Client.GetMulti(keys)
}

// A link that others keep in motion is not there, so Succeed must be called again.
func TestALinkThatOthersChangeIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &meddling{Client: memstore.New()}
		g, others := on(t, store), on(t, store.Client)
		g.replaces("alice", "", "first")
		a := g.beginDevice("alice", home, "first")
		store.before = func() {
			require.NoError(t, others.beginDevice("alice", home, "first").Succeed(login.WithDevice(t.Context(), "second")))
		}
		require.ErrorContains(t, a.Succeed(login.WithDevice(t.Context(), "second")), "meanwhile")
		store.before = nil
		require.NoError(t, a.Succeed(login.WithDevice(t.Context(), "second")), "again")
		require.NoError(t, g.ConfirmDevice(t.Context(), "alice", "second"))
		time.Sleep(31 * time.Second)
		g.fill("alice")
		require.False(t, g.knows("alice", "first"))
		require.True(t, g.knows("alice", "second"))
	})
}

func TestReplacedDeviceMakesNoAddressKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		g.replaces("alice", "", "first")
		g.replaces("alice", "first", "second")
		require.NoError(t, g.ConfirmDevice(t.Context(), "alice", "second"))
		g.fill("alice")
		for i := range 10 {
			a := g.beginDevice("alice", away, "first")
			require.Equal(t, i < 5, a.Decision.Status == throttler.Authorized, "guess %d", i)
			require.NoError(t, a.Fail(t.Context()))
		}
	})
}
