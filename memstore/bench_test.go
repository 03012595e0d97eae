package memstore_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// filled returns a full default Store and its keys. They are as long as the key of a
// usual record.
func filled(b *testing.B, valueSize int) (*memstore.Store, []string) {
	s := memstore.New()
	keys := make([]string, 100_000)
	value := make([]byte, valueSize)
	for i := range keys {
		keys[i] = fmt.Sprintf("login#address#2001:db8:%x::/64", i+1<<24)
		require.NoError(b, s.Add(&memcache.Item{Key: keys[i], Value: value, Expiration: 300}))
	}
	return s, keys
}

func BenchmarkGet(b *testing.B) {
	for _, size := range []int{16, 180, 10_000} {
		b.Run("value="+strconv.Itoa(size), func(b *testing.B) {
			s := memstore.New()
			require.NoError(b, s.Add(&memcache.Item{Key: "k", Value: make([]byte, size), Expiration: 300}))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Get("k"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGetMulti(b *testing.B) {
	for _, n := range []int{2, 8} {
		b.Run("keys="+strconv.Itoa(n), func(b *testing.B) {
			s, keys := filled(b, 60)
			b.ReportAllocs()
			for b.Loop() {
				if m, err := s.GetMulti(keys[:n]); err != nil || len(m) != n {
					b.Fatal(len(m), err)
				}
			}
		})
	}
}

func BenchmarkGetAndSwap(b *testing.B) {
	for _, size := range []int{16, 180, 10_000} {
		b.Run("value="+strconv.Itoa(size), func(b *testing.B) {
			s := memstore.New()
			require.NoError(b, s.Add(&memcache.Item{Key: "k", Value: make([]byte, size), Expiration: 300}))
			b.ReportAllocs()
			for b.Loop() {
				it, err := s.Get("k")
				if err == nil {
					err = s.CompareAndSwap(it)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The Store is full, so each Add evicts an item.
func BenchmarkAddAndEvict(b *testing.B) {
	s, _ := filled(b, 60)
	it := &memcache.Item{Value: make([]byte, 60), Expiration: 300}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		it.Key = strconv.Itoa(n)
		if err := s.Add(it); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParallelGetAndSwap(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		b.Run("keys="+strconv.Itoa(n), func(b *testing.B) {
			s, keys := filled(b, 60)
			b.ReportAllocs()
			b.ResetTimer() // b.Loop would do this, but b.RunParallel has none
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					it, err := s.Get(keys[rand.IntN(n)])
					if err == nil {
						err = s.CompareAndSwap(it)
					}
					if err != nil && err != memcache.ErrCASConflict {
						assert.NoError(b, err)
						return
					}
				}
			})
		})
	}
}

// Measures the heap that a full default Store takes for each item.
func BenchmarkMemory(b *testing.B) {
	for _, size := range []int{0, 12, 60, 180} {
		b.Run("value="+strconv.Itoa(size), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s, _ := filled(b, size)
				held := float64(heap() - before)
				stats := s.Stats()
				b.ReportMetric(held/float64(stats.Items), "B/item")
				b.ReportMetric((held-float64(stats.Bytes))/float64(stats.Items), "overhead-B/item")
			}
		})
	}
}

// Measures the heap that a Store of a million records takes for each, with one decision on it.
func BenchmarkMemoryOfAKey(b *testing.B) {
	const n = 1_000_000
	for _, algorithm := range []throttler.Algorithm{throttler.SlidingWindow, throttler.LeakyBucket} {
		b.Run("algorithm="+strings.ReplaceAll(algorithm.String(), " ", "-"), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := &memstore.Store{MaxItems: n, MaxBytes: 1 << 30}
				limits := throttler.New(s)
				for i := range n {
					_, err := limits.Authorize(b.Context(), throttler.Rule{Identifier: "login", Either: []throttler.Condition{
						{Name: "ip", Value: fmt.Sprintf("2001:db8:%x::/64", i+1<<24), Max: 50, TTL: time.Hour, Algorithm: algorithm},
					}})
					require.NoError(b, err)
				}
				b.ReportMetric(float64(heap()-before)/float64(s.Stats().Items), "B/key")
				runtime.KeepAlive(limits)
			}
		})
	}
}
