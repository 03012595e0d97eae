package memcached_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcached"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func dial(t *testing.T, addr string) *memcached.Conn {
	t.Helper()
	c, err := memcached.Dialer{}.Dial(t.Context(), addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestARealServerTellsItsKeysAndValues(t *testing.T) {
	server := servertest.NewMemcached(t)
	want := map[string][]byte{}
	for i := range 300 {
		key := fmt.Sprintf("login#ip#%%%d=ü", i)
		value := strings.Repeat("x\r\n", i)
		server.Command(t, fmt.Sprintf("set %s 0 60 %d\r\n%s", key, len(value), value))
		want[key] = []byte(value)
	}
	c := dial(t, server.Addr)
	keys := keysOf(t, c)
	require.Len(t, keys, len(want))
	got, err := c.Values(append(keys, "absent"))
	require.NoError(t, err)
	assert.Equal(t, want, got)

	stats, err := c.Stats()
	require.NoError(t, err)
	assert.Equal(t, "300", stats["curr_items"])
}

// keysOf returns all keys, when the server lists them: it goes through its items by itself
// now and then, and tells others meanwhile that it is busy.
func keysOf(t *testing.T, c *memcached.Conn) (keys []string) {
	t.Helper()
	for busy := true; busy; {
		busy, keys = false, nil
		for key, err := range c.Keys() {
			if busy = errors.Is(err, memcached.ErrBusy); busy {
				time.Sleep(10 * time.Millisecond)
				continue // to the end
			}
			require.NoError(t, err)
			keys = append(keys, key)
		}
	}
	return keys
}

func TestAnEmptyServerHasNoKeys(t *testing.T) {
	c := dial(t, servertest.NewMemcached(t).Addr)
	assert.Empty(t, keysOf(t, c))
	values, err := c.Values(nil)
	assert.Empty(t, values)
	assert.NoError(t, err)
}

// scripted returns the address of a server that answers each line in turn.
func scripted(t *testing.T, answers ...string) string {
	t.Helper()
	return servertest.Serve(t, func(conn net.Conn) {
		request := make([]byte, 4096)
		for _, answer := range answers {
			if _, err := conn.Read(request); err != nil {
				return
			}
			conn.Write([]byte(answer))
		}
		io.Copy(io.Discard, conn) // until the client closes
	})
}

func TestAServerThatForbidsAListOfKeysIsNamedSo(t *testing.T) {
	c := dial(t, scripted(t, "ERROR\r\n", "ERROR\r\n"))
	for _, err := range c.Keys() {
		assert.ErrorIs(t, err, memcached.ErrRefused)
	}
}

func TestAnOlderServerIsAskedInItsOwnWords(t *testing.T) {
	c := dial(t, scripted(t, "CLIENT_ERROR Invalid class id\r\n", "key=a%20b exp=1 la=2\r\nEND\r\n"))
	assert.Equal(t, []string{"a b"}, keysOf(t, c))
}

func TestNonsenseIsAnError(t *testing.T) {
	for _, answer := range []string{
		"hello\r\n",
		"VALUE a 0 99999999999\r\n",
		"VALUE a 0 -1\r\n",
		"VALUE a 0\r\n",
		"VALUE a 0 1\r\nabcEND\r\n",
		strings.Repeat("x", 100_000),
	} {
		c := dial(t, scripted(t, answer))
		_, err := c.Values([]string{"a"})
		assert.Error(t, err, "%.30q", answer)
	}
	c := dial(t, scripted(t, "STAT pid\r\n"))
	_, err := c.Stats()
	assert.Error(t, err)
}

func TestTheEndOfTheContextEndsACommand(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, err := memcached.Dialer{}.Dial(ctx, scripted(t))
	require.NoError(t, err)
	defer c.Close()
	time.AfterFunc(10*time.Millisecond, cancel)
	start := time.Now()
	_, err = c.Stats()
	assert.Error(t, err)
	assert.Less(t, time.Since(start), 4*time.Second)
}

func TestAServerWithALoginIsAskedAfterIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte("operator:s3cret\n"), 0o644))
	server := servertest.NewMemcached(t, "-Y", file).Addr
	right, err := memcached.Dialer{User: "operator", Password: "s3cret"}.Dial(t.Context(), server)
	require.NoError(t, err)
	defer right.Close()
	stats, err := right.Stats()
	require.NoError(t, err)
	assert.NotEmpty(t, stats["pid"])

	_, err = memcached.Dialer{User: "operator", Password: "wrong"}.Dial(t.Context(), server)
	assert.ErrorContains(t, err, "login: ")
	assert.NotContains(t, err.Error(), "wrong")
	none, err := memcached.Dialer{}.Dial(t.Context(), server)
	require.NoError(t, err)
	defer none.Close()
	_, err = none.Stats()
	assert.ErrorIs(t, err, memcached.ErrRefused)
}

func TestAServerWithoutALoginKeepsNoPassword(t *testing.T) {
	server := servertest.NewMemcached(t)
	c, err := memcached.Dialer{User: "operator", Password: "s3cret"}.Dial(t.Context(), server.Addr)
	require.NoError(t, err)
	defer c.Close()
	values, err := c.Values([]string{"login"})
	require.NoError(t, err)
	assert.Empty(t, values)
}
