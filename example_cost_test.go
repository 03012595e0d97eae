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

// The tokens of a language model are known only afterwards. Reserve what a
// request may take, and settle when it is done: give back what was reserved and
// count what was used, or take the rest.
func ExampleCondition_costKnownAfterwards() {
	th := throttler.New(memstore.New())
	ctx := context.Background()

	tokens := func(n int) throttler.Rule {
		return throttler.Rule{
			Identifier: "model",
			Either: []throttler.Condition{
				{Name: "tokens", Value: "alice", Max: 1_000_000, TTL: time.Minute, Algorithm: throttler.LeakyBucket, Cost: n},
			},
		}
	}
	ask := func(reserve, used int) {
		reserved, err := th.Authorize(ctx, tokens(reserve))
		if err != nil {
			panic(err) // the rule is wrong
		}
		if reserved.Status == throttler.Blocked {
			fmt.Println("come back in", reserved.RetryAfter.Round(time.Second))
			return
		}
		rest := used - reserve
		if rest < 0 { // the model has answered, in fewer tokens
			if err := th.Cancel(ctx, reserved); err != nil {
				return // what was reserved stays counted
			}
			rest = used
		}
		for rest > 0 {
			settled, err := th.Authorize(ctx, tokens(min(rest, 1_000_000)))
			if err != nil {
				panic(err)
			}
			if settled.Status == throttler.Blocked {
				fmt.Println("beyond the limit by", rest, "tokens")
				return // the next request pays for it: the bucket is nearly full
			}
			rest -= 1_000_000
		}
		fmt.Println(used, "tokens used")
	}
	ask(400_000, 100_000)
	ask(400_000, 650_000)
	ask(400_000, 1)

	// Output:
	// 100000 tokens used
	// 650000 tokens used
	// come back in 9s
}
