package pool_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/adaptivethrottler/throttler/tally"
)

func Example() {
	servers, err := pool.New("127.0.0.1:11211", "[::1]:11212", "/run/memcached.sock")
	if err != nil {
		log.Fatal(err) // a server given twice, no name that resolves
	}
	defer servers.Close()
	servers.Timeout = 100 * time.Millisecond // options are set before the first call
	fmt.Println(len(servers.Stats()), "servers")
	// Output: 3 servers
}

// Nothing listens at port 1. After five failures in a row nobody asks any more,
// and callers are told at once.
func ExamplePool_Stats() {
	servers, err := pool.New("127.0.0.1:1")
	if err != nil {
		log.Fatal(err)
	}
	defer servers.Close()
	for range 8 {
		servers.Get("key")
	}
	for _, s := range servers.Stats() {
		fmt.Printf("%s: down: %v, %d calls, %d failed, %d refused\n", s.Server, s.Down, s.Calls, s.Failures, s.Refusals)
	}
	// Output: 127.0.0.1:1: down: true, 8 calls, 5 failed, 3 refused
}

// A memcached with TLS (memcached -Z, or a managed one). Its certificate is
// checked against the name that is given here.
func ExamplePool_tls() {
	servers, err := pool.New("localhost:11211")
	if err != nil {
		log.Fatal(err)
	}
	defer servers.Close()
	trusted := x509.NewCertPool() // and trusted.AppendCertsFromPEM(…)
	servers.DialContext = (&tls.Dialer{Config: &tls.Config{RootCAs: trusted}}).DialContext
}

// The set-up of the README: bounded in what it costs when a server is away, and
// limiting each process on its own meanwhile.
func Example_production() {
	counts := tally.New()

	servers, err := pool.New("127.0.0.1:11211", "127.0.0.1:11212")
	if err != nil {
		log.Fatal(err)
	}
	th := throttler.New(servers)
	th.Fallback = memstore.New()
	th.BlockCache = 10_000
	th.Observe = counts.Observe

	defer servers.Close()
	snapshot, err := json.Marshal(counts)
	fmt.Println(strings.Contains(string(snapshot), `"rules":[]`), err)
	// Output: true <nil>
}
