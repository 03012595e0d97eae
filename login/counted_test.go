package login_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestCountedSaysWhatLiftForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		var nowhere netip.Addr
		counted := func(name string, addr netip.Addr) (names []string) {
			found, err := g.Counted(t.Context(), name, addr)
			require.NoError(t, err)
			for _, o := range found {
				names = append(names, o.Name)
			}
			return names
		}
		require.Empty(t, counted("alice", home))
		require.Empty(t, counted("", nowhere))

		require.Equal(t, 5, g.fails(6, "alice", home))
		require.Equal(t, []string{"name+address", "address", "address-day", "name"}, counted(" ALICE", home))
		require.Equal(t, []string{"name"}, counted("alice", nowhere))
		require.Equal(t, []string{"address", "address-day"}, counted("", home))
		require.Equal(t, []string{"name"}, counted("alice", away))
		require.Empty(t, counted("bob", away))
		found, err := g.Counted(t.Context(), "alice", home)
		require.NoError(t, err)
		require.True(t, found[0].Banned)
		require.Equal(t, 24-5-1, found[3].Remaining, "five guesses and the next one; looking counts nothing")

		require.NoError(t, g.Lift(t.Context(), "alice", home))
		require.Empty(t, counted("alice", home))

		g.succeeds("alice", home)
		g.fill("alice")
		g.fails(1, "alice", home)
		require.Contains(t, counted("alice", home), "known")
		time.Sleep(72 * time.Hour)
		require.Empty(t, counted("alice", home))

		_, err = g.Counted(t.Context(), strings.Repeat("x", 1025), home)
		require.ErrorIs(t, err, login.ErrNameTooLong)
	})
}

func TestCountedSeesTheLimitsOfThoseWhoAreKnownAndTheSmallestOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := on(t, memstore.New())
		names := func(name string, addr netip.Addr) (names []string) {
			found, err := g.Counted(t.Context(), name, addr)
			require.NoError(t, err)
			for _, o := range found {
				names = append(names, o.Name)
			}
			return names
		}
		g.succeeds("alice", office)
		g.banAddress(office)
		require.NotContains(t, names("", office), "address-known")
		require.Equal(t, 1, g.fails(1, "alice", office))
		require.Contains(t, names("", office), "address-known")

		g.Name.Max = 1
		require.Equal(t, 1, g.fails(2, "bob", away))
		require.Contains(t, names("bob", netip.Addr{}), "name")
	})
}

func TestCountedSaysWhatTheBackendFailsAt(t *testing.T) {
	client := &failing{Client: memstore.New()}
	client.down.Store(true)
	_, err := login.New(throttler.New(client)).Counted(t.Context(), "alice", home)
	require.ErrorIs(t, err, errDown)
}
