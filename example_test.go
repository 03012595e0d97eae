package throttler_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
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

// ownStore is a throttler.Client over a map. One over a database has the same methods;
// storetest.Run tells whether they are right.
type ownStore struct {
	mu      sync.Mutex
	records map[string]ownRecord
	writes  uint64
}

type ownRecord struct {
	item  memcache.Item
	until time.Time
}

func (s *ownStore) Get(key string) (*memcache.Item, error) {
	items, _ := s.GetMulti([]string{key})
	if items[key] == nil {
		return nil, memcache.ErrCacheMiss
	}
	return items[key], nil
}

func (s *ownStore) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := make(map[string]*memcache.Item)
	for _, key := range keys {
		if r, ok := s.find(key); ok {
			items[key] = &r.item
		}
	}
	return items, nil
}

func (s *ownStore) Add(item *memcache.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.find(item.Key); ok {
		return memcache.ErrNotStored
	}
	s.write(*item)
	return nil
}

func (s *ownStore) CompareAndSwap(item *memcache.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.find(item.Key); !ok || r.item.CasID != item.CasID {
		return memcache.ErrCASConflict
	}
	s.write(*item)
	return nil
}

func (s *ownStore) Delete(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.find(key); !ok {
		return memcache.ErrCacheMiss
	}
	delete(s.records, key)
	return nil
}

// find returns a record that has not expired. s.mu is held.
func (s *ownStore) find(key string) (ownRecord, bool) {
	r, ok := s.records[key]
	return r, ok && time.Now().Before(r.until)
}

// write stores item under a new CasID. s.mu is held.
func (s *ownStore) write(item memcache.Item) {
	s.writes++
	item.CasID = s.writes
	item.Value = slices.Clone(item.Value) // the throttler may reuse its own
	until := time.Now().Add(time.Duration(item.Expiration) * time.Second)
	if item.Expiration > 30*24*60*60 { // a date
		until = time.Unix(int64(item.Expiration), 0)
	}
	s.records[item.Key] = ownRecord{item, until}
}

// A store of one's own is a type with five methods.
func ExampleClient() {
	th := throttler.New(&ownStore{records: make(map[string]ownRecord)})
	for range 3 {
		d, err := th.Authorize(context.Background(), throttler.Rule{
			Identifier: "api",
			Either:     []throttler.Condition{{Name: "customer", Value: "c-42", Max: 2, TTL: time.Minute}},
		})
		if err != nil {
			panic(err) // the rule is wrong
		}
		fmt.Println(d.Status, d.Outcomes[0].Remaining, d.Err)
	}

	// Output:
	// authorized 1 <nil>
	// authorized 0 <nil>
	// blocked 0 <nil>
}
