package throttler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// Requests and bytes limited in one rule: 100 uploads a minute, in a window, and
// 10 MB a minute, in a bucket. A call that one of them refuses counts in neither.
func ExampleCondition_cost() {
	th := throttler.New(memstore.New())
	ctx := context.Background()

	upload := func(user string, bytes int) {
		d, err := th.Authorize(ctx, throttler.Rule{
			Identifier: "upload",
			Either: []throttler.Condition{
				{Name: "requests", Value: user, Max: 100, TTL: time.Minute},
				{Name: "bytes", Value: user, Max: 10_000_000, TTL: time.Minute, Algorithm: throttler.LeakyBucket, Cost: bytes},
			},
			CountAuthorizedOnly: true,
		})
		if err != nil {
			fmt.Println("larger than all that a minute takes")
			return
		}
		fmt.Println(d.Status, d.Messages, d.RetryAfter.Round(time.Second), "requests left:", d.Outcomes[0].Remaining)
	}
	upload("alice", 6_000_000)
	upload("alice", 6_000_000)
	upload("alice", 3_000_000)
	upload("alice", 60_000_000)

	// Output:
	// authorized [] 0s requests left: 99
	// blocked [bytes] 12s requests left: 99
	// authorized [] 0s requests left: 98
	// larger than all that a minute takes
}

// The tokens of a language model are known only afterwards. Reserve what a request may
// take, and settle what it has taken: the rest is given back.
func ExampleThrottler_Settle() {
	th := throttler.New(memstore.New())
	ctx := context.Background()

	ask := func(reserve, used int) {
		d, err := th.Authorize(ctx, throttler.Rule{
			Identifier: "model",
			Either:     []throttler.Condition{{Name: "tokens", Value: "alice", Max: 1_000, TTL: time.Minute, Cost: reserve}},
		})
		if err != nil {
			panic(err) // the rule is wrong
		}
		if d.Status == throttler.Blocked {
			fmt.Println("come back in", d.RetryAfter.Round(time.Second))
			return
		}
		d, err = th.Settle(ctx, d, map[string]int{"tokens": used})
		if err != nil {
			panic(err)
		}
		fmt.Println(used, "tokens used,", d.Outcomes[0].Remaining, "left")
	}
	ask(400, 100)
	ask(400, 950) // more than was reserved, and more than there is
	ask(400, 1)

	// Output:
	// 100 tokens used, 900 left
	// 950 tokens used, 0 left
	// come back in 1m0s
}

// A call that takes what there is: of a batch of 40 messages, as many as fit.
func ExampleCondition_least() {
	th := throttler.New(memstore.New())
	for range 3 {
		d, err := th.Authorize(context.Background(), throttler.Rule{
			Identifier: "batch",
			Either:     []throttler.Condition{{Name: "messages", Max: 50, TTL: time.Minute, Cost: 40, Least: 1}},
		})
		if err != nil {
			panic(err) // the rule is wrong
		}
		fmt.Println(d.Status, "to send", d.Outcomes[0].Cost)
	}

	// Output:
	// authorized to send 40
	// authorized to send 10
	// blocked to send 0
}

// Wait with a Cost keeps a rate of bytes: 100 kB a second, in pieces of 2 kB.
func ExampleThrottler_Wait_cost() {
	th := throttler.New(memstore.New())
	start := time.Now()
	for range 4 {
		_, err := th.Wait(context.Background(), throttler.Rule{
			Identifier: "upload",
			Either: []throttler.Condition{
				{Name: "bytes", Max: 2_000, TTL: 20 * time.Millisecond, Algorithm: throttler.LeakyBucket, Cost: 2_000},
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
