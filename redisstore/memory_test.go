package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What docs/redis.md says of the memory that a record takes: go test -v -run BytesARecord ./redisstore
// With Redis 7.0 these are 194 bytes for a window of 1 hit by an IPv4 address, 197 of 5 hits, 332
// of 50, 178 for a leaky bucket, 204 for a window of 1 hit by an IPv6 /64, and 242 by a hash.
func TestBytesARecordTakes(t *testing.T) {
	t.Parallel()
	const records = 20_000
	address := func(i int) string { return fmt.Sprintf("203.%d.%d.%d", i>>16&255, i>>8&255, i&255) }
	network := func(i int) string { return fmt.Sprintf("2001:db8:%04x:%04x::/64", i>>8, i&255) }
	for _, c := range []struct {
		name      string
		hits      int
		algorithm throttler.Algorithm
		value     func(int) string
		most      int // bytes
	}{
		{"window, 1 hit, IPv4", 1, throttler.SlidingWindow, address, 300},
		{"window, 5 hits, IPv4", 5, throttler.SlidingWindow, address, 300},
		{"window, 50 hits, IPv4", 50, throttler.SlidingWindow, address, 500},
		{"leaky bucket, IPv4", 1, throttler.LeakyBucket, address, 300},
		{"window, 1 hit, IPv6 /64", 1, throttler.SlidingWindow, network, 300},
		{"hashed key", 1, throttler.SlidingWindow, func(i int) string { return strings.Repeat("x", 300) + strconv.Itoa(i) }, 350},
	} {
		ttl := 5 * time.Minute
		if c.algorithm == throttler.LeakyBucket {
			ttl = time.Hour // or a hit would leak before the last record is written
		}
		server := servertest.NewRedis(t)
		th := throttler.New(open(t, "redis://"+server.Addr))
		used := func() int {
			_, text, _ := strings.Cut(server.Command("INFO", "memory"), "used_memory:")
			n, err := strconv.Atoi(text[:strings.IndexByte(text, '\r')])
			require.NoError(t, err)
			return n
		}
		decide(t, open(t, "redis://"+server.Addr), "a") // a connection has buffers
		before := used()
		var wg sync.WaitGroup
		for g := range 50 {
			wg.Go(func() {
				for i := g; i < records; i += 50 {
					r := throttler.Rule{Identifier: "login", Either: []throttler.Condition{
						{Name: "ip", Value: c.value(i), Max: 50, TTL: ttl, Cost: c.hits, Algorithm: c.algorithm},
					}}
					d, err := th.Authorize(context.Background(), r)
					assert.NoError(t, err)
					assert.NoError(t, d.Err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, strconv.Itoa(records+1), server.Command("DBSIZE"))
		each := (used() - before) / records
		t.Logf("%-24s %d bytes, %d records a megabyte", c.name, each, 1<<20/max(each, 1))
		require.Greater(t, each, 80)
		require.Less(t, each, c.most)
	}
}
