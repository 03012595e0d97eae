package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// overRedis starts a Redis and returns it with the flag that names it, and a program
// that uses it.
func overRedis(t *testing.T, args ...string) (*servertest.Redis, string, *throttler.Throttler) {
	t.Helper()
	server := servertest.NewRedis(t, args...)
	url := "redis://" + server.Addr + "?prefix=app:"
	s, err := redisstore.Open(url)
	require.NoError(t, err)
	s.Timeout = 5 * time.Second
	t.Cleanup(func() { s.Close() })
	return server, "-store=" + url, throttler.New(s)
}

func TestAListShowsWhoIsBannedOverRedis(t *testing.T) {
	server, flag, th := overRedis(t)
	for i := range 450 { // more than are read at once
		call(t, th, fmt.Sprint("10.0.0.", i), 1)
	}
	for i := range 20 {
		call(t, th, fmt.Sprint("10.0.1.", i), 3)
	}
	call(t, th, "with blank", 3)
	server.Command("SET", "other#program#key", "hello")
	server.Command("SET", "app:other#program#key", "hello")
	server.Command("LPUSH", "app:login#ip#list", "hello")
	assert.Len(t, run(t, "list", "-json", flag).states(t), 21)
	assert.Len(t, run(t, "list", "-all", "-json", flag).states(t), 21+450+1)
	assert.Len(t, run(t, "list", "login", "-json", flag).states(t), 20, "a hash tells no rule")

	state := run(t, "servers", "-json", flag).states(t)[0]
	assert.Equal(t, server.Addr, state["server"])
	assert.Equal(t, true, state["up"])
	assert.EqualValues(t, 21+450+1+3, state["items"])
	assert.Zero(t, state["max_bytes"])
	assert.Regexp(t, "^"+server.Addr+" up 7", run(t, "servers", flag).rows()[0])
	server.Command("FLUSHALL")
	assert.Contains(t, run(t, "servers", flag).out, "flushed 1 times")
}

func TestARedisThatDoesNotAnswerIsNamed(t *testing.T) {
	server, flag, _ := overRedis(t)
	server.Kill()
	for _, args := range [][]string{{"look", "login", "ip=x"}, {"list"}, {"servers"}, {"ban", "login", "ip=x", "1h"}} {
		failed := run(t, append(args, flag)...)
		assert.Equal(t, 1, failed.status)
		assert.Contains(t, failed.err, server.Addr)
	}
	assert.Contains(t, run(t, "servers", flag).out, "down")
}

func TestTheStoreComesFromTheFlagTheEnvironmentOrTheRuleFile(t *testing.T) {
	_, flag, th := overRedis(t)
	call(t, th, "203.0.113.7", 3)
	url := flag[len("-store="):]
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, fmt.Appendf(nil, "store: %q\nrules: [{name: login, either: [{name: ip, value: '{address}', max: 2, per: 1m}]}]\n", url), 0o600))
	assert.Len(t, run(t, "list", "-json", "-rules", rules).states(t), 1)
	require.Equal(t, 0, run(t, "check", rules).status)
	t.Setenv("THROTTLER_STORE", url)
	assert.Len(t, run(t, "list", "-json").states(t), 1)

	both := run(t, "list", flag, "-servers=127.0.0.1:1")
	assert.Equal(t, 2, both.status)
	assert.Contains(t, both.err, "one of the two")
	assert.Equal(t, 1, run(t, "list", "-store=mysql://x").status)
}
