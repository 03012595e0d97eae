package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// The benchmarks tell what a decision costs beside the client's operations that
// it cannot do without. On a machine that does other things as well, the same
// call may take twice as long a second later, so what is to be compared is done
// in turn, one call of each, and judged by the medians: the ratio in one run
// means something, the times in two runs do not.

// A contender is one of two things to be compared.
type contender struct {
	name string
	do   func(testing.TB)
}

// compare reports the median time and the allocations of both, and the ratio of
// the times, the first to the second.
func compare(b *testing.B, two ...contender) {
	times := make([][]time.Duration, len(two))
	n := 0
	for b.Loop() {
		for i := range two {
			i = (i + n) % len(two) // neither is always the first
			begin := time.Now()
			two[i].do(b)
			times[i] = append(times[i], time.Since(begin))
		}
		n++
	}
	b.ReportMetric(0, "ns/op") // of both together, which means nothing
	medians := make([]float64, len(two))
	for i, c := range two {
		slices.Sort(times[i])
		medians[i] = float64(times[i][len(times[i])/2])
		b.ReportMetric(medians[i], c.name+"-ns")
		b.ReportMetric(testing.AllocsPerRun(100, func() { c.do(b) }), c.name+"-allocs")
	}
	b.ReportMetric(medians[0]/medians[1], "ratio")
}

// forEachContext runs bench with a ctx that is never done, and with one that
// could be, whose end no client's operation must hold up.
func forEachContext(b *testing.B, bench func(*testing.B, context.Context)) {
	b.Run("ctx=background", func(b *testing.B) { bench(b, context.Background()) })
	b.Run("ctx=cancelable", func(b *testing.B) { bench(b, b.Context()) })
}

// decision returns a contender that calls rule, which must come to status.
func decision(ctx context.Context, name string, th *throttler.Throttler, rule throttler.Rule, status throttler.Status) contender {
	return contender{name, func(tb testing.TB) {
		if d, err := th.Authorize(ctx, rule); err != nil || d.Err != nil || d.Status != status {
			tb.Fatal(d.Status, d.Err, err)
		}
	}}
}

// open returns a rule of n windows that are never full. As called by a
// benchmark on a server, each holds some 50 hits.
func open(n int) throttler.Rule {
	return throttler.Rule{Identifier: uniqueID(), Either: conditions(n, throttler.MaxHits, 6*time.Millisecond)}
}

// full returns a rule of n windows of 50 hits that are full.
func full(b *testing.B, th *throttler.Throttler, n int) throttler.Rule {
	rule := throttler.Rule{Identifier: uniqueID(), Either: conditions(n, 50, time.Hour)}
	for range 50 {
		d, err := th.Authorize(context.Background(), rule)
		require.NoError(b, err)
		require.NoError(b, d.Err)
	}
	return rule
}

// rawWrites returns what a decision of n conditions cannot do without, made with
// the client itself on records of the same size: one read, and all writes at
// once.
func rawWrites(b *testing.B, client *memcache.Client, n int) contender {
	value := make([]byte, 14+50)
	rule := open(n)
	var keys []string
	for _, c := range rule.Either {
		key := rule.Identifier + "#" + c.Name + "#" + c.Value
		require.NoError(b, client.Set(&memcache.Item{Key: key, Value: value, Expiration: 60}))
		keys = append(keys, key)
	}
	write := func(item *memcache.Item) error {
		return client.CompareAndSwap(&memcache.Item{Key: item.Key, Value: value, Expiration: 60, CasID: item.CasID})
	}
	if n == 1 {
		return contender{"raw", func(tb testing.TB) {
			item, err := client.Get(keys[0])
			if err != nil || write(item) != nil {
				tb.Fatal(err)
			}
		}}
	}
	return contender{"raw", func(tb testing.TB) {
		items, err := client.GetMulti(keys)
		if err != nil || len(items) != n {
			tb.Fatal(err)
		}
		written := make(chan error, n)
		for _, key := range keys[1:] {
			go func() { written <- write(items[key]) }()
		}
		written <- write(items[keys[0]])
		for range keys {
			if err := <-written; err != nil {
				tb.Fatal(err)
			}
		}
	}}
}

