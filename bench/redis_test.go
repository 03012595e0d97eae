package main

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// A step is a call of a script at its time, and the answer: whether it was
// counted and how long it would have had to wait.
type step struct {
	at      time.Duration
	counted bool
	wait    time.Duration
}

// The first caller's clock is ahead of the last one's.
func TestScriptsLimit(t *testing.T) {
	const second = time.Second
	three := limit{3, 3 * second}
	for name, c := range map[string]struct {
		script string
		args   func(time.Time, limit, uint64) []string
		steps  []step
	}{
		"GCRA": {gcraScript, gcraArgs, []step{
			{0, true, 0}, {0, true, 0}, {0, true, 0}, {0, false, second},
			{second - 1000, false, 1000}, {second, true, 0}, {second, false, second},
			{3 * second, true, 0}, {3 * second, true, 0}, {3 * second, false, second},
			{2 * second, false, 2 * second},
			{60 * second, true, 0}, {60 * second, true, 0}, {60 * second, true, 0}, {60 * second, false, second},
		}},
		"log": {logScript, logArgs, []step{
			{0, true, 0}, {second, true, 0}, {second, true, 0}, {second, false, 2 * second},
			{3*second - 1000, false, 1000}, {3 * second, true, 0}, {3 * second, false, second},
			{4 * second, true, 0}, {4 * second, true, 0}, {4 * second, false, 2 * second},
			{60 * second, true, 0},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t, onRedis, "unix")
			client, err := rueidisClient(env{server: s, dial: s.dialer(nil)})
			require.NoError(t, err)
			defer client.Close()
			lua := rueidis.NewLuaScript(c.script)
			// Redis has its own clock for what expires: an hour ago is too early.
			start := time.Now().Truncate(time.Second)
			for i, step := range c.steps {
				answer, err := lua.Exec(t.Context(), client, []string{"v"}, c.args(start.Add(step.at), three, uint64(i))).AsIntSlice()
				require.NoError(t, err)
				require.Equal(t, []int64{map[bool]int64{true: 1}[step.counted], step.wait.Microseconds()}, answer, "call %d, at %v", i, step.at)
			}
			expiry, err := client.Do(t.Context(), client.B().Pttl().Key("v").Build()).AsInt64()
			require.NoError(t, err)
			require.Positive(t, expiry, "every key has an expiry")
		})
	}
}

// A Redis without INCREX leaves its row out.
func TestACommandIsAskedFor(t *testing.T) {
	s := started(t, onRedis, "unix")
	require.True(t, s.has("INCRBY"))
	require.False(t, s.has("INCREXTRA"))
	require.Equal(t, []string{"UBOUND", "50", "PX", "1500", "ENX"}, increxArgs(limit{50, 1500 * time.Millisecond}))
}
