package pool_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/adaptivethrottler/throttler/pool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// names returns the names of n servers that resolve.
func names(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("192.0.2.%d:11211", i+1)
	}
	return names
}

// placed returns the server of each of n keys among the given servers.
func placed(t require.TestingT, n int, servers ...string) []string {
	p, err := pool.New(servers...)
	require.NoError(t, err)
	defer p.Close()
	places := make([]string, n)
	for i := range places {
		places[i] = p.Place(fmt.Sprintf("login#user#user%d", i))
	}
	return places
}

func TestServersShareTheKeysEvenly(t *testing.T) {
	const keys = 50_000
	for _, n := range []int{2, 3, 5, 16} {
		share := make(map[string]int)
		for _, server := range placed(t, keys, names(n)...) {
			share[server]++
		}
		require.Len(t, share, n)
		for server, got := range share {
			assert.InEpsilon(t, keys/n, got, 0.1, "%s of %d", server, n)
		}
	}
}

// Programs of different versions share servers, so where a key belongs must
// never change.
func TestPlacementIsFixed(t *testing.T) {
	got := make(map[string]string)
	p, err := pool.New("192.0.2.1:11211", "192.0.2.2:11211", "[2001:db8::1]:11211", "/run/memcached.sock")
	require.NoError(t, err)
	defer p.Close()
	for _, key := range []string{"a", "b", "login#user#bob", "login#user#eve", "login#user#amy", "robots#agent#curl"} {
		got[key] = p.Place(key)
	}
	assert.Equal(t, map[string]string{
		"a":                 "192.0.2.2:11211",
		"b":                 "192.0.2.1:11211",
		"login#user#bob":    "192.0.2.2:11211",
		"login#user#eve":    "[2001:db8::1]:11211",
		"login#user#amy":    "[2001:db8::1]:11211",
		"robots#agent#curl": "192.0.2.2:11211",
	}, got)
}

func TestPlacementProperties(t *testing.T) {
	server := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%s/%s.sock", rapid.StringMatching(`[a-z]{0,8}`).Draw(t, "dir"), rapid.StringMatching(`[a-z0-9]{1,8}`).Draw(t, "name"))
	})
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.SliceOfNDistinct(server, 2, 12, rapid.ID[string]).Draw(t, "servers")
		key := rapid.StringMatching(`[!-~]{1,250}`).Draw(t, "key")
		place := func(servers []string) string {
			p, err := pool.New(servers...)
			require.NoError(t, err)
			defer p.Close()
			return p.Place(key)
		}

		home := place(servers)
		require.Contains(t, servers, home)
		require.Equal(t, home, place(rapid.Permutation(servers).Draw(t, "order")), "in another order")

		gone := rapid.IntRange(0, len(servers)-1).Draw(t, "gone")
		without := slices.Delete(slices.Clone(servers), gone, gone+1)
		if servers[gone] != home {
			require.Equal(t, home, place(without), "without %q", servers[gone])
		}
	})
}
