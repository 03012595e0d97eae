package tally_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
	logins "github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
)

// Leaked passwords are tried, one for each of many names, from two networks. No
// limit is met. The share of failures shows it.
func ExampleTally_ObserveLogin() {
	counts := tally.New()
	guard := logins.New(throttler.New(memstore.New()))
	guard.Observe = counts.ObserveLogin

	logIn := func(name, addr string, right bool) {
		ctx := context.Background()
		attempt, err := guard.Begin(ctx, name, netip.MustParseAddr(addr))
		if err != nil {
			log.Fatal(err)
		}
		end := attempt.Fail
		if right {
			end = attempt.Succeed
		}
		if err := end(ctx); err != nil {
			log.Print(err)
		}
	}
	for i := range 10 {
		logIn(fmt.Sprint("customer", i), "192.0.2.1", true)
	}
	for i := range 60 {
		logIn(fmt.Sprint("name", i), fmt.Sprint("203.0.113.", i), false)
		logIn(fmt.Sprint("user", i/2), fmt.Sprintf("2001:db8:1:%x::7", i), false)
	}

	var told struct {
		Logins struct {
			Attempts, Refused int
			FailedShare       float64 `json:"failed_share"`
			Networks          []struct {
				Value string
				Count int
			}
		}
	}
	snapshot, err := json.Marshal(counts)
	if err == nil {
		err = json.Unmarshal(snapshot, &told)
	}
	if err != nil {
		log.Fatal(err)
	}
	l := told.Logins
	fmt.Printf("%d attempts, %d refused, %.0f %% of the passwords wrong\n", l.Attempts, l.Refused, 100*l.FailedShare)
	for _, network := range l.Networks {
		fmt.Println(network.Value, network.Count)
	}
	// Output:
	// 130 attempts, 0 refused, 92 % of the passwords wrong
	// 2001:db8:1::/48 60
	// 203.0.113.0/24 60
}