func BenchmarkAuthorizedBesideRawOperations(b *testing.B) {
	client := clientOf(b, servertest.AnyMemcached(b).Addr)
	th := throttler.New(client)
	for _, n := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("conditions=%d", n), func(b *testing.B) {
			forEachContext(b, func(b *testing.B, ctx context.Context) {
				compare(b, decision(ctx, "decision", th, open(n), throttler.Authorized), rawWrites(b, client, n))
			})
		})
	}
}

func BenchmarkTwoConditionsBesideOne(b *testing.B) {
	th := throttler.New(clientOf(b, servertest.AnyMemcached(b).Addr))
	forEachContext(b, func(b *testing.B, ctx context.Context) {
		compare(b,
			decision(ctx, "two", th, open(2), throttler.Authorized),
			decision(ctx, "one", th, open(1), throttler.Authorized))
	})
}

func BenchmarkBlockedBesideRawGet(b *testing.B) {
	client := clientOf(b, servertest.AnyMemcached(b).Addr)
	th := throttler.New(client)
	for _, n := range []int{1, 2, 8} {
		rule := full(b, th, n)
		b.Run(fmt.Sprintf("conditions=%d", n), func(b *testing.B) {
			forEachContext(b, func(b *testing.B, ctx context.Context) {
				compare(b, decision(ctx, "decision", th, rule, throttler.Blocked), rawRead(client, rule))
			})
		})
	}
}

// rawRead returns the one operation that a blocked decision cannot do without.
func rawRead(client *memcache.Client, rule throttler.Rule) contender {
	var keys []string
	for _, c := range rule.Either {
		keys = append(keys, rule.Identifier+"#"+c.Name+"#"+c.Value)
	}
	return contender{"raw", func(tb testing.TB) {
		var err error
		if len(keys) == 1 {
			_, err = client.Get(keys[0])
		} else {
			_, err = client.GetMulti(keys)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}}
}

func BenchmarkLeakyBucketBesideSlidingWindow(b *testing.B) {
	th := throttler.New(clientOf(b, servertest.AnyMemcached(b).Addr))
	forEachContext(b, func(b *testing.B, ctx context.Context) {
		bucket := open(1)
		bucket.Either[0].Algorithm = throttler.LeakyBucket
		compare(b,
			decision(ctx, "bucket", th, bucket, throttler.Authorized),
			decision(ctx, "window", th, open(1), throttler.Authorized))
	})
}

// The backend is memory, so this is the throttler's own time, and memstore's.
// What a window costs more, by the number of its hits, BenchmarkDecide tells.
func BenchmarkDecisionOverMemstore(b *testing.B) {
	for _, n := range []int{1, 2, 8} {
		th := throttler.New(memstore.New())
		rule := open(n)
		for i := range rule.Either {
			rule.Either[i].Algorithm = throttler.LeakyBucket
		}
		for _, c := range []contender{
			decision(context.Background(), "authorized", th, rule, throttler.Authorized),
			decision(context.Background(), "blocked", th, full(b, th, n), throttler.Blocked),
		} {
			b.Run(fmt.Sprintf("status=%s/conditions=%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c.do(b)
				}
			})
		}
	}
}

