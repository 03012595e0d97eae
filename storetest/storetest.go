// Package storetest checks what a throttler needs of a store. A test of a store is one
// line:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) throttler.Client { return mystore.New(...) })
//	}
//
// For a store over a network, [RunFaults] has connections break, and [RunOutages] its server hang.
//
// A store is a throttler.Client: five methods that read, add, compare and swap, and
// delete a record. docs/stores.md says what each must do.
//
// Only tests may import this package.
package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/bradfitz/gomemcache/memcache"
)

// Run runs all checks as subtests. It calls open several times. The clients may share
// their records, which is best: then exactness is checked across them. Run uses keys of
// its own and deletes nothing else. It takes about ten seconds, some of which wait for
// records to expire.
//
// The checks:
//
//   - client: the five methods answer as those of gomemcache's memcache.Client.
//   - keys and sizes: whatever value is counted, and records of up to 64 KiB.
//   - expiry: a record is kept until it expires, and not for ever.
//   - exactness: many callers over several throttlers are admitted exactly Max, by a
//     window and by a leaky bucket, and what they cancel is free again.
//   - linearizability: concurrent calls answer as if they were made one after the other.
//   - context: a call ends when its ctx does.
//   - overload: a thousand callers at once all get an answer.
//   - exchange: if the client is a exchange.Exchanger, what that interface says.
//   - failures: lost answers and errors of the client's methods admit nobody too many.
func Run(t *testing.T, open func(t *testing.T) throttler.Client) {
	for _, c := range []struct {
		name  string
		check func(s *suite)
	}{
		{"client", (*suite).client},
		{"keys", (*suite).keys},
		{"sizes", (*suite).sizes},
		{"expiry", (*suite).expiry},
		{"exactness", (*suite).exactness},
		{"linearizability", (*suite).linearizability},
		{"context", (*suite).context},
		{"overload", (*suite).overload},
		{"exchange", (*suite).exchange},
		{"failures", (*suite).failures},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(newSuite(t, open)) })
	}
}

// A suite is one check with its clients.
type suite struct {
	*testing.T
	a, b  throttler.Client // the same one if the clients of open share nothing
	space string           // before each key and identifier
}

func newSuite(t *testing.T, open func(t *testing.T) throttler.Client) *suite {
	s := &suite{T: t, space: fmt.Sprintf("storetest-%x", rand.Uint64())}
	s.a = open(t)
	s.b = open(t)
	if err := s.a.Add(&memcache.Item{Key: s.key("shared"), Value: []byte("x"), Expiration: 60}); err != nil {
		t.Fatalf("Add of a new key: %v", err)
	}
	if _, err := s.b.Get(s.key("shared")); err != nil {
		s.b = s.a
	}
	return s
}

// key returns a key of the suite's own.
func (s *suite) key(name string) string { return s.space + "#" + name }

// rule returns a rule with one condition.
func (s *suite) rule(value string, max int) throttler.Rule {
	return throttler.Rule{Identifier: s.space, Either: []throttler.Condition{
		{Name: "value", Value: value, Max: max, TTL: time.Hour},
	}}
}

// throttlers returns two over different clients, which wait for as long as it takes.
func (s *suite) throttlers() []*throttler.Throttler {
	all := []*throttler.Throttler{throttler.New(s.a), throttler.New(s.b)}
	for _, th := range all {
		th.QueueTimeout = time.Minute
	}
	return all
}
