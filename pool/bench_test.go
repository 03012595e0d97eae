package pool_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/bradfitz/gomemcache/memcache"
)

// client is what both sides of the benchmarks have.
type client interface {
	Get(key string) (*memcache.Item, error)
	GetMulti(keys []string) (map[string]*memcache.Item, error)
	Add(item *memcache.Item) error
	CompareAndSwap(item *memcache.Item) error
	Delete(key string) error
}

var benchmarked = []struct {
	name string
	call func(c client) error
}{
	{"get", func(c client) error {
		_, err := c.Get("key")
		return err
	}},
	{"gets+cas", func(c client) error {
		item, err := c.Get("key")
		if err != nil {
			return err
		}
		return c.CompareAndSwap(item)
	}},
	{"multi", func(c client) error {
		_, err := c.GetMulti([]string{"key", "key2", "key3"})
		return err
	}},
}

// both returns a pool and a plain client of one server, with items to read.
func both(b *testing.B, servers ...string) (direct *memcache.Client, pooled *pool.Pool) {
	b.Helper()
	direct = memcache.New(servers...)
	direct.MaxIdleConns = 64
	b.Cleanup(func() { direct.Close() })
	pooled, err := pool.New(servers...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { pooled.Close() })
	for _, key := range []string{"key", "key2", "key3"} {
		if err := pooled.Add(&memcache.Item{Key: key, Value: make([]byte, 100), Expiration: 600}); err != nil {
			b.Fatal(err)
		}
	}
	return direct, pooled
}

// BenchmarkPool shows what a pool costs over a memcache.Client of the same
// server, of which it makes one. The calls of the two alternate; x-median is the
// ratio of their medians.
func BenchmarkPool(b *testing.B) {
	for _, bb := range benchmarked {
		b.Run("op="+bb.name, func(b *testing.B) {
			direct, pooled := both(b, memcachedtest.Process(b).Addr)
			var times [2][]time.Duration
			for b.Loop() {
				for i, c := range []client{direct, pooled} {
					begin := time.Now()
					if err := bb.call(c); err != nil {
						b.Fatal(err)
					}
					times[i] = append(times[i], time.Since(begin))
				}
			}
			b.ReportMetric(0, "ns/op") // of both together: says nothing
			b.ReportMetric(float64(median(times[0])), "ns/direct")
			b.ReportMetric(float64(median(times[1])), "ns/pool")
			b.ReportMetric(float64(median(times[1]))/float64(median(times[0])), "x-median")
		})
	}
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// BenchmarkAllocs counts the allocations of each side.
func BenchmarkAllocs(b *testing.B) {
	for _, bb := range benchmarked {
		for _, side := range []string{"direct", "pool"} {
			b.Run(fmt.Sprintf("op=%s/client=%s", bb.name, side), func(b *testing.B) {
				direct, pooled := both(b, memcachedtest.Process(b).Addr)
				var c client = direct
				if side == "pool" {
					c = pooled
				}
				b.ReportAllocs()
				for b.Loop() {
					if err := bb.call(c); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkRefused is a call of a server that is taken to be down.
func BenchmarkRefused(b *testing.B) {
	p, err := pool.New("127.0.0.1:1")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	p.BreakerPause = time.Hour
	for range pool.DefaultBreakerFailures {
		if _, err := p.Get("key"); err == nil {
			b.Fatal("something answers at port 1")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Get("key"); err == nil {
			b.Fatal("not refused")
		}
	}
}

// BenchmarkPlacement is the choice of the server for one key.
func BenchmarkPlacement(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			p, err := pool.New(names(n)...)
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				p.Place("login#ip+user#192.0.2.17")
			}
		})
	}
}