// The other ways to call, each beside a plain Authorize of the same two windows
// on the same server.
func BenchmarkOtherCallsBesideAuthorize(b *testing.B) {
	ctx := context.Background()
	th := throttler.New(clientOf(b, servertest.AnyMemcached(b).Addr))
	calls := map[string]func(throttler.Rule) (throttler.Decision, error){
		"peek": func(r throttler.Rule) (throttler.Decision, error) { return th.Peek(ctx, r) },
		"wait": func(r throttler.Rule) (throttler.Decision, error) { return th.Wait(ctx, r) },
		"cancel": func(r throttler.Rule) (throttler.Decision, error) {
			d, err := th.Authorize(ctx, r)
			return d, errors.Join(err, th.Cancel(ctx, d))
		},
		"count-authorized-only": func(r throttler.Rule) (throttler.Decision, error) {
			r.CountAuthorizedOnly = true
			return th.Authorize(ctx, r)
		},
		"growing-lockout": func(r throttler.Rule) (throttler.Decision, error) {
			r.Lockout, r.LockoutGrowth = time.Hour, 2
			return th.Authorize(ctx, r)
		},
		"shadow": func(r throttler.Rule) (throttler.Decision, error) {
			r.Shadow = true
			return th.Authorize(ctx, r)
		},
	}
	for name, call := range calls {
		b.Run("call="+name, func(b *testing.B) {
			rule := open(2)
			compare(b, contender{name, func(tb testing.TB) {
				if d, err := call(rule); err != nil || d.Err != nil || d.Status != throttler.Authorized {
					tb.Fatal(d.Status, d.Err, err)
				}
			}}, decision(ctx, "authorize", th, open(2), throttler.Authorized))
		})
	}
}

// forgotten are the allocations of a decision that come with the race detector: with it, a
// sync.Pool forgets.
var forgotten = 0.0

// leastAllocs is testing.AllocsPerRun without what goroutines of other tests, which are about
// to end, allocate meanwhile.
func leastAllocs(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

// One or two are usual, for what the caller keeps.
func TestDecisionInProcessMemoryTakesFewAllocations(t *testing.T) {
	th := throttler.New(memstore.New())
	full, open := condition("full", 1, time.Hour), condition("open", 10_000, time.Second)
	for name, rule := range map[string]throttler.Rule{
		"full": either(full), "open": either(open), "both": either(full, open), "all": all(full, open),
	} {
		authorize(t, th, rule)
		allocs := leastAllocs(500, func() { _, _ = th.Authorize(t.Context(), rule) })
		require.LessOrEqual(t, allocs, 5.0, name)
	}
}

func TestConditionsOverPoolTakeFewAllocationsEach(t *testing.T) {
	th := throttler.New(patientPool(t, servertest.AnyMemcached(t).Addr))
	for _, n := range []int{8, 32, 64} {
		rule := throttler.Rule{Identifier: uniqueID(), Either: conditions(n, 100_000, time.Hour)}
		for i := range rule.Either {
			rule.Either[i].Algorithm = throttler.LeakyBucket
		}
		call := func() { require.NoError(t, authorize(t, th, rule).Err) }
		for range 200 {
			call() // until the connection writes by meta sets
		}
		allocs := leastAllocs(100, call)
		require.LessOrEqual(t, allocs, 6+1.35*float64(n)+forgotten, "%d conditions", n)
		t.Logf("%d conditions: %.1f allocations", n, allocs)
	}
}

// BenchmarkRules compares calls of one rule with those of 1,000 rules: a rule is found again by
// what it says.
func BenchmarkRules(b *testing.B) {
	const n = 1000
	for differ, set := range map[string]func(c *throttler.Condition, i int){
		"max":     func(c *throttler.Condition, i int) { c.Max += i },
		"name":    func(c *throttler.Condition, i int) { c.Name = fmt.Sprintf("customer %04d", i) },
		"lockout": func(c *throttler.Condition, i int) { c.Lockout = time.Duration(i+1) * time.Second },
	} {
		b.Run("differ="+differ, func(b *testing.B) {
			th := throttler.New(memstore.New())
			var rules []throttler.Rule
			for i := range n {
				c := condition("customer 0000", 1000, time.Minute)
				set(&c, i)
				rules = append(rules, either(c))
			}
			calls := func(name string, rule func(i int) throttler.Rule) contender {
				return contender{name, func(tb testing.TB) {
					for i := range n {
						if _, err := th.Peek(context.Background(), rule(i)); err != nil {
							tb.Fatal(err)
						}
					}
				}}
			}
			compare(b, calls("thousand", func(i int) throttler.Rule { return rules[i] }), calls("one", func(int) throttler.Rule { return rules[0] }))
		})
	}
}
