package throttler_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

const clockVariable = "THROTTLER_TEST_CLOCK" // server, algorithm, Max, TTL and how far ahead, in a process that calls

// TestTwoProcessesWhoseClocksDifferKeepToALimit has two processes call as fast as they can on one
// record of a real memcached, one of them with a clock that is ahead. Throttler has no clock that
// a test could set: the processes decide by the functions that it decides by.
func TestTwoProcessesWhoseClocksDifferKeepToALimit(t *testing.T) {
	if job := os.Getenv(clockVariable); job != "" {
		require.NoError(t, callByClock(job))
		return
	}
	server := servertest.NewMemcached(t)
	const lasts, max = 1500 * time.Millisecond, 100
	for name, c := range map[string]struct {
		algorithm  record.Algorithm
		ttl, apart time.Duration
	}{
		"bucket, 5 ms apart":    {record.Bucket, time.Second, 5 * time.Millisecond},
		"bucket, 50 ms apart":   {record.Bucket, time.Second, 50 * time.Millisecond},
		"bucket, 2 s apart":     {record.Bucket, time.Second, 2 * time.Second},
		"bucket of a minute":    {record.Bucket, time.Minute, 2 * time.Second},
		"window, 50 ms apart":   {record.Window, 500 * time.Millisecond, 50 * time.Millisecond},
		"window, nearly so far": {record.Window, time.Second, 900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var admitted []time.Duration
			results := make(chan string, 2)
			for _, ahead := range []time.Duration{0, c.apart} {
				cmd := exec.Command(os.Args[0], "-test.run=^TestTwoProcessesWhoseClocksDifferKeepToALimit$")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %d %d %d %d", clockVariable, server.Addr,
					strings.ReplaceAll(name, " ", "_"), c.algorithm, max, c.ttl, ahead, lasts))
				go func() {
					out, err := cmd.Output()
					if err != nil {
						out = []byte(err.Error())
					}
					results <- string(out)
				}()
			}
			for range 2 {
				out := <-results
				n := 0
				for line := range strings.Lines(out) {
					var at int64
					if k, _ := fmt.Sscanf(line, "admitted %d", &at); k == 1 {
						admitted = append(admitted, time.Duration(at))
						n++
					}
				}
				require.Positive(t, n+strings.Count(out, "blocked"), out)
			}
			slices.Sort(admitted)
			require.GreaterOrEqual(t, len(admitted), max)
			for i, from := range admitted {
				for j := i + max; j < len(admitted); j++ {
					took := admitted[j] - from
					if c.algorithm == record.Window {
						require.GreaterOrEqual(t, took, c.ttl-c.apart, "%d calls", max+1)
						break
					}
					require.LessOrEqual(t, float64(j-i+1), max+float64(took+c.apart)/float64(c.ttl)*max, "calls in %v", took)
				}
			}
		})
	}
}

// callByClock calls as job says, and writes when each call was admitted.
func callByClock(job string) error {
	var addr, key string
	var limit record.Limit
	var ahead, lasts time.Duration
	if _, err := fmt.Sscan(job, &addr, &key, &limit.Algorithm, &limit.Max, &limit.TTL, &ahead, &lasts); err != nil {
		return err
	}
	client := memcache.New(addr)
	defer client.Close()
	blocked := 0
	for begun := time.Now(); time.Since(begun) < lasts; {
		found := &memcache.Item{Key: key}
		store := client.Add
		switch item, err := client.Get(key); {
		case err == nil:
			found, store = item, client.CompareAndSwap
		case !errors.Is(err, memcache.ErrCacheMiss):
			return err
		}
		var v record.Verdict
		now := time.Now()
		value, expiration, _, err := v.DecideStored(record.InstantOf(now.Add(ahead)), &limit, new(record.Lockout), found.Value, nil, true)
		if err != nil {
			return err
		}
		if v.Outcome.Blocked {
			blocked++
		}
		if value == nil {
			continue
		}
		found.Value, found.Expiration = value, expiration
		switch err := store(found); {
		case errors.Is(err, memcache.ErrNotStored), errors.Is(err, memcache.ErrCASConflict), errors.Is(err, memcache.ErrCacheMiss):
		case err != nil:
			return err
		case !v.Outcome.Blocked:
			fmt.Println("admitted", now.UnixNano())
		}
	}
	fmt.Println("blocked", blocked)
	return nil
}
