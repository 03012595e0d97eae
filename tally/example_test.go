package tally_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
)

// A trial run: which limit would stop an attacker who guesses passwords, and no
// one else? The rule has a condition for each limit in question. It is in
// Shadow, so it stops no call. The tally tells which values each limit would
// have blocked, and how often.
func Example_trialRun() {
	counts := tally.New()
	limits := throttler.New(memstore.New())
	limits.Observe = counts.Observe

	login := func(address string) {
		at := func(limit string, max int) throttler.Condition {
			return throttler.Condition{Name: limit, Value: address, Max: max, TTL: time.Minute}
		}
		d, err := limits.Authorize(context.Background(), throttler.Rule{
			Identifier: "login",
			Either:     []throttler.Condition{at("5 a minute", 5), at("10 a minute", 10), at("20 a minute", 20)},
			Shadow:     true,
		})
		if err != nil || d.Status != throttler.Authorized {
			log.Fatal("a trial run is not meant to be noticed: ", err)
		}
	}
	for range 300 {
		login("203.0.113.9") // guesses
	}
	for range 12 {
		login("198.51.100.1") // is an office
	}
	for range 3 {
		login("192.0.2.7") // is a person with a typo
	}

	var trial struct {
		Rules []struct {
			Identifier string
			Calls      int
			WouldBlock int `json:"would_block"`
			Conditions []struct {
				Name       string
				WouldBlock int `json:"would_block"`
				Values     []struct {
					Value string
					Count int
				}
			}
		}
	}
	snapshot, err := json.Marshal(counts)
	if err == nil {
		err = json.Unmarshal(snapshot, &trial)
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, rule := range trial.Rules {
		fmt.Printf("%s: %d calls, %d would have been blocked\n", rule.Identifier, rule.Calls, rule.WouldBlock)
		for _, condition := range rule.Conditions {
			fmt.Printf("- by %s: %d\n", condition.Name, condition.WouldBlock)
			for _, value := range condition.Values {
				fmt.Printf("  %s %d times\n", value.Value, value.Count)
			}
		}
	}
	// Output:
	// login: 315 calls, 302 would have been blocked
	// - by 5 a minute: 302
	//   203.0.113.9 295 times
	//   198.51.100.1 7 times
	// - by 10 a minute: 292
	//   203.0.113.9 290 times
	//   198.51.100.1 2 times
	// - by 20 a minute: 280
	//   203.0.113.9 280 times
}
