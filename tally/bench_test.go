package tally_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
)

// benchmarked returns a rule with some conditions, and a decision that
// authorizes it or blocks it by its first condition.
func benchmarked(conditions int, blocked bool) (throttler.Rule, throttler.Decision) {
	rule, d := throttler.Rule{Identifier: "login"}, throttler.Decision{Status: throttler.Authorized}
	for i := range conditions {
		name := "condition" + strconv.Itoa(i)
		rule.Either = append(rule.Either, throttler.Condition{Name: name, Value: "2001:db8:1:2::/64"})
		d.Outcomes = append(d.Outcomes, throttler.Outcome{Name: name})
	}
	if blocked {
		d.Status, d.WouldBlock, d.Outcomes[0].Blocked = throttler.Blocked, true, true
	}
	return rule, d
}

func BenchmarkObserve(b *testing.B) {
	for _, conditions := range []int{1, 2, 4} {
		for _, blocked := range []bool{false, true} {
			rule, d := benchmarked(conditions, blocked)
			name := fmt.Sprintf("conditions=%d/status=%v", conditions, d.Status)
			b.Run(name, func(b *testing.B) {
				counts, ctx := tally.New(), context.Background()
				b.ReportAllocs()
				for b.Loop() {
					counts.Observe(ctx, rule, d)
				}
			})
		}
	}
}

func BenchmarkParallelObserve(b *testing.B) {
	for _, blocked := range []bool{false, true} {
		rule, d := benchmarked(2, blocked)
		b.Run(fmt.Sprintf("conditions=2/status=%v", d.Status), func(b *testing.B) {
			counts := tally.New()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				ctx := context.Background()
				for pb.Next() {
					counts.Observe(ctx, rule, d)
				}
			})
		})
	}
}

// Each call is blocked for another of a million values, so that nearly every one
// takes a counter from another value.
func BenchmarkObserveManyValues(b *testing.B) {
	for _, hashed := range []bool{false, true} {
		b.Run(fmt.Sprintf("hashed=%v", hashed), func(b *testing.B) {
			counts, ctx := tally.New(), context.Background()
			if hashed {
				counts.HashKey = make([]byte, 32)
			}
			rule, d := benchmarked(1, true)
			values := manyValues()
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				rule.Either[0].Value = values[i%len(values)]
				counts.Observe(ctx, rule, d)
				i++
			}
		})
	}
}

func BenchmarkParallelObserveManyValues(b *testing.B) {
	counts, values := tally.New(), manyValues()
	var start atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		rule, d := benchmarked(1, true)
		for i := int(start.Add(int64(len(values) / 3))); pb.Next(); i++ {
			rule.Either[0].Value = values[i%len(values)]
			counts.Observe(ctx, rule, d)
		}
	})
}

func manyValues() []string {
	values := make([]string, 1_000_000)
	for i := range values {
		values[i] = fmt.Sprintf("2001:db8:%x::/64", i)
	}
	return values
}

// What a tally adds to a decision over the fastest backend there is.
func BenchmarkAuthorize(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("tally=%v", with), func(b *testing.B) {
			limits := throttler.New(memstore.New())
			if with {
				limits.Observe = tally.New().Observe
			}
			rule := throttler.Rule{Identifier: "login", Either: []throttler.Condition{
				{Name: "address", Value: "192.0.2.1", Max: 50, TTL: time.Minute},
				{Name: "name", Value: "alice", Max: 50, TTL: time.Minute},
			}}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := limits.Authorize(ctx, rule); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	counts := full(4)
	b.ReportAllocs()
	for b.Loop() {
		if len(snapshotOf(counts).Rules) != 1 {
			b.Fatal("no rule")
		}
	}
}

func BenchmarkPage(b *testing.B) {
	counts := full(4)
	for _, format := range []string{"html", "json"} {
		b.Run("format="+format, func(b *testing.B) {
			r := httptest.NewRequest("GET", "/?format="+format, nil)
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				w.Body = nil
				counts.ServeHTTP(w, r)
				if w.Code != 200 {
					b.Fatal(w.Code)
				}
			}
		})
	}
}

// full returns a tally whose conditions keep as many values as by default.
func full(conditions int) *tally.Tally {
	counts := tally.New()
	rule, d := benchmarked(conditions, true)
	for i := range d.Outcomes {
		d.Outcomes[i].Blocked = true
	}
	for i := range 10 * 1000 {
		for j := range rule.Either {
			rule.Either[j].Value = fmt.Sprintf("2001:db8:%x::/64", i)
		}
		counts.Observe(context.Background(), rule, d)
	}
	return counts
}

// The heap that a condition takes when it keeps as many values as by default:
// addresses, and values so long that they are cut.
func BenchmarkMemory(b *testing.B) {
	for _, size := range []int{18, 10_000} {
		b.Run("value="+strconv.Itoa(size), func(b *testing.B) {
			const conditions = 20
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				counts := tally.New()
				rule, d := benchmarked(conditions, true)
				for i := range d.Outcomes {
					d.Outcomes[i].Blocked = true
				}
				for i := range 3 * 1000 {
					for j := range rule.Either {
						rule.Either[j].Value = fmt.Sprintf("%0*x", size, i)
					}
					counts.Observe(context.Background(), rule, d)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/conditions, "B/condition")
				runtime.KeepAlive(counts)
			}
		})
	}
}
