package throttler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
)

// A login form: at most 5 attempts a minute for a name and 50 in 5 minutes from
// an address, and whoever goes beyond is banned for 10 minutes. Package login
// has this ready made, with more thought in it.
func Example_login() {
	th := throttler.New(memstore.New()) // or memcache.New("127.0.0.1:11211")
	ctx := context.Background()

	attempt := func(addr, name string) {
		d, err := th.Authorize(ctx, throttler.Rule{
			Identifier: "login",
			Either: []throttler.Condition{
				{Name: "ip", Value: addr, Max: 50, TTL: 5 * time.Minute, Message: "too many attempts from your address"},
				{Name: "login", Value: name, Max: 5, TTL: time.Minute, Message: "too many attempts for this name"},
			},
			Lockout: 10 * time.Minute,
		})
		if err != nil {
			panic(err) // the rule is wrong
		}
		fmt.Println(name, d.Status, d.Messages, d.RetryAfter.Round(time.Second))
	}
	for range 6 {
		attempt("192.0.2.1", "alice")
	}
	attempt("192.0.2.1", "bob")

	// Output:
	// alice authorized [] 0s
	// alice authorized [] 0s
	// alice authorized [] 0s
	// alice authorized [] 0s
	// alice authorized [] 0s
	// alice blocked [too many attempts for this name] 10m0s
	// bob authorized [] 0s
}

// A robot: at most 10 requests a second for an address and user agent, and no
// ban.
func Example_robot() {
	th := throttler.New(memstore.New())
	ctx := context.Background()

	served := 0
	for range 25 {
		d, err := th.Authorize(ctx, throttler.Rule{
			Identifier: "robots",
			Either: []throttler.Condition{
				{Name: "ip+agent", Value: "192.0.2.7 ExampleBot/1.0", Max: 10, TTL: time.Second},
			},
		})
		if err != nil {
			panic(err)
		}
		if d.Status == throttler.Authorized {
			served++
		}
	}
	fmt.Println(served, "of 25 requests served")

	// Output:
	// 10 of 25 requests served
}

// Only failures count: each attempt is counted first, so that no more than 3 run
// at once or fail, and is taken back when it succeeds.
func ExampleThrottler_Cancel() {
	th := throttler.New(memstore.New())
	ctx := context.Background()
	rule := throttler.Rule{
		Identifier: "voucher",
		Either:     []throttler.Condition{{Name: "customer", Value: "4711", Max: 3, TTL: time.Hour}},
	}
	for _, code := range []string{"right", "wrong", "right", "wrong", "right", "wrong", "right"} {
		d, err := th.Authorize(ctx, rule)
		if err != nil {
			panic(err)
		}
		if d.Status == throttler.Blocked {
			fmt.Println("no more guesses")
			continue
		}
		if code == "right" {
			if err := th.Cancel(ctx, d); err != nil {
				panic(err)
			}
		}
		fmt.Println(code, "with", d.Outcomes[0].Remaining, "left")
	}

	// Output:
	// right with 2 left
	// wrong with 2 left
	// right with 1 left
	// wrong with 1 left
	// right with 0 left
	// wrong with 0 left
	// no more guesses
}

// Wait spaces out what a program does by itself: a bucket of 1 hit every 20 ms.
func ExampleThrottler_Wait() {
	th := throttler.New(memstore.New())
	ctx := context.Background()
	start := time.Now()
	for range 4 {
		_, err := th.Wait(ctx, throttler.Rule{
			Identifier: "outbox",
			Either: []throttler.Condition{
				{Name: "all", Max: 1, TTL: 20 * time.Millisecond, Algorithm: throttler.LeakyBucket},
			},
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println("at least 60 ms:", time.Since(start) >= 60*time.Millisecond)

	// Output:
	// at least 60 ms: true
}

// A trial of a limit before it is enforced.
func ExampleRule_shadow() {
	th := throttler.New(memstore.New())
	th.Observe = func(_ context.Context, rule throttler.Rule, d throttler.Decision) {
		if d.WouldBlock {
			fmt.Println(rule.Identifier, "would block", rule.Either[0].Value)
		}
	}
	for range 3 {
		d, err := th.Authorize(context.Background(), throttler.Rule{
			Identifier: "search",
			Either:     []throttler.Condition{{Name: "user", Value: "carol", Max: 2, TTL: time.Minute}},
			Shadow:     true,
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Status)
	}

	// Output:
	// authorized
	// authorized
	// search would block carol
	// authorized
}

// A program that would rather turn everybody away than let a password be guessed
// while memcached is down. Nothing listens at port 1.
func ExampleDecision_failClosed() {
	th := throttler.New(memcache.New("127.0.0.1:1"))
	ctx := context.Background()

	d, err := th.Authorize(ctx, throttler.Rule{
		Identifier: "login",
		Either: []throttler.Condition{
			{Name: "ip", Value: "192.0.2.1", Max: 50, TTL: 5 * time.Minute},
			{Name: "login", Value: "alice", Max: 5, TTL: time.Minute},
		},
	})
	if err != nil {
		panic(err) // the rule is wrong
	}
	refuse := d.Status == throttler.Blocked
	for _, o := range d.Outcomes {
		if o.Name == "login" && o.Err != nil {
			refuse = true // an unlimited address is one thing, an unlimited name another
		}
	}
	fmt.Println(d.Status, refuse)
	if refuse {
		_ = th.Cancel(ctx, d) // what was counted where it could be
	}

	// Output: authorized true
}
