package cli_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func jobs(customer string) throttler.Rule {
	return throttler.Rule{Identifier: "jobs", Either: []throttler.Condition{
		{Name: "customer", Value: customer, Max: 3, TTL: time.Minute, Algorithm: throttler.InFlight, Cost: 1},
		{Name: "month", Value: customer, Max: 1000, Algorithm: throttler.Calendar, Period: throttler.Period{Unit: throttler.Month, Anchor: anchor}},
	}}
}

// anchor is a day that is far from today: a month does not end in a test.
var anchor = min(time.Now().UTC().AddDate(0, 0, 10).Day(), 28)

var jobsFile = fmt.Sprintf(`
rules:
  - name: jobs
    for: {api: true}
    either:
      - {name: customer, value: any, max: 3, algorithm: in-flight, lease: 1m}
      - {name: month, value: any, max: 1000, per: month, algorithm: calendar, anchor: %d}
`, anchor)

func TestHoldersAreShownAndOneIsFreed(t *testing.T) {
	_, memcached := servers(t, 1)
	_, redis, overRedis := overRedis(t)
	for flag, th := range map[string]*throttler.Throttler{memcached: program(t, memcached), redis: overRedis} {
		ctx := t.Context()
		var leases []*throttler.Lease
		for range 3 {
			d, err := th.Authorize(ctx, jobs("c-17"))
			require.NoError(t, err)
			require.NoError(t, d.Err)
			leases = append(leases, th.Hold(ctx, d))
		}
		path := filepath.Join(t.TempDir(), "jobs.yaml")
		require.NoError(t, os.WriteFile(path, []byte(jobsFile), 0o600))
		rules := "-rules=" + path
		looked := run(t, "look", "jobs", "customer=c-17", "month=c-17", rules, flag)
		require.Equal(t, 0, looked.status, looked.err)
		rows := looked.rows()
		require.Len(t, rows, 2+2+3, looked.out)
		assert.Regexp(t, `^jobs customer c-17 - 3 of 3 in (1m0s|5\ds) in (1m0s|5\ds)$`, rows[0])
		assert.Regexp(t, `^jobs month c-17 - 3 of 1000 in \d+h\d+m in \d+h\d+m$`, rows[1])
		assert.Equal(t, []string{"", "RULE CONDITION VALUE HOLDER HITS RENEWED ENDS"}, rows[2:4])
		assert.Regexp(t, `^jobs customer c-17 [0-9a-f]{16} 1 \d+(s|ms) ago in (1m0s|5\ds)$`, rows[4])
		assert.Equal(t, true, run(t, "look", "jobs", "customer=c-17", rules, flag, "-json").states(t)[0]["full"])

		second := strings.Fields(rows[5])[3]
		lifted := run(t, "lift", "jobs", "customer=c-17", "-holder", second, rules, flag)
		require.Equal(t, 0, lifted.status, lifted.err)
		assert.NotContains(t, lifted.out, second)
		state := run(t, "look", "jobs", "customer=c-17", "-json", flag).states(t)[0]
		assert.EqualValues(t, 2, state["hits"])
		assert.Len(t, state["holders"], 2)
		assert.EqualValues(t, 3, run(t, "look", "jobs", "month=c-17", "-json", flag).states(t)[0]["hits"], "nothing else")

		d, err := th.Authorize(ctx, jobs("c-17"))
		require.NoError(t, err)
		assert.Equal(t, throttler.Authorized, d.Status, "a place is free")
		for i, l := range leases {
			require.NoError(t, l.Release(context.WithoutCancel(ctx)), i)
		}
		assert.Len(t, run(t, "look", "jobs", "customer=c-17", "-json", flag).states(t)[0]["holders"], 1, "the freed one's release freed nobody else")

		again := run(t, "lift", "jobs", "customer=c-17", "-holder", second, flag)
		assert.Equal(t, 1, again.status)
		assert.Contains(t, again.err, "there is no such holder")
		assert.Equal(t, 1, run(t, "lift", "jobs", "customer=nobody", "-holder", second, flag).status)
		for _, args := range [][]string{{"customer=c-17", "-holder", "x"}, {"customer=c-17", "month=c-17", "-holder", second}} {
			assert.Equal(t, 2, run(t, append([]string{"lift", "jobs", flag}, args...)...).status, args)
		}
		assert.Equal(t, 0, run(t, "lift", "jobs", "customer=c-17", flag).status, "all of them")
		assert.NotContains(t, run(t, "look", "jobs", "customer=c-17", "-json", flag).states(t)[0], "holders")
	}
}
